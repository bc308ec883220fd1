#include "switchml_mpi.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/*
 * A call in flight is a generalized request of MPI's. Only this library completes it, so every
 * function that waits for requests, or tests them, first completes the requests of calls that are
 * over.
 */

struct call {
    MPI_Comm comm;
    switchml_request *request; /* NULL: over, with `error` */
    MPI_Request mpi;
    int error;
    struct call *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct call *calls; /* that are not over */

static int query(void *state, MPI_Status *status)
{
    const struct call *call = state;
    PMPI_Status_set_elements(status, MPI_BYTE, 0);
    PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return call->error;
}

static int release(void *state)
{
    free(state);
    return MPI_SUCCESS;
}

/* Calls cannot be cancelled, since other ranks take part in them. */
static int cancel(void *state, int is_complete)
{
    (void)state, (void)is_complete;
    return MPI_SUCCESS;
}

int request_of(MPI_Comm comm, switchml_request *request, MPI_Request *mpi_request)
{
    struct call *call = malloc(sizeof *call);
    if (call == NULL)
        PMPI_Abort(comm, MPI_ERR_NO_MEM);
    *call = (struct call){ comm, request, MPI_REQUEST_NULL, MPI_SUCCESS, NULL };
    int error = PMPI_Grequest_start(query, release, cancel, call, &call->mpi);
    *mpi_request = call->mpi;
    pthread_mutex_lock(&lock);
    call->next = calls;
    calls = call;
    pthread_mutex_unlock(&lock);
    return error;
}

/* Completes the calls that are over. Returns whether any are left. */
static bool complete(void)
{
    pthread_mutex_lock(&lock);
    for (struct call **link = &calls; *link != NULL;) {
        struct call *call = *link;
        if (!switchml_is_done(call->request)) {
            link = &call->next;
            continue;
        }
        *link = call->next;
        call->error = error_of(call->comm, switchml_wait(call->request));
        call->request = NULL;
        PMPI_Grequest_complete(call->mpi);
    }
    bool is_any_left = calls != NULL;
    pthread_mutex_unlock(&lock);
    return is_any_left;
}

/* Waits for a moment; for a call of this library's if the program waits for one. */
static void pause_for(int count, const MPI_Request *requests)
{
    pthread_mutex_lock(&lock);
    for (struct call *call = calls; call != NULL; call = call->next) {
        for (int i = 0; i < count; i++) {
            if (requests[i] == call->mpi) {
                switchml_wait_for(call->request, STRETCH);
                pthread_mutex_unlock(&lock);
                return;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    sched_yield();
}

int MPI_Iallreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *mpi_request)
{
    struct reduction reduction;
    switchml_communicator *job = NULL;
    /* This call must not block, so it cannot join a job. */
    if (count > 0 && reduction_of(type, op, &reduction))
        job = group_for(comm, count * reduction.size, false);
    if (job == NULL)
        return PMPI_Iallreduce(send, receive, count, type, op, comm, mpi_request);
    if (send != MPI_IN_PLACE)
        memcpy(receive, send, count * reduction.size);
    switchml_request *request = NULL;
    switchml_status status = switchml_all_reduce_start(job, receive, (size_t)count,
                                                       reduction.dtype, reduction.op, &request);
    return status == SWITCHML_OK ? request_of(comm, request, mpi_request) : error_of(comm, status);
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    complete();
    return PMPI_Test(request, flag, status);
}

int MPI_Testall(int count, MPI_Request *requests, int *flag, MPI_Status *statuses)
{
    complete();
    return PMPI_Testall(count, requests, flag, statuses);
}

int MPI_Testany(int count, MPI_Request *requests, int *index, int *flag, MPI_Status *status)
{
    complete();
    return PMPI_Testany(count, requests, index, flag, status);
}

int MPI_Testsome(int count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses)
{
    complete();
    return PMPI_Testsome(count, requests, done, indices, statuses);
}

int MPI_Request_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
    complete();
    return PMPI_Request_get_status(request, flag, status);
}

/* While calls are in flight, these functions wait by testing repeatedly. */

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    int flag = 0;
    while (complete()) {
        int error = PMPI_Test(request, &flag, status);
        if (error != MPI_SUCCESS || flag)
            return error;
        pause_for(1, request);
    }
    return PMPI_Wait(request, status);
}

int MPI_Waitall(int count, MPI_Request *requests, MPI_Status *statuses)
{
    int flag = 0;
    while (complete()) {
        int error = PMPI_Testall(count, requests, &flag, statuses);
        if (error != MPI_SUCCESS || flag)
            return error;
        pause_for(count, requests);
    }
    return PMPI_Waitall(count, requests, statuses);
}

int MPI_Waitany(int count, MPI_Request *requests, int *index, MPI_Status *status)
{
    int flag = 0;
    while (complete()) {
        int error = PMPI_Testany(count, requests, index, &flag, status);
        if (error != MPI_SUCCESS || flag)
            return error;
        pause_for(count, requests);
    }
    return PMPI_Waitany(count, requests, index, status);
}

int MPI_Waitsome(int count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses)
{
    while (complete()) {
        int error = PMPI_Testsome(count, requests, done, indices, statuses);
        if (error != MPI_SUCCESS || *done != 0)
            return error;
        pause_for(count, requests);
    }
    return PMPI_Waitsome(count, requests, done, indices, statuses);
}
