/*
 * MPI's collectives through an in-network aggregator, for unchanged programs: this library
 * intercepts a program's calls of MPI by the profiling interface (names with PMPI_).
 *
 * docs/mpi.md describes it. The files:
 *
 *   group.c        jobs of communicators at an aggregator: joining, leaving
 *   types.c        MPI's types and operators in this project's terms
 *   call.c         calls in flight, and waiting for them while MPI makes progress
 *   collectives.c  blocking calls: Allreduce, Reduce, Bcast
 *   requests.c     Iallreduce, and all functions that wait for requests
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef SWITCHML_MPI_H
#define SWITCHML_MPI_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <switchml.h>

/* Seconds to wait for a call at a time: the longest delay for MPI's own messages. */
#define STRETCH 0.001

/* ---- group.c ---- */

/* The communicator's job for a call of `bytes` bytes; NULL if MPI makes the call itself. Ranks that
 * are in the same call all get the same answer. Only a call that may block, and that all ranks
 * make, may join. */
switchml_communicator *group_for(MPI_Comm comm, size_t bytes, bool may_join);

/* Leaves all jobs. */
void groups_close(void);

/* ---- types.c ---- */

/* An all-reduce in this project's terms. */
struct reduction {
    switchml_dtype dtype;
    switchml_op op;
    size_t size; /* bytes of an element */
};

/* Whether the network offers a reduction; if so, fills it in. All ranks get the same answer,
 * because all give the same predefined type and operator. */
bool reduction_of(MPI_Datatype type, MPI_Op op, struct reduction *reduction);

/* ---- call.c ---- */

/* Waits for a call, and lets MPI make progress meanwhile: other ranks may make this call only once
 * they have a message that is in flight from here. Returns MPI's error code. */
int finish(MPI_Comm comm, switchml_request *request);

/* Called before MPI ends. */
void calls_end(void);

/* MPI's error code for the library's last error on this thread, which is printed to standard error
 * and passed to the communicator's error handler; MPI_SUCCESS if there is no error. */
int error_of(MPI_Comm comm, switchml_status status);

/* ---- requests.c ---- */

/* A request of MPI's that ends with the call, and owns `request`. */
int request_of(MPI_Comm comm, switchml_request *request, MPI_Request *mpi_request);

#endif
