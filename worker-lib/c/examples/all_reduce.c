/*
 * Sums over all ranks of a job, in C. Every rank runs it, with RANK, WORLD_SIZE and
 * SWITCHML_AGGREGATOR in its environment:
 *
 *     cc -std=c99 all_reduce.c -I ../include -L ../../../target/release -lswitchml -o all_reduce
 *     export LD_LIBRARY_PATH=../../../target/release
 *     RANK=0 WORLD_SIZE=2 SWITCHML_AGGREGATOR=switch ./all_reduce 10
 *
 * Its argument is how often the gradients are summed.
 */
#include "switchml.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { GRADIENTS = 1 << 20, COUNTS = 1000 };

/* Says what failed last, and which ranks are at fault. */
static int failed(const char *what)
{
    uint32_t ranks[64];
    size_t count = switchml_error_ranks(ranks, 64);
    fprintf(stderr, "%s: %s\n", what, switchml_error_message());
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, "at fault: rank %" PRIu32 "\n", ranks[i]);
    return EXIT_FAILURE;
}

/* Every rank's gradients are its number plus 1, at first: their mean over n ranks is
 * (n + 1) / 2. */
static int average_gradients(const switchml_communicator *communicator, float *gradients)
{
    float mean = (float)(switchml_world_size(communicator) + 1) / 2;
    for (size_t i = 0; i < GRADIENTS; i++)
        gradients[i] = (float)(switchml_rank(communicator) + 1);
    if (switchml_all_reduce(communicator, gradients, GRADIENTS, SWITCHML_F32, SWITCHML_AVG) !=
        SWITCHML_OK)
        return failed("all_reduce");
    for (size_t i = 0; i < GRADIENTS; i++) {
        if (gradients[i] != mean) {
            fprintf(stderr, "gradient %zu is %g, not %g\n", i, gradients[i], mean);
            return EXIT_FAILURE;
        }
    }
    return EXIT_SUCCESS;
}

/* The same in two steps, as training does whose optimizer runs on a part of the weights on each
 * rank: this rank's part of the sums, and then everybody's. */
static int sum_by_parts(const switchml_communicator *communicator, int32_t *counts)
{
    uint32_t rank = switchml_rank(communicator), ranks = switchml_world_size(communicator);
    for (int32_t i = 0; i < COUNTS; i++)
        counts[i] = i;
    if (switchml_reduce_scatter(communicator, counts, COUNTS, SWITCHML_I32, SWITCHML_SUM) !=
        SWITCHML_OK)
        return failed("reduce_scatter");
    for (uint32_t i = COUNTS * rank / ranks; i < COUNTS * (rank + 1) / ranks; i++)
        counts[i] += 1;
    if (switchml_all_gather(communicator, counts, COUNTS, SWITCHML_I32) != SWITCHML_OK)
        return failed("all_gather");
    for (int32_t i = 0; i < COUNTS; i++) {
        if (counts[i] != i * (int32_t)ranks + 1) {
            fprintf(stderr, "count %" PRId32 " is %" PRId32 " by parts\n", i, counts[i]);
            return EXIT_FAILURE;
        }
    }
    return EXIT_SUCCESS;
}

/* Two calls in flight: sums of whole numbers, and the last rank's number. */
static int two_at_once(const switchml_communicator *communicator, int32_t *counts)
{
    switchml_request *sum, *broadcast;
    uint32_t ranks = switchml_world_size(communicator);
    double last = switchml_rank(communicator);
    for (int32_t i = 0; i < COUNTS; i++)
        counts[i] = i;
    if (switchml_all_reduce_start(communicator, counts, COUNTS, SWITCHML_I32, SWITCHML_SUM, &sum) !=
        SWITCHML_OK)
        return failed("all_reduce_start");
    if (switchml_broadcast_start(communicator, &last, 1, SWITCHML_F64, ranks - 1, &broadcast) !=
        SWITCHML_OK) {
        switchml_wait(sum);
        return failed("broadcast_start");
    }
    switchml_status status = switchml_wait(sum);
    /* Both are waited for, also if the first fails: until then the library may write to the
     * arrays. */
    if (switchml_wait(broadcast) != SWITCHML_OK || status != SWITCHML_OK)
        return failed("wait");
    for (int32_t i = 0; i < COUNTS; i++) {
        if (counts[i] != i * (int32_t)ranks) {
            fprintf(stderr, "count %" PRId32 " is %" PRId32 "\n", i, counts[i]);
            return EXIT_FAILURE;
        }
    }
    printf("the last rank is %g\n", last);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 1;
    float *gradients = malloc(GRADIENTS * sizeof *gradients);
    int32_t *counts = malloc(COUNTS * sizeof *counts);
    switchml_communicator *communicator;
    int result = EXIT_SUCCESS;

    /* Everything from the environment; a switchml_settings would say it here. */
    if (switchml_connect(NULL, &communicator) != SWITCHML_OK)
        return failed("connect");
    printf("rank %" PRIu32 " of %" PRIu32 "\n", switchml_rank(communicator),
           switchml_world_size(communicator));
    fflush(stdout);
    for (long round = 0; round < rounds && result == EXIT_SUCCESS; round++)
        result = average_gradients(communicator, gradients);
    if (result == EXIT_SUCCESS)
        result = two_at_once(communicator, counts);
    if (result == EXIT_SUCCESS)
        result = sum_by_parts(communicator, counts);
    if (result == EXIT_SUCCESS && switchml_barrier(communicator) != SWITCHML_OK)
        result = failed("barrier");
    if (switchml_close(communicator) != SWITCHML_OK && result == EXIT_SUCCESS)
        result = failed("close");
    if (result == EXIT_SUCCESS)
        puts("all sums are right");
    free(counts);
    free(gradients);
    return result;
}
