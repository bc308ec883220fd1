/*
 * A program of plain MPI, without anything of this project: collectives whose results are known by
 * arithmetic. It prints what is wrong, and then exits with a failure.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 100000

static int rank, ranks, wrong;

static void expect(int is_right, const char *what)
{
    if (!is_right && !wrong++)
        fprintf(stderr, "rank %d: %s is wrong\n", rank, what);
}

/* Element i of a rank: sums of such elements are exact in f32. */
static double element(int of, int i)
{
    return (double)((i * 40503LL + of * 9973) % 65521 - 32760) / 32768;
}

static int32_t integer(int of, int i)
{
    return (int32_t)((uint32_t)i * 2654435761u + (uint32_t)of * 40503u);
}

/* Sums of every type: in place and out of place, of one element and of many. */
static void sums(int count)
{
    float *f = malloc(count * sizeof *f), *f_sum = malloc(count * sizeof *f_sum);
    double *d = malloc(count * sizeof *d);
    int32_t *n = malloc(count * sizeof *n);
    uint32_t *u = malloc(count * sizeof *u);
    long *l = malloc(count * sizeof *l);
    for (int i = 0; i < count; i++) {
        f[i] = (float)element(rank, i), d[i] = element(rank, i), n[i] = integer(rank, i);
        u[i] = (uint32_t)n[i], l[i] = n[i];
    }
    MPI_Allreduce(f, f_sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, d, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, n, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, u, count, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, l, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        double sum = 0;
        uint32_t integers = 0;
        long longs = 0;
        for (int of = 0; of < ranks; of++) {
            sum += element(of, i);
            integers += (uint32_t)integer(of, i);
            longs += integer(of, i);
        }
        expect(f[i] == (float)element(rank, i), "what was sent");
        expect(f_sum[i] == (float)sum, "a sum of float");
        expect(d[i] == sum, "a sum of double");
        expect((uint32_t)n[i] == integers, "a sum of int");
        expect(u[i] == integers, "a sum of uint32_t");
        expect(l[i] == longs, "a sum of long");
    }
    free(f), free(f_sum), free(d), free(n), free(u), free(l);
}

static void extremes(void)
{
    static int32_t largest[COUNT];
    static float smallest[COUNT];
    static long largest_long[COUNT];
    static double product[8];
    for (int i = 0; i < COUNT; i++) {
        largest[i] = integer(rank, i), smallest[i] = (float)element(rank, i);
        largest_long[i] = largest[i];
    }
    for (int i = 0; i < 8; i++)
        product[i] = 2;
    MPI_Allreduce(MPI_IN_PLACE, largest, COUNT, MPI_INT32_T, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, smallest, COUNT, MPI_FLOAT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, largest_long, COUNT, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, product, 8, MPI_DOUBLE, MPI_PROD, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++) {
        int32_t most = integer(0, i);
        float least = (float)element(0, i);
        for (int of = 1; of < ranks; of++) {
            if (integer(of, i) > most)
                most = integer(of, i);
            if ((float)element(of, i) < least)
                least = (float)element(of, i);
        }
        expect(largest[i] == most, "a maximum of int");
        expect(smallest[i] == least, "a minimum of float");
        expect(largest_long[i] == most, "a maximum of long");
    }
    expect(product[3] == (double)(1 << ranks), "a product");
}

static void to_one(void)
{
    static float sent[COUNT], sum[COUNT];
    int root = ranks - 1;
    for (int i = 0; i < COUNT; i++)
        sent[i] = (float)element(rank, i), sum[i] = -1;
    MPI_Reduce(sent, rank == root ? sum : NULL, COUNT, MPI_FLOAT, MPI_SUM, root, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++) {
        double right = 0;
        for (int of = 0; of < ranks; of++)
            right += element(of, i);
        expect(sum[i] == (rank == root ? (float)right : -1), "a sum for one rank");
        expect(sent[i] == (float)element(rank, i), "what was sent to one rank");
    }
}

/* The root sends every second number of an array; the other ranks receive them contiguously. */
static void broadcasts(void)
{
    static int spread[2 * COUNT], dense[COUNT];
    static char odd[COUNT + 1];
    MPI_Datatype every_second;
    int root = 1 % ranks;
    MPI_Type_vector(COUNT, 1, 2, MPI_INT, &every_second);
    MPI_Type_commit(&every_second);
    for (int i = 0; i < 2 * COUNT; i++)
        spread[i] = integer(root, i);
    if (rank == root)
        MPI_Bcast(spread, 1, every_second, root, MPI_COMM_WORLD);
    else
        MPI_Bcast(dense, COUNT, MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT && rank != root; i++)
        expect(dense[i] == integer(root, 2 * i), "a broadcast of every second number");
    MPI_Type_free(&every_second);
    for (int i = 0; i < COUNT; i++)
        odd[i + 1] = rank == 0 ? (char)(i % 101) : 0;
    MPI_Bcast(odd + 1, COUNT - 1, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT - 1; i++)
        expect(odd[i + 1] == i % 101, "a broadcast of bytes");
    expect(odd[COUNT] == (rank == 0 ? (COUNT - 1) % 101 : 0), "what is behind a broadcast");
}

