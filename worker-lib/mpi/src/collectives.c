#include "switchml_mpi.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Replaces `count` elements by their reduction over all ranks. */
static int reduce(MPI_Comm comm, switchml_communicator *job, void *data, int count,
                  const struct reduction *reduction)
{
    switchml_request *request = NULL;
    switchml_status status = switchml_all_reduce_start(job, data, (size_t)count, reduction->dtype,
                                                       reduction->op, &request);
    return status == SWITCHML_OK ? finish(comm, request) : error_of(comm, status);
}

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm)
{
    struct reduction reduction;
    switchml_communicator *job = NULL;
    if (count > 0 && reduction_of(type, op, &reduction))
        job = group_for(comm, count * reduction.size, true);
    if (job == NULL)
        return PMPI_Allreduce(send, receive, count, type, op, comm);
    if (send != MPI_IN_PLACE)
        memcpy(receive, send, count * reduction.size);
    return reduce(comm, job, receive, count, &reduction);
}

/* The network brings the sum to all ranks: ranks other than the root need memory for it. */
static int reduce_to(int root, MPI_Comm comm, switchml_communicator *job, const void *send,
                     void *receive, int count, const struct reduction *reduction)
{
    int rank = 0;
    size_t bytes = count * reduction->size;
    PMPI_Comm_rank(comm, &rank);
    if (rank == root) {
        if (send != MPI_IN_PLACE)
            memcpy(receive, send, bytes);
        return reduce(comm, job, receive, count, reduction);
    }
    void *place = malloc(bytes);
    if (place == NULL)
        PMPI_Abort(comm, MPI_ERR_NO_MEM);
    memcpy(place, send, bytes);
    int error = reduce(comm, job, place, count, reduction);
    free(place);
    return error;
}

int MPI_Reduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm)
{
    struct reduction reduction;
    switchml_communicator *job = NULL;
    if (count > 0 && reduction_of(type, op, &reduction))
        job = group_for(comm, count * reduction.size, true);
    if (job == NULL)
        return PMPI_Reduce(send, receive, count, type, op, root, comm);
    return reduce_to(root, comm, job, send, receive, count, &reduction);
}

/* Whether elements are contiguous: one of MPI's own types, without gaps. */
static bool is_plain(MPI_Datatype type, size_t size)
{
    int integers, addresses, types, combiner = MPI_COMBINER_NAMED;
    MPI_Aint lower, extent;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    PMPI_Type_get_extent(type, &lower, &extent);
    return combiner == MPI_COMBINER_NAMED && lower == 0 && extent == (MPI_Aint)size;
}

/* Broadcasts words of four bytes. */
static int broadcast(int root, MPI_Comm comm, switchml_communicator *job, void *data, size_t words)
{
    switchml_request *request = NULL;
    switchml_status status =
        switchml_broadcast_start(job, data, words, SWITCHML_I32, (uint32_t)root, &request);
    return status == SWITCHML_OK ? finish(comm, request) : error_of(comm, status);
}

/* Broadcasts through a buffer with packed elements. */
static int broadcast_packed(int root, MPI_Comm comm, switchml_communicator *job, void *data,
                            int count, MPI_Datatype type, size_t bytes)
{
    size_t words = (bytes + 3) / 4;
    int rank = 0, packed = 0, room = (int)(words * 4);
    PMPI_Comm_rank(comm, &rank);
    char *place = calloc(words, 4);
    if (place == NULL)
        PMPI_Abort(comm, MPI_ERR_NO_MEM);
    if (rank == root)
        PMPI_Pack(data, count, type, place, room, &packed, comm);
    int error = broadcast(root, comm, job, place, words);
    packed = 0;
    if (error == MPI_SUCCESS && rank != root)
        error = PMPI_Unpack(place, (int)bytes, &packed, data, count, type, comm);
    free(place);
    return error;
}

/* Ranks may describe the same elements by different types, so only the number of bytes counts. */
int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    int size = 0;
    switchml_communicator *job = NULL;
    if (count > 0 && PMPI_Type_size(type, &size) == MPI_SUCCESS && size > 0 &&
        (size_t)count <= INT32_MAX / (size_t)size - 3)
        job = group_for(comm, (size_t)count * size, true);
    if (job == NULL)
        return PMPI_Bcast(data, count, type, root, comm);
    size_t bytes = (size_t)count * size;
    if (bytes % 4 == 0 && (uintptr_t)data % 4 == 0 && is_plain(type, size))
        return broadcast(root, comm, job, data, bytes / 4);
    return broadcast_packed(root, comm, job, data, count, type, bytes);
}

int MPI_Finalize(void)
{
    groups_close();
    calls_end();
    return PMPI_Finalize();
}
