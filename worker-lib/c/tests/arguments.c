/*
 * What the library says to arguments that make no sense, in a job of one rank. It ends with a
 * failure where that is not as it should be.
 */
#include "switchml.h"

#include <stdio.h>
#include <string.h>

static int wrong;

static void expect(switchml_status status, switchml_status wanted, const char *message)
{
    if (status != wanted || strcmp(switchml_error_message(), message) != 0) {
        fprintf(stderr, "status %d, not %d: %s\n  not: %s\n", (int)status, (int)wanted,
                switchml_error_message(), message);
        wrong = 1;
    }
}

/* Calls that are refused leave a communicator as it is. */
static void refused_calls(const switchml_communicator *communicator)
{
    switchml_request *request = NULL;
    float data[2] = { 1, 2 };
    void *odd = (char *)data + 1;

    expect(switchml_all_reduce(communicator, NULL, 2, SWITCHML_F32, SWITCHML_SUM), SWITCHML_INVALID,
           "data is NULL; give the address of the elements");
    expect(switchml_all_reduce(communicator, odd, 1, SWITCHML_F32, SWITCHML_SUM), SWITCHML_INVALID,
           "data is not aligned; give an address that is a multiple of the elements' size");
    expect(switchml_all_reduce(communicator, data, SIZE_MAX / 2, SWITCHML_F32, SWITCHML_SUM),
           SWITCHML_INVALID, "count is larger than memory; give the number of elements");
    expect(switchml_all_reduce(communicator, data, 2, 6, SWITCHML_SUM), SWITCHML_INVALID,
           "there is no such type; SWITCHML_F32, _F64, _F16, _BF16, _I32 and _I64 are allowed");
    expect(switchml_all_reduce(communicator, data, 2, SWITCHML_F32, 8), SWITCHML_INVALID,
           "there is no such operator; SWITCHML_SUM, _AVG, _MAX, _MIN, _SUM16, _AVG16, _SUM8 and "
           "_AVG8 are allowed");
    expect(switchml_broadcast(communicator, data, 2, SWITCHML_F32, 1), SWITCHML_INVALID,
           "broadcast from rank 1 of 1; 0 to 0 are allowed");
    expect(switchml_broadcast_start(communicator, data, 2, SWITCHML_F32, 1, &request),
           SWITCHML_INVALID, "broadcast from rank 1 of 1; 0 to 0 are allowed");
    if (request != NULL ||
        switchml_all_reduce(communicator, data, 2, SWITCHML_I32, SWITCHML_AVG) != SWITCHML_INVALID)
        wrong = 1;
    /* Nothing at all is something that can be summed. */
    if (switchml_all_reduce(communicator, NULL, 0, SWITCHML_F32, SWITCHML_SUM) != SWITCHML_OK ||
        switchml_all_reduce(communicator, data, 2, SWITCHML_F32, SWITCHML_SUM) != SWITCHML_OK ||
        data[0] != 1 || data[1] != 2) {
        fprintf(stderr, "%s: %g %g\n", switchml_error_message(), data[0], data[1]);
        wrong = 1;
    }
}

/* Of one rank: what it gave, exactly where the step is a power of two, else within B / K, which is
 * at most 1.25 * (1 + 2) / 255. */
static void fewer_bits(const switchml_communicator *communicator)
{
    const float bound = 0.015f;
    float data[2] = { 1, 2 };
    double wide = 1;

    if (switchml_all_reduce(communicator, data, 2, SWITCHML_F32, SWITCHML_SUM16) != SWITCHML_OK ||
        switchml_all_reduce(communicator, data, 2, SWITCHML_F32, SWITCHML_AVG16) != SWITCHML_OK ||
        data[0] != 1 || data[1] != 2) {
        fprintf(stderr, "16 bits: %s: %g %g\n", switchml_error_message(), data[0], data[1]);
        wrong = 1;
    }
    if (switchml_all_reduce(communicator, data, 2, SWITCHML_F32, SWITCHML_SUM8) != SWITCHML_OK ||
        data[0] < 1 - bound || data[0] > 1 + bound || data[1] < 2 - bound || data[1] > 2 + bound) {
        fprintf(stderr, "8 bits: %s: %g %g\n", switchml_error_message(), data[0], data[1]);
        wrong = 1;
    }
    expect(switchml_all_reduce(communicator, &wide, 1, SWITCHML_F64, SWITCHML_AVG8),
           SWITCHML_INVALID,
           "avg8 of f64 is not available, only sums and averages of f32, f16 and bf16");
}

