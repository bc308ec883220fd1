/* One rank of a replayed training step with MPI, as xtask/src/bench/models.rs starts it.
 *
 * Argument: a file with a line for each bucket: its elements, and the microseconds from the step's
 * beginning until they are ready. A step without computing is checked, then one is timed; rank 0
 * prints a line of JSON.
 *
 * Calls are made one after the other, as by a thread for communication beside the computing: MPI
 * makes progress only inside its calls. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST 4096

static long elements[MOST], ready[MOST];
static float *tensors[MOST];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void sleep_until(double time) {
    double left = time - now();
    if (left <= 0) return;
    struct timespec pause = {(time_t)left, (long)((left - (time_t)left) * 1e9)};
    nanosleep(&pause, NULL);
}

/* Seconds of a step, whose computing is over when the last bucket is ready. */
static double step(int buckets, int computes) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now();
    for (int i = 0; i < buckets; i++) {
        sleep_until(begin + computes * ready[i] / 1e6);
        MPI_Allreduce(MPI_IN_PLACE, tensors[i], (int)elements[i], MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
    }
    return now() - begin;
}

int main(int argc, char **argv) {
    int rank, ranks, buckets = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    FILE *file = fopen(argc == 2 ? argv[1] : "", "r");
    if (!file) MPI_Abort(MPI_COMM_WORLD, 1);
    while (buckets < MOST && fscanf(file, "%ld %ld", &elements[buckets], &ready[buckets]) == 2) {
        float *tensor = tensors[buckets] = malloc(elements[buckets] * sizeof *tensor);
        if (!tensor) MPI_Abort(MPI_COMM_WORLD, 1);
        for (long k = 0; k < elements[buckets]; k++) tensor[k] = rank + 1;
        buckets++;
    }
    step(buckets, 0);
    double wrong = 0;
    for (int i = 0; i < buckets; i++)
        for (long k = 0; k < elements[i]; k++) wrong += tensors[i][k] != ranks * (ranks + 1) / 2;
    double seconds = step(buckets, 1);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"step_ms\": [%.6f], \"out_of_bounds\": %.0f}\n", seconds * 1e3, wrong);
    MPI_Finalize();
    return 0;
}
