#include "switchml_mpi.h"

#include <pthread.h>
#include <stdio.h>

/* A request that never ends: testing it lets MPI make progress with its messages, in all versions.
 * (MPICH's MPI_Iprobe only looks at messages that have arrived.) */
static MPI_Request endless = MPI_REQUEST_NULL;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int query(void *state, MPI_Status *status)
{
    (void)state, (void)status;
    return MPI_SUCCESS;
}

static int release(void *state)
{
    (void)state;
    return MPI_SUCCESS;
}

static int cancel(void *state, int is_complete)
{
    (void)state, (void)is_complete;
    return MPI_SUCCESS;
}

static void serve_mpi(void)
{
    int is_over = 0;
    pthread_mutex_lock(&lock);
    if (endless == MPI_REQUEST_NULL)
        PMPI_Grequest_start(query, release, cancel, NULL, &endless);
    PMPI_Test(&endless, &is_over, MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&lock);
}

void calls_end(void)
{
    if (endless != MPI_REQUEST_NULL) {
        PMPI_Grequest_complete(endless);
        PMPI_Wait(&endless, MPI_STATUS_IGNORE);
    }
}

int finish(MPI_Comm comm, switchml_request *request)
{
    while (!switchml_wait_for(request, STRETCH))
        serve_mpi();
    return error_of(comm, switchml_wait(request));
}

int error_of(MPI_Comm comm, switchml_status status)
{
    if (status == SWITCHML_OK)
        return MPI_SUCCESS;
    int rank = 0;
    PMPI_Comm_rank(comm, &rank);
    fprintf(stderr, "switchml-mpi: rank %d: %s\n", rank, switchml_error_message());
    PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
    return MPI_ERR_OTHER;
}
