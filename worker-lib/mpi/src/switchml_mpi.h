/*
 * MPI's collectives through an in-network aggregator, for programs that know nothing of it: this
 * library stands between a program and its MPI by the profiling interface (names with PMPI_).
 *
 * docs/mpi.md says what it does. In here:
 *
 *   group.c        which communicators are jobs at an aggregator, joining, leaving
 *   types.c        MPI's types and operators in this project's terms
 *   call.c         calls in flight, and waiting for them while MPI goes on
 *   collectives.c  what blocks: Allreduce, Reduce, Bcast
 *   requests.c     Iallreduce, and all that waits for requests
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef SWITCHML_MPI_H
#define SWITCHML_MPI_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <switchml.h>

/* How long to wait for a call at a stretch: MPI's own messages wait as long, in the worst case. */
#define STRETCH 0.001

/* ---- group.c ---- */

/* The job that a communicator is, for a call of so many bytes; NULL if MPI makes the call itself.
 * Ranks that are in the same call all get the same answer. Only a call that may block, and that all
 * ranks make, may join. */
switchml_communicator *group_for(MPI_Comm comm, size_t bytes, bool may_join);

/* Leaves all jobs. */
void groups_close(void);

/* ---- types.c ---- */

/* What an all-reduce is in this project's terms. */
struct reduction {
    switchml_dtype dtype;
    switchml_op op;
    size_t size; /* bytes of an element */
};

/* Whether the network offers a reduction; if so, which. All ranks get the same answer, because all
 * give the same predefined type and operator. */
bool reduction_of(MPI_Datatype type, MPI_Op op, struct reduction *reduction);

/* ---- call.c ---- */

/* Waits for a call, and serves MPI meanwhile: other ranks may only come to this call once they have
 * got a message that is still on its way from here. MPI's error code. */
int finish(MPI_Comm comm, switchml_request *request);

/* MPI is about to end. */
void calls_end(void);

/* MPI's error code for what the library said last on this thread, which goes to the standard error
 * and the communicator's error handler, unless all is well. */
int error_of(MPI_Comm comm, switchml_status status);

/* ---- requests.c ---- */

/* A request of MPI's that ends with the call, and owns `request`. */
int request_of(MPI_Comm comm, switchml_request *request, MPI_Request *mpi_request);

#endif
