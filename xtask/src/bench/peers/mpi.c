/* One rank of the benchmark with MPI. What it is told and what it prints: xtask/src/bench/team.rs.
 *
 * Argument: the folder with the files of commands, each named by its rank. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int rank, ranks;

/* Element i of a rank: sums of them are exact in f32. */
static float element(long rank, long i) {
    return (float)((i * 40503 + rank * 9973) % 65521 - 32760) / 32768;
}

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Ticks in which the processors were not ours (idle, waiting, stolen), and those in softirq. */
static void machine_ticks(long *idle, long *softirq) {
    long f[8] = {0};
    FILE *stat = fopen("/proc/stat", "r");
    if (!stat || fscanf(stat, "cpu %ld %ld %ld %ld %ld %ld %ld %ld", f, f + 1, f + 2, f + 3, f + 4,
                        f + 5, f + 6, f + 7) != 8) {
        fprintf(stderr, "cannot read /proc/stat\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    fclose(stat);
    *idle = f[3] + f[4] + f[7];
    *softirq = f[6];
}

static double agree(double value, MPI_Op op) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
    return value;
}

static void call(float *tensors, long copies, long count, long broadcast, long i) {
    float *tensor = tensors + i % copies * count;
    if (broadcast)
        MPI_Bcast(tensor, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else
        MPI_Allreduce(MPI_IN_PLACE, tensor, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Elements of the tensor that was in the last call that are not what they must be. */
static double wrong_elements(const float *tensors, long copies, long count, long broadcast,
                             long last) {
    long wrong = 0;
    float factor = 1;
    for (long k = 0; !broadcast && k < last / copies; k++) factor *= ranks;
    for (long i = 0; i < count; i++) {
        float sum = 0;
        for (long other = 0; other < (broadcast ? 1 : ranks); other++) sum += element(other, i);
        wrong += tensors[last % copies * count + i] != sum * factor;
    }
    return wrong;
}

static void measure(long command, long copies, long count, long warmup, long iters,
                    long broadcast) {
    float *tensors = malloc(copies * count * sizeof *tensors);
    if (!tensors) MPI_Abort(MPI_COMM_WORLD, 1);
    for (long i = 0; i < count; i++)
        for (long copy = 0; copy < copies; copy++)
            tensors[copy * count + i] = copy ? tensors[i] : element(rank, i);
    MPI_Barrier(MPI_COMM_WORLD);
    for (long i = 0; i < warmup; i++) call(tensors, copies, count, broadcast, i);
    MPI_Barrier(MPI_COMM_WORLD);
    long idle, softirq, idle_after, softirq_after;
    machine_ticks(&idle, &softirq);
    double cpu = now(CLOCK_PROCESS_CPUTIME_ID), begin = now(CLOCK_MONOTONIC);
    for (long i = warmup; i < warmup + iters; i++) call(tensors, copies, count, broadcast, i);
    double seconds = now(CLOCK_MONOTONIC) - begin;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    machine_ticks(&idle_after, &softirq_after);
    long last = warmup + iters - 1;
    double wrong = agree(wrong_elements(tensors, copies, count, broadcast, last), MPI_SUM);
    double slowest = agree(seconds, MPI_MAX), processes = agree(cpu, MPI_SUM);
    if (rank == 0) {
        printf("{\"command\":%ld,\"wrong\":%.0f,\"seconds\":%.9f,\"reporter_seconds\":%.9f,"
               "\"process_seconds\":%.9f,\"idle_ticks\":%ld,\"softirq_ticks\":%ld}\n",
               command, wrong, slowest, seconds, processes, idle_after - idle,
               softirq_after - softirq);
        fflush(stdout);
    }
    free(tensors);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", argc == 2 ? argv[1] : ".", rank);
    FILE *commands = fopen(path, "r");
    if (!commands) {
        fprintf(stderr, "cannot open %s\n", path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    long command, copies, count, warmup, iters, broadcast;
    while (fscanf(commands, "%ld %ld %ld %ld %ld %ld", &command, &copies, &count, &warmup, &iters,
                  &broadcast) == 6)
        measure(command, copies, count, warmup, iters, broadcast);
#ifdef MPICH_VERSION
    /* In MPI_Finalize, MPICH 4.0 over UCX's TCP often hangs after large messages: a rank flushes
     * its connections while the others already wait for the launcher, and answer nothing. All
     * calls are over, and this launcher does not mind. */
    fflush(stdout);
    _exit(0);
#endif
    MPI_Finalize();
    return 0;
}