int main(void)
{
    switchml_communicator *communicator = NULL;
    switchml_request *request = NULL;
    switchml_settings settings = { .size = sizeof settings };
    float data[2] = { 0 };
    int marker;

    if (strcmp(switchml_error_message(), "") != 0 || switchml_error_ranks(NULL, 0) != 0)
        wrong = 1;
    expect(switchml_connect(NULL, NULL), SWITCHML_INVALID,
           "communicator is NULL; give the address of a pointer");
    settings.size = 0;
    expect(switchml_connect(&settings, &communicator), SWITCHML_INVALID,
           "settings.size is not sizeof(switchml_settings); set it to that, and use a library that "
           "is not older than the header");
    /* A program whose header ends with world_size: what follows is not looked at. */
    settings.size = offsetof(switchml_settings, deadline);
    settings.rank = 4;
    settings.world_size = 4;
    settings.deadline = -1;
    expect(switchml_connect(&settings, &communicator), SWITCHML_INVALID,
           "rank is 4 of 4; 0 to world size - 1 are allowed");
    settings = (switchml_settings){ .size = sizeof settings };
    settings.aggregator = "127.0.0.1:1";
    settings.rank = 4;
    settings.world_size = 4;
    communicator = (switchml_communicator *)&marker;
    expect(switchml_connect(&settings, &communicator), SWITCHML_INVALID,
           "rank is 4 of 4; 0 to world size - 1 are allowed");
    if (communicator != NULL)
        wrong = 1;
    settings.rank = 3;
    settings.deadline = -1;
    expect(switchml_connect(&settings, &communicator), SWITCHML_INVALID,
           "deadline is -1 s; it must be 0.1 s or more");
    settings.deadline = 0;
    settings.local_sums = 3;
    expect(switchml_connect(&settings, &communicator), SWITCHML_INVALID,
           "local_sums is 3; SWITCHML_DEFAULT, SWITCHML_YES and SWITCHML_NO are allowed");
    settings.local_sums = SWITCHML_NO;
    settings.weights = "2,0";
    expect(switchml_connect(&settings, &communicator), SWITCHML_INVALID,
           "weights is 2,0; give numbers of 1 or more, with commas between them");
    settings.weights = "2,1";
    expect(switchml_connect(&settings, &communicator), SWITCHML_INVALID,
           "weights is [2, 1] of 1 aggregators; give one of 1 or more for each aggregator");
    settings.weights = NULL;
    settings.job = "\xff";
    expect(switchml_connect(&settings, &communicator), SWITCHML_INVALID,
           "job is \"\\xff\"; it must be UTF-8");
    settings.job = NULL;
    settings.tls_fingerprint = "sha256:0";
    expect(switchml_connect(&settings, &communicator), SWITCHML_INVALID,
           "TLS fingerprint is \"sha256:0\"; sha256: and 64 hexadecimal digits are allowed");
    settings.tls_fingerprint = NULL;
    settings.join_timeout = 0.2;
    /* Nothing listens there. */
    if (switchml_connect(&settings, &communicator) != SWITCHML_FAILED ||
        strstr(switchml_error_message(), "no aggregator answers at 127.0.0.1:1") == NULL) {
        fprintf(stderr, "%s\n", switchml_error_message());
        wrong = 1;
    }
    expect(switchml_all_reduce(NULL, data, 2, SWITCHML_F32, SWITCHML_SUM), SWITCHML_INVALID,
           "communicator is NULL; give one from switchml_connect");
    expect(switchml_all_reduce_start(NULL, data, 2, SWITCHML_F32, SWITCHML_SUM, NULL),
           SWITCHML_INVALID, "request is NULL; give the address of a pointer");
    expect(switchml_broadcast_start(NULL, data, 2, SWITCHML_F32, 0, &request), SWITCHML_INVALID,
           "communicator is NULL; give one from switchml_connect");
    expect(switchml_wait(request), SWITCHML_INVALID,
           "request is NULL; give one from a function that starts a call");
    expect(switchml_close(NULL), SWITCHML_INVALID,
           "communicator is NULL; give one from switchml_connect");

    settings.aggregator = NULL;
    settings.rank = 0;
    settings.world_size = 1;
    settings.join_timeout = 0;
    if (switchml_connect(&settings, &communicator) != SWITCHML_OK) {
        fprintf(stderr, "%s\n", switchml_error_message());
        return 1;
    }
    refused_calls(communicator);
    fewer_bits(communicator);
    if (switchml_close(communicator) != SWITCHML_OK)
        wrong = 1;
    return wrong;
}
