#include "switchml_mpi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Calls of fewer bytes are left to MPI, which is as fast or faster. So a communicator that makes
 * only small calls joins no job. */
#define FROM_BYTES (64 * 1024)

/* The attribute of a communicator: its job at the aggregator. */
struct group {
    switchml_communicator *job; /* NULL: could not join, or there is no aggregator */
    struct group *next;
};

/* What rank 0 of the communicator tells the other ranks about the job. */
struct place {
    char job[64];
    char aggregator[256];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups; /* of communicators that have not been freed */
static int attribute = MPI_KEYVAL_INVALID;

/* Leaves a job, whose ranks make no further calls. */
static void leave(struct group *group)
{
    if (group->job != NULL && switchml_close(group->job) == SWITCHML_FAILED)
        fprintf(stderr, "switchml-mpi: %s\n", switchml_error_message());
    group->job = NULL;
}

/* Called when a communicator is freed. */
static int forget(MPI_Comm comm, int keyval, void *value, void *extra)
{
    (void)comm, (void)keyval, (void)extra;
    struct group *group = value;
    pthread_mutex_lock(&lock);
    for (struct group **link = &groups; *link != NULL; link = &(*link)->next) {
        if (*link == group) {
            *link = group->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    leave(group);
    free(group);
    return MPI_SUCCESS;
}

void groups_close(void)
{
    pthread_mutex_lock(&lock);
    for (struct group *group = groups; group != NULL; group = group->next)
        leave(group);
    pthread_mutex_unlock(&lock);
}

/* Makes up a unique job name. */
static void name_job(char *name, size_t size)
{
    unsigned long long number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        number = (unsigned long long)(MPI_Wtime() * 1e9);
    snprintf(name, size, "mpi-%016llx", number);
}

/* Connects all ranks of the communicator. Returns whether all of them are connected. */
static bool connect_all(MPI_Comm comm, switchml_communicator **job)
{
    static bool was_said;
    struct place place = { "", "" };
    int rank = 0, ranks = 0;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    if (rank == 0) {
        const char *aggregator = getenv("SWITCHML_AGGREGATOR");
        name_job(place.job, sizeof place.job);
        if (aggregator != NULL)
            snprintf(place.aggregator, sizeof place.aggregator, "%s", aggregator);
    }
    PMPI_Bcast(&place, sizeof place, MPI_BYTE, 0, comm);
    if (place.aggregator[0] == '\0') {
        if (rank == 0 && !was_said)
            fprintf(stderr, "switchml-mpi: SWITCHML_AGGREGATOR is not set on rank 0, so MPI makes "
                            "all calls itself; give the aggregator's host or host:port\n");
        was_said = true;
        return false;
    }
    /* After this no rank needs MPI until it has connected: no rank of the communicator waits for
     * a message of this library's. */
    PMPI_Barrier(comm);
    switchml_settings settings = { .size = sizeof settings };
    settings.aggregator = place.aggregator;
    settings.job = place.job;
    settings.rank = (uint32_t)rank;
    settings.world_size = (uint32_t)ranks;
    bool is_well = switchml_connect(&settings, job) == SWITCHML_OK;
    /* The first rank that could not connect prints the reason, for all. */
    int failed = is_well ? ranks : rank, first = ranks;
    PMPI_Allreduce(&failed, &first, 1, MPI_INT, MPI_MIN, comm);
    bool all_well = first == ranks;
    if (rank == first)
        fprintf(stderr, "switchml-mpi: rank %d: %s; MPI makes this communicator's calls itself\n",
                rank, switchml_error_message());
    if (!all_well && is_well)
        switchml_close(*job);
    if (all_well && rank == 0 && !was_said)
        fprintf(stderr, "switchml-mpi: %d ranks sum up at %s\n", ranks, place.aggregator);
    was_said = true;
    return all_well;
}

static struct group *join(MPI_Comm comm)
{
    struct group *group = calloc(1, sizeof *group);
    if (group == NULL) {
        fprintf(stderr, "switchml-mpi: no memory is left\n");
        PMPI_Abort(comm, MPI_ERR_NO_MEM);
    }
    if (!connect_all(comm, &group->job))
        group->job = NULL;
    pthread_mutex_lock(&lock);
    group->next = groups;
    groups = group;
    pthread_mutex_unlock(&lock);
    PMPI_Comm_set_attr(comm, attribute, group);
    return group;
}

/* The communicator's attribute; NULL if it has none yet. */
static struct group *known(MPI_Comm comm)
{
    struct group *group = NULL;
    int is_there = 0;
    pthread_mutex_lock(&lock);
    if (attribute == MPI_KEYVAL_INVALID)
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &attribute, NULL);
    pthread_mutex_unlock(&lock);
    PMPI_Comm_get_attr(comm, attribute, &group, &is_there);
    return is_there ? group : NULL;
}

switchml_communicator *group_for(MPI_Comm comm, size_t bytes, bool may_join)
{
    int ranks = 0, is_inter = 0;
    if (bytes < FROM_BYTES)
        return NULL;
    if (comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS || is_inter)
        return NULL;
    PMPI_Comm_size(comm, &ranks);
    if (ranks < 2)
        return NULL;
    struct group *group = known(comm);
    if (group == NULL && may_join)
        group = join(comm);
    return group == NULL ? NULL : group->job;
}
