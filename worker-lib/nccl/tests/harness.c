// Calls the plugin's collectives like NCCL, mainly like src/transport/coll_net.cc, but on host
// memory and without a GPU. Types and tables are NCCL's, declared again here.
//
// harness LIBRARY FOLDER RANK RANKS WHAT: ranks meet in the folder, as NCCL's ranks do by its
// bootstrap.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, LEVEL_INFO = 3 };
enum { I32 = 2, U32 = 3, I64 = 4, U64 = 5, F16 = 6, F32 = 7, F64 = 8, BF16 = 9, TYPES = 12 };
enum { SUM = 0, MAX = 2, MIN = 3, OPERATORS = 5 };
enum { HOST = 1, CUDA = 2, HANDLE = 128 };
// The number of steps, like NCCL_STEPS, and the bytes of a step.
enum { STEPS = 8, STEP_BYTES = 256 << 10, REGION = 2 * STEPS * STEP_BYTES };

typedef void (*Logger)(int level, unsigned long flags, const char *file, int line,
                       const char *format, ...);

struct Properties {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, speed, port;
    float latency;
    int max_comms, max_recvs, device_type, device_version;
};

struct CollNet {
    const char *name;
    int (*init)(Logger);
    int (*devices)(int *);
    int (*get_properties)(int, struct Properties *);
    int (*listen)(int, void *, void **);
    int (*connect)(void **, int, int, void *, void **);
    int (*reduce_support)(int, int, int *);
    int (*reg_mr)(void *, void *, int, int, void **);
    int (*reg_mr_dma_buf)(void *, void *, size_t, int, uint64_t, int, void **);
    int (*dereg_mr)(void *, void *);
    int (*iallreduce)(void *, void *, void *, int, int, int, void *, void *, void **);
    int (*iflush)(void *, void *, int, void *, void **);
    int (*test)(void *, int *, int *);
    int (*close_coll)(void *);
    int (*close_listen)(void *);
};

// The start of ncclNet's table: NCCL asks for it before it looks at collectives.
struct Net {
    const char *name;
    int (*init)(Logger);
    int (*devices)(int *);
};

static const char *folder;
static int rank, ranks;
static const struct CollNet *net;