/* Each half of the ranks has its own communicator, at the same time. */
static void halves(void)
{
    static float tensor[COUNT];
    MPI_Comm half, alone;
    int own_ranks;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &alone);
    MPI_Comm_size(half, &own_ranks);
    for (int i = 0; i < COUNT; i++)
        tensor[i] = (float)(rank % 2 + 1);
    MPI_Allreduce(MPI_IN_PLACE, tensor, COUNT, MPI_FLOAT, MPI_SUM, half);
    MPI_Allreduce(MPI_IN_PLACE, tensor, COUNT, MPI_FLOAT, MPI_SUM, alone);
    for (int i = 0; i < COUNT; i++)
        expect(tensor[i] == (float)(own_ranks * (rank % 2 + 1)), "a sum in a half");
    MPI_Comm_free(&half);
    MPI_Comm_free(&alone);
}

/* Several calls in flight, among messages around the ring; waited for in every way. */
static void in_flight(void)
{
    enum { CALLS = 4 };
    static float tensors[CALLS][COUNT];
    static int out[COUNT], in[COUNT];
    for (int round = 0; round < 6; round++) {
        MPI_Request requests[CALLS + 2];
        int left = CALLS + 2, index, flag = 0, done, indices[CALLS + 2];
        memset(in, 0, sizeof in);
        for (int i = 0; i < COUNT; i++)
            out[i] = integer(rank, i);
        for (int call = 0; call < CALLS; call++) {
            for (int i = 0; i < COUNT; i++)
                tensors[call][i] = (float)(call + rank);
            MPI_Iallreduce(MPI_IN_PLACE, tensors[call], COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                           &requests[call]);
        }
        MPI_Irecv(in, COUNT, MPI_INT, (rank + ranks - 1) % ranks, round, MPI_COMM_WORLD,
                  &requests[CALLS]);
        MPI_Isend(out, COUNT, MPI_INT, (rank + 1) % ranks, round, MPI_COMM_WORLD,
                  &requests[CALLS + 1]);
        switch (round) {
        case 0:
            MPI_Waitall(CALLS + 2, requests, MPI_STATUSES_IGNORE);
            break;
        case 1:
            for (; left > 0; left--)
                MPI_Waitany(CALLS + 2, requests, &index, MPI_STATUS_IGNORE);
            break;
        case 2:
            while (!flag)
                MPI_Testall(CALLS + 2, requests, &flag, MPI_STATUSES_IGNORE);
            break;
        case 3:
            for (; left > 0; left -= done)
                MPI_Waitsome(CALLS + 2, requests, &done, indices, MPI_STATUSES_IGNORE);
            break;
        case 4:
            for (int i = CALLS + 1; i >= 0; i--)
                MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
            break;
        default:
            for (int i = 0; i < CALLS + 2; i++)
                for (flag = 0; !flag;)
                    MPI_Test(&requests[i], &flag, MPI_STATUS_IGNORE);
        }
        for (int i = 0; i < CALLS + 2; i++)
            expect(requests[i] == MPI_REQUEST_NULL, "a request");
        for (int i = 0; i < COUNT; i++) {
            expect(in[i] == integer((rank + ranks - 1) % ranks, i), "a message");
            for (int call = 0; call < CALLS; call++)
                expect(tensors[call][i] == (float)(ranks * call + ranks * (ranks - 1) / 2),
                       "a sum in flight");
        }
    }
}

/* Rank 1 makes the sum only when it has a message, which rank 0 may have to send while it waits in
 * that sum. */
static void message_on_its_way(void)
{
    enum { LARGE = 4 * 1024 * 1024 };
    static char message[LARGE];
    static float tensor[COUNT];
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0)
        MPI_Isend(memset(message, 7, LARGE), LARGE, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &request);
    if (rank == 1)
        MPI_Recv(message, LARGE, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < COUNT; i++)
        tensor[i] = 1;
    MPI_Allreduce(MPI_IN_PLACE, tensor, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(tensor[COUNT - 1] == (float)ranks && (rank > 1 || message[LARGE - 1] == 7),
           "a sum behind a message");
}

/* Numbers whose sum depends on rounding: the results must be the same bits on every rank. */
static void same_bits(void)
{
    static float tensor[COUNT], first[COUNT];
    for (int i = 0; i < COUNT; i++)
        tensor[i] = (float)element(rank, i) / 3 * (float)(1 + i % 1000);
    MPI_Allreduce(MPI_IN_PLACE, tensor, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    memcpy(first, tensor, sizeof first);
    MPI_Bcast(first, COUNT, MPI_FLOAT, 0, MPI_COMM_WORLD);
    expect(memcmp(first, tensor, sizeof first) == 0, "a rank's bits");
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof tensor; i++)
        hash = (hash ^ ((unsigned char *)tensor)[i]) * 1099511628211u;
    if (rank == 0)
        printf("bits %016llx\n", (unsigned long long)hash);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    sums(3);
    sums(COUNT);
    sums(3);
    extremes();
    to_one();
    broadcasts();
    halves();
    in_flight();
    MPI_Barrier(MPI_COMM_WORLD);
    message_on_its_way();
    same_bits();
#ifdef MPICH_VERSION
    /* MPICH 4.0 over UCX's TCP hangs in MPI_Finalize if a late rank has answered the flush of
     * another rank before it began its own: the other rank then waits for the launcher, and does
     * not answer. Ranks that sleep do not answer, so no rank answers before its own flush. */
    sleep(1);
#endif
    MPI_Finalize();
    printf("rank %d of %d: %s\n", rank, ranks, wrong ? "wrong" : "all right");
    return wrong != 0;
}