#define CHECK(is)                                                                                  \
    do {                                                                                           \
        if (!(is)) {                                                                               \
            fprintf(stderr, "rank %d, line %d: not so: %s\n", rank, __LINE__, #is);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void logger(int level, unsigned long flags, const char *file, int line, const char *format,
                   ...) {
    (void)flags, (void)file, (void)line;
    va_list values;
    va_start(values, format);
    fprintf(stderr, "%s ", level == LEVEL_INFO ? "INFO" : "WARN");
    vfprintf(stderr, format, values);
    fprintf(stderr, "\n");
    va_end(values);
}

// Bootstrap: what a rank says is in a file, which is complete as soon as it exists.

static void say(const char *what, int group, const void *bytes, size_t size) {
    char name[512], new[520];
    snprintf(name, sizeof name, "%s/%s.%d.%d", folder, what, group, rank);
    snprintf(new, sizeof new, "%s.new", name);
    FILE *file = fopen(new, "w");
    CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
    CHECK(rename(new, name) == 0);
}

static void hear(const char *what, int group, int from, void *bytes, size_t size) {
    char name[512];
    snprintf(name, sizeof name, "%s/%s.%d.%d", folder, what, group, from);
    FILE *file;
    while (!(file = fopen(name, "r"))) usleep(1000);
    CHECK(fread(bytes, 1, size, file) == size && fclose(file) == 0);
}

// A group of all ranks, and the memory of its steps: first the steps to send, then the received
// ones.
struct Group {
    int number;
    void *coll, *send_memory, *receive_memory;
    char *region;
    void *requests[STEPS];
    int posted, done;
};

static void *listen_for(int number, char handles[][HANDLE]) {
    void *listener = NULL;
    CHECK(net->listen(0, handles[rank], &listener) == SUCCESS && listener);
    say("handle", number, handles[rank], HANDLE);
    return listener;
}

// Joins a group. Returns connect's code.
static int join(struct Group *group, int number) {
    char handles[64][HANDLE];
    void *pointers[64];
    *group = (struct Group){.number = number};
    void *listener = listen_for(number, handles);
    for (int r = 0; r < ranks; r++) {
        hear("handle", number, r, handles[r], HANDLE);
        pointers[r] = handles[r];
    }
    int code = net->connect(pointers, ranks, rank, listener, &group->coll);
    if (code != SUCCESS) return code;
    CHECK(net->close_listen(listener) == SUCCESS && group->coll);
    group->region =
        mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(group->region != MAP_FAILED);
    void *none = NULL;
    CHECK(net->reg_mr(group->coll, group->region, REGION, CUDA, &none) == INVALID_ARGUMENT);
    CHECK(net->reg_mr(group->coll, group->region, REGION, HOST, &group->send_memory) == SUCCESS);
    CHECK(net->reg_mr(group->coll, group->region, REGION, HOST, &group->receive_memory) == SUCCESS);
    // Without these, NCCL would not deregister the memory before it frees it.
    CHECK(group->send_memory && group->receive_memory);
    return SUCCESS;
}

// NCCL frees memory before it closes: a late write ends this process.
static void free_memory(struct Group *group) {
    CHECK(net->dereg_mr(group->coll, group->send_memory) == SUCCESS);
    CHECK(net->dereg_mr(group->coll, group->receive_memory) == SUCCESS);
    CHECK(munmap(group->region, REGION) == 0);
}

static void leave(struct Group *group) {
    free_memory(group);
    CHECK(net->close_coll(group->coll) == SUCCESS);
}

// A call with small whole numbers, whose sum is exact in every type; 32-bit sums wrap.
struct Call {
    int type, operator, count, in_place;
};

static const struct Call CALLS[] = {
    {F32, SUM, STEP_BYTES / 4, 0}, {F32, SUM, 1, 1},    {F16, SUM, 1000, 0}, {BF16, SUM, 777, 1},
    {F64, SUM, 333, 0},            {I32, SUM, 4097, 0}, {U32, SUM, 100, 1},  {I32, MAX, 5000, 0},
    {F32, MIN, 2048, 0},           {F16, MAX, 31, 1},   {BF16, MIN, 64, 0},  {F32, SUM, 30000, 0},
    {I64, SUM, 1500, 0},           {U64, SUM, 7, 1},
};
enum { DIFFERENT = sizeof CALLS / sizeof *CALLS };

static int is_long(int type) { return type == I64 || type == U64; }

static int bytes_of(int type) {
    return type == F64 || is_long(type) ? 8 : type == F16 || type == BF16 ? 2 : 4;
}

static int64_t value(const struct Call *call, int of, int group, int step, int k) {
    int64_t small = (k * 7 + step * 3 + of * 11 + group * 5) % 61 - 30;
    int is_wide = (call->type == I32 || call->type == U32) && call->operator== SUM;
    return is_wide ? 0x7fffff00 + small : is_long(call->type) ? small << 50 : small;
}

static int64_t expected(const struct Call *call, int group, int step, int k) {
    int64_t result = value(call, 0, group, step, k);
    for (int r = 1; r < ranks; r++) {
        int64_t other = value(call, r, group, step, k);
        if (call->operator== SUM) result += other;
        if (call->operator== MAX && other > result) result = other;
        if (call->operator== MIN && other < result) result = other;
    }
    return call->type == I32   ? (int32_t)(uint32_t)result
           : call->type == U32 ? (uint32_t)result
                               : result;
}

static void put(int type, char *to, int k, int64_t number) {
    float single = number;
    double wide = number;
    uint32_t bits, whole = number;
    memcpy(&bits, &single, 4);
    uint16_t upper = bits >> 16;
    // The exponent of binary16 is smaller by 112; whole numbers up to 2048 fit.
    uint16_t half =
        number == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits >> 13 & 0x3ffff) - (112 << 10));
    if (type == F32) memcpy(to + 4 * k, &single, 4);
    if (type == F64) memcpy(to + 8 * k, &wide, 8);
    if (type == I32 || type == U32) memcpy(to + 4 * k, &whole, 4);
    if (is_long(type)) memcpy(to + 8 * k, &number, 8);
    if (type == BF16) memcpy(to + 2 * k, &upper, 2);
    if (type == F16) memcpy(to + 2 * k, &half, 2);
}

// Checks the received data of the oldest step, whose request is done.
static void verify(const struct Group *group, const struct Call *call, int size) {
    int bytes = bytes_of(call->type), slot = group->done % STEPS;
    const char *received = group->region + (call->in_place ? slot : STEPS + slot) * STEP_BYTES;
    CHECK(size == call->count * bytes);
    for (int k = 0; k < call->count; k++) {
        char right[8] = {0};
        put(call->type, right, 0, expected(call, group->number, group->done, k));
        if (memcmp(received + k * bytes, right, bytes) != 0) {
            fprintf(stderr, "rank %d: group %d, step %d, element %d of type %d is wrong\n", rank,
                    group->number, group->done, k, call->type);
            exit(1);
        }
    }
}

static int post(struct Group *group, const struct Call *call, void **request) {
    int slot = group->posted % STEPS;
    char *send = group->region + slot * STEP_BYTES;
    char *receive = call->in_place ? send : group->region + (STEPS + slot) * STEP_BYTES;
    for (int k = 0; k < call->count; k++)
        put(call->type, send, k, value(call, rank, group->number, group->posted, k));
    *request = NULL;
    return net->iallreduce(group->coll, send, receive, call->count, call->type, call->operator,
                           group->send_memory, group->receive_memory, request);
}

// One turn of a proxy's thread: posts a call if there is room, and tests the oldest one.
static void progress(struct Group *group, int steps) {
    if (group->posted < steps && group->posted < group->done + STEPS) {
        const struct Call *call = &CALLS[group->posted % DIFFERENT];
        CHECK(post(group, call, &group->requests[group->posted % STEPS]) == SUCCESS);
        CHECK(group->requests[group->posted % STEPS]);
        group->posted++;
    }
    if (group->done < group->posted) {
        int done = 0, size = -1;
        CHECK(net->test(group->requests[group->done % STEPS], &done, &size) == SUCCESS);
        if (done) {
            verify(group, &CALLS[group->done % DIFFERENT], size);
            group->done++;
        }
    }
}

static void reductions(void) {
    for (int type = 0; type < TYPES; type++) {
        for (int operator= 0; operator< OPERATORS; operator++) {
            int is_float = type == F16 || type == F32 || type == F64 || type == BF16;
            int sums = is_float || type == I32 || type == U32 || is_long(type);
            int compares = sums && type != F64 && type != U32 && !is_long(type);
            int right = operator== SUM ? sums : (operator== MAX || operator== MIN) && compares;
            int supported = -1;
            CHECK(net->reduce_support(type, operator, &supported) == SUCCESS);
            CHECK(supported == right);
        }
    }
}

// Two communicators of NCCL's, whose calls have no order between them.
static void sums(void) {
    enum { TURNS = 10 * DIFFERENT };
    struct Group groups[2];
    for (int g = 0; g < 2; g++) CHECK(join(&groups[g], g) == SUCCESS);
    reductions();
    struct Group *first = &groups[rank % 2], *second = &groups[1 - rank % 2];
    while (first->done < TURNS || second->done < TURNS) {
        progress(first, TURNS);
        progress(second, TURNS);
    }
    for (int g = 0; g < 2; g++) leave(&groups[g]);
}

// Tests a request until it fails. Returns the code.
static int failure(void *request) {
    for (;;) {
        int done = 0, size, code = net->test(request, &done, &size);
        CHECK(!done);
        if (code != SUCCESS) return code;
    }
}

// Makes some calls, and waits until all ranks have their results.
static void sum_up(struct Group *group) {
    char is = 1;
    CHECK(join(group, 0) == SUCCESS);
    while (group->done < DIFFERENT) progress(group, DIFFERENT);
    say("summed", 0, &is, 1);
    for (int r = 0; r < ranks; r++) hear("summed", 0, r, &is, 1);
}

// Rank 0 is aborted with a call in flight, and frees its memory before the other ranks make that
// call.
static void abandoned(void) {
    struct Group group;
    void *request;
    char is = 1;
    sum_up(&group);
    if (rank == 0) {
        CHECK(post(&group, &CALLS[0], &request) == SUCCESS);
        free_memory(&group);
        say("freed", 0, &is, 1);
        for (int r = 1; r < ranks; r++) hear("failed", 0, r, &is, 1);
        CHECK(net->close_coll(group.coll) == SUCCESS);
        return;
    }
    hear("freed", 0, 0, &is, 1);
    int code = post(&group, &CALLS[0], &request);
    CHECK((code == SUCCESS ? failure(request) : code) == REMOTE_ERROR);
    say("failed", 0, &is, 1);
    leave(&group);
}

// Rank 1 exits without leaving, while the others wait for it.
static void gone(void) {
    struct Group group;
    void *request;
    sum_up(&group);
    if (rank == 1) {
        printf("rank %d of %d: all right\n", rank, ranks);
        fflush(stdout);
        _exit(0);
    }
    int code = post(&group, &CALLS[0], &request);
    CHECK((code == SUCCESS ? failure(request) : code) == REMOTE_ERROR);
    leave(&group);
}

// The last rank has a handle, but never joins.
static void missing(void) {
    struct Group group;
    if (rank == ranks - 1) {
        char handles[64][HANDLE];
        listen_for(0, handles);
        return;
    }
    CHECK(join(&group, 0) == REMOTE_ERROR && !group.coll);
}

int main(int count, char **arguments) {
    CHECK(count == 6);
    folder = arguments[2], rank = atoi(arguments[3]), ranks = atoi(arguments[4]);
    alarm(60);
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    // The library stays loaded: threads may end after NCCL has closed it, and their thread-local
    // data with them.
    CHECK(library && dlclose(library) == 0);
    CHECK((library = dlopen(arguments[1], RTLD_NOW | RTLD_NOLOAD)));
    const struct Net *messages = dlsym(library, "ncclNetPlugin_v8");
    net = dlsym(library, "ncclCollNetPlugin_v7");
    // With version 8, NCCL would call an all-gather that is not there.
    CHECK(messages && net && !dlsym(library, "ncclCollNetPlugin_v8"));
    int devices = 0;
    CHECK(messages->init(logger) == SUCCESS && messages->devices(&devices) == SUCCESS);
    CHECK(devices == 1);
    CHECK(net->init(logger) == SUCCESS && net->devices(&devices) == SUCCESS && devices == 1);
    struct Properties properties;
    CHECK(net->get_properties(0, &properties) == SUCCESS);
    CHECK(properties.ptr_support == HOST && properties.device_type == 0);
    if (strcmp(arguments[5], "sums") == 0) sums();
    else if (strcmp(arguments[5], "abandoned") == 0) abandoned();
    else if (strcmp(arguments[5], "gone") == 0) gone();
    else missing();
    CHECK(dlclose(library) == 0);
    printf("rank %d of %d: all right\n", rank, ranks);
    return 0;
}
