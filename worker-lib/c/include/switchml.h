/*
 * All-reduce through an in-network aggregator. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Ranks of a job hand in arrays, a switch adds them up on their way, and every rank gets the same
 * sums back. Every rank must make the same calls in the same order, with the same operator, element
 * type and number of elements. examples/all_reduce.c shows all of it; link with -lswitchml.
 *
 * Who owns what: arrays are the caller's, always. A communicator and a request belong to the caller
 * from the function that makes them until the one that ends them (switchml_close, switchml_wait).
 * Strings that are passed in are copied.
 *
 * Which calls may block: switchml_connect, switchml_all_reduce, switchml_broadcast,
 * switchml_barrier, switchml_wait, switchml_wait_for and switchml_close. Each returns within the
 * deadline once the aggregator gives no answer, and within the timeouts in any case; none of the
 * others waits for the network.
 *
 * Threads: any thread may call anything, and several may use one communicator at once, as long as
 * the order of its calls is the same on all ranks.
 *
 * Failures: SWITCHML_INVALID changed nothing. SWITCHML_FAILED is for good: every later call on that
 * communicator fails at once with the same error, the other ranks are told, and arrays of calls
 * that did not succeed hold partial results. What remains is to close it. switchml_error_message
 * says in one line what happened, and switchml_error_ranks which ranks are at fault.
 */


#ifndef SWITCHML_H
#define SWITCHML_H

/* Written by cbindgen from src/: cargo xtask gen */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Bytes of a unique id.
 */
#define SWITCHML_UNIQUE_ID_BYTES 128

/**
 * What a function returns.
 */
typedef enum switchml_status {
  /**
   * Done.
   */
  SWITCHML_OK = 0,
  /**
   * The arguments or settings make no sense, or the reduction is not offered. Nothing was
   * changed.
   */
  SWITCHML_INVALID = 1,
  /**
   * The communicator failed, for good; or there is none.
   */
  SWITCHML_FAILED = 2,
} switchml_status;

/**
 * A rank's membership in a job.
 */
typedef struct switchml_communicator switchml_communicator;

/**
 * A call in flight.
 */
typedef struct switchml_request switchml_request;

/**
 * Yes or no: SWITCHML_YES, SWITCHML_NO, or SWITCHML_DEFAULT, which is 0.
 */
typedef uint32_t switchml_switch;

/**
 * How to connect. What is zero or null comes from the environment, as torchrun and srun set it, or
 * is the default: `{ .size = sizeof(switchml_settings) }` takes all from there.
 */
typedef struct switchml_settings {
  /**
   * `sizeof(switchml_settings)`, as in `switchml_settings settings = { .size = sizeof settings
   * };`: a library that is newer than the program knows by it which settings the program has.
   */
  size_t size;
  /**
   * Where ranks meet, instead of meeting: the SWITCHML_UNIQUE_ID_BYTES bytes that
   * switchml_unique_id gave one of them, or null.
   */
  const uint8_t *unique_id;
  /**
   * The control plane of each aggregator, with commas between them; several share the work.
   * Values travel over the same IP version. Text: host, host:port, an IP address or [IPv6]:port.
   * Null: SWITCHML_AGGREGATOR, or none: the ranks serve each other, and meet at
   * MASTER_ADDR:MASTER_PORT.
   */
  const char *aggregator;
  /**
   * The place where ranks meet, if they have no aggregator, or no name for their job: an address
   * of rank 0's host that all others reach, with a port that is free there, and that no other
   * job uses. Text: host:port, IP:port or [IPv6]:port. Null: SWITCHML_MEETING, or
   * MASTER_ADDR:MASTER_PORT.
   */
  const char *meeting;
  /**
   * The job's name, the same on all ranks. As long as the job runs, no other job may have it at
   * these aggregators. Text: a name. Null: SWITCHML_JOB, or TORCHELASTIC_RUN_ID, or Slurm's job
   * and step, or a name that rank 0 makes up.
   */
  const char *job;
  /**
   * This process's rank, 0 to world size - 1, unique in the job. torchrun sets it. If world_size
   * is 0, it does not count.
   */
  uint32_t rank;
  /**
   * The number of ranks. torchrun sets it. 1 to 1024. 0: WORLD_SIZE, or SLURM_STEP_NUM_TASKS, if
   * RANK is not set either.
   */
  uint32_t world_size;
  /**
   * A call fails if the aggregator has given no answer for this time. In seconds, 0.1 or more.
   * 0: SWITCHML_DEADLINE, or 5.
   */
  double deadline;
  /**
   * A call fails if it has waited for this time for ranks that are connected; the error names
   * them. It must be longer than the time by which ranks differ when they call. In seconds, 0.1
   * or more. 0: SWITCHML_TIMEOUT, or 1800.
   */
  double timeout;
  /**
   * How long to wait for the other ranks to join. In seconds, 0.1 or more. 0:
   * SWITCHML_JOIN_TIMEOUT, or 60.
   */
  double join_timeout;
  /**
   * How long this process may be stopped, as in a debugger, before the other ranks treat it as
   * dead. Its host has to answer meanwhile; a host that does not is dead within seconds. In
   * seconds, 0.1 or more. 0: SWITCHML_STANDSTILL, or the timeout.
   */
  double standstill;
  /**
   * SHA-256 fingerprint of the aggregator's certificate. Connections then use TLS. Text: sha256:
   * and 64 hexadecimal digits. Null: SWITCHML_TLS_FINGERPRINT.
   */
  const char *tls_fingerprint;
  /**
   * File of the CAs, in PEM, that sign the aggregator's certificate, instead of a fingerprint.
   * Connections then use TLS. Null: SWITCHML_TLS_CA.
   */
  const char *tls_ca;
  /**
   * File with this side's certificate, in PEM, if the aggregator asks for one. Null:
   * SWITCHML_TLS_CERT.
   */
  const char *tls_cert;
  /**
   * File with the private key of that certificate, in PEM. Null: SWITCHML_TLS_KEY.
   */
  const char *tls_key;
  /**
   * File with a job token, if the aggregator asks for one. Null: SWITCHML_TOKEN_FILE, or the
   * token in SWITCHML_TOKEN.
   */
  const char *token_file;
  /**
   * Most threads for large calls. All ranks get the smallest number that any of them asks for,
   * rounded down to a power of two, or fewer if the aggregator has few slots left. 1 to 8. 0:
   * SWITCHML_DATA_THREADS, or one for each processor, shared by the ranks of the host, up to the
   * number that fills the link.
   */
  uint32_t data_threads;
  /**
   * The parts of large calls that several aggregators take, in proportion: a number of 1 or more
   * for each aggregator, in their order. All ranks must give the same. Text: numbers of 1 or
   * more, with commas between them. Null: SWITCHML_WEIGHTS, or computed from the links.
   */
  const char *weights;
  /**
   * Whether this rank adds up with the other ranks of its host before it sends. They have to
   * share a network namespace and a user. Results are the same either way. SWITCHML_DEFAULT:
   * SWITCHML_LOCAL_SUMS, or yes.
   */
  switchml_switch local_sums;
  /**
   * Whether ranks' hosts help aggregators that are slower than a ring of the ranks: each process
   * then adds up a part of every call. With weights, packet tags, TLS, a token or RDMA they do
   * not. All ranks must give the same. SWITCHML_DEFAULT: SWITCHML_OWN_HOSTS, or yes.
   */
  switchml_switch own_hosts;
  /**
   * Whether packets travel over RDMA (RoCEv2) instead of sockets. The host needs an RDMA device
   * at the link and libibverbs, and the aggregator has to accept it. Results are the same either
   * way, and a job may have ranks of both kinds. SWITCHML_DEFAULT: SWITCHML_RDMA, or no.
   */
  switchml_switch rdma;
  /**
   * Whether rank 0 of the process's first job writes a line about it to standard error: how many
   * ranks and hosts there are, how they are joined, and what would make calls faster.
   * SWITCHML_DEFAULT: SWITCHML_SUMMARY, or yes.
   */
  switchml_switch summary;
} switchml_settings;

/**
 * Type of elements: SWITCHML_F32 and so on.
 */
typedef uint32_t switchml_dtype;

/**
 * What an all-reduce does: SWITCHML_SUM and so on.
 */
typedef uint32_t switchml_op;

/**
 * IEEE 754 binary32.
 */
#define SWITCHML_F32 0

/**
 * IEEE 754 binary64.
 */
#define SWITCHML_F64 1

/**
 * IEEE 754 binary16.
 */
#define SWITCHML_F16 2

/**
 * The upper half of a binary32.
 */
#define SWITCHML_BF16 3

/**
 * Two's complement, 32 bits.
 */
#define SWITCHML_I32 4

/**
 * Two's complement, 64 bits: sums and broadcasts.
 */
#define SWITCHML_I64 5

/**
 * The sum; integers wrap around. Infinities and NaN stay where they are in up to 1024 elements of
 * other types than binary64. Otherwise one makes all elements of its packet NaN.
 */
#define SWITCHML_SUM 0

/**
 * The sum divided by the number of ranks; not of integers.
 */
#define SWITCHML_AVG 1

/**
 * The largest; a NaN of any rank wins. Not of binary64.
 */
#define SWITCHML_MAX 2

/**
 * The smallest; a NaN of any rank wins. Not of binary64.
 */
#define SWITCHML_MIN 3

/**
 * The sum in 16 bits an element: half the packets, less precise. Of binary32, binary16 and the
 * upper half of a binary32.
 */
#define SWITCHML_SUM16 4

/**
 * The average in 16 bits an element. Of the same types.
 */
#define SWITCHML_AVG16 5

/**
 * The sum in 8 bits an element: a quarter of the packets, and errors that are zero on average. Of
 * the same types. Among more than 32 ranks it takes 16 bits.
 */
#define SWITCHML_SUM8 6

/**
 * The average in 8 bits an element. As SWITCHML_SUM8.
 */
#define SWITCHML_AVG8 7

/**
 * What the environment says, or the default.
 */
#define SWITCHML_DEFAULT 0

/**
 * Yes.
 */
#define SWITCHML_YES 1

/**
 * No.
 */
#define SWITCHML_NO 2

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes 128 bytes for one job without an aggregator. The process that calls this is one of its
 * ranks, and hands them to all others, which give them as unique_id.
 *
 * # Safety
 * id points to 128 bytes.
 */
enum switchml_status switchml_unique_id(uint8_t *id);

/**
 * Joins a job and waits until all its ranks have. May block, for join_timeout at most.
 *
 * settings may be null: all from the environment. *communicator is the caller's until
 * switchml_close, and null if this fails.
 *
 * # Safety
 * settings is null or points to `size` bytes of settings whose strings are null or end with a zero
 * byte, and whose unique_id is null or points to that many bytes; communicator points to a
 * pointer.
 */
enum switchml_status switchml_connect(const struct switchml_settings *settings,
                                      struct switchml_communicator **communicator);

/**
 * This process's rank.
 *
 * # Safety
 * communicator is one of switchml_connect that was not closed.
 */
uint32_t switchml_rank(const struct switchml_communicator *communicator);

/**
 * Number of ranks.
 *
 * # Safety
 * As switchml_rank.
 */
uint32_t switchml_world_size(const struct switchml_communicator *communicator);

/**
 * Replaces count elements at data by their reduction over all ranks, the same bits on every rank.
 * Blocks until it is here.
 *
 * # Safety
 * communicator as in switchml_rank; data points to count elements of dtype, aligned as C aligns
 * them, that nobody else touches until this returns.
 */
enum switchml_status switchml_all_reduce(const struct switchml_communicator *communicator,
                                         void *data,
                                         size_t count,
                                         switchml_dtype dtype,
                                         switchml_op op);

/**
 * Replaces count elements at data by those of rank root, on every rank. Blocks until they are
 * here.
 *
 * # Safety
 * As switchml_all_reduce.
 */
enum switchml_status switchml_broadcast(const struct switchml_communicator *communicator,
                                        void *data,
                                        size_t count,
                                        switchml_dtype dtype,
                                        uint32_t root);

/**
 * Replaces this rank's part of count elements at data by its reduction over all ranks; what the
 * other parts hold then is not specified. Rank r's part of n elements is n * r / world_size up to
 * n * (r + 1) / world_size, both rounded down. Blocks until it is here.
 *
 * # Safety
 * As switchml_all_reduce.
 */
enum switchml_status switchml_reduce_scatter(const struct switchml_communicator *communicator,
                                             void *data,
                                             size_t count,
                                             switchml_dtype dtype,
                                             switchml_op op);

/**
 * Replaces each rank's part of count elements at data, as of switchml_reduce_scatter, by what that
 * rank has there. Blocks until all are here.
 *
 * # Safety
 * As switchml_all_reduce.
 */
enum switchml_status switchml_all_gather(const struct switchml_communicator *communicator,
                                         void *data,
                                         size_t count,
                                         switchml_dtype dtype);

/**
 * Blocks until every rank has called it.
 *
 * # Safety
 * As switchml_rank.
 */
enum switchml_status switchml_barrier(const struct switchml_communicator *communicator);

/**
 * Starts an all-reduce and returns at once. Any number may be in flight; they run in the order of
 * their calls, overlapping. *request is the caller's until switchml_wait, and null if this fails.
 *
 * # Safety
 * As switchml_all_reduce, but nobody else touches the elements until switchml_wait has returned;
 * request points to a pointer.
 */
enum switchml_status switchml_all_reduce_start(const struct switchml_communicator *communicator,
                                               void *data,
                                               size_t count,
                                               switchml_dtype dtype,
                                               switchml_op op,
                                               struct switchml_request **request);

/**
 * Starts a broadcast and returns at once, as switchml_all_reduce_start.
 *
 * # Safety
 * As switchml_all_reduce_start.
 */
enum switchml_status switchml_broadcast_start(const struct switchml_communicator *communicator,
                                              void *data,
                                              size_t count,
                                              switchml_dtype dtype,
                                              uint32_t root,
                                              struct switchml_request **request);

/**
 * Starts a reduce-scatter and returns at once, as switchml_all_reduce_start.
 *
 * # Safety
 * As switchml_all_reduce_start.
 */
enum switchml_status switchml_reduce_scatter_start(const struct switchml_communicator *communicator,
                                                   void *data,
                                                   size_t count,
                                                   switchml_dtype dtype,
                                                   switchml_op op,
                                                   struct switchml_request **request);

/**
 * Starts an all-gather and returns at once, as switchml_all_reduce_start.
 *
 * # Safety
 * As switchml_all_reduce_start.
 */
enum switchml_status switchml_all_gather_start(const struct switchml_communicator *communicator,
                                               void *data,
                                               size_t count,
                                               switchml_dtype dtype,
                                               struct switchml_request **request);

/**
 * Whether switchml_wait would return at once.
 *
 * # Safety
 * request is one of a start that was not waited for; no other thread uses it.
 */
bool switchml_is_done(struct switchml_request *request);

/**
 * Blocks until the call is over, but no longer than so many seconds; whether it is over, so that
 * switchml_wait would return at once. Less than 0, and what is no number, counts as 0.
 *
 * # Safety
 * As switchml_is_done.
 */
bool switchml_wait_for(struct switchml_request *request, double seconds);

/**
 * Blocks until the call is over, and ends the request, whether or not the call succeeded.
 *
 * # Safety
 * As switchml_is_done; the request is not used again.
 */
enum switchml_status switchml_wait(struct switchml_request *request);

/**
 * Waits for the calls in flight, leaves the job, and ends the communicator, whether or not it
 * succeeds. Blocks until then. Requests may be waited for later.
 *
 * # Safety
 * As switchml_rank; nobody uses the communicator meanwhile or later.
 */
enum switchml_status switchml_close(struct switchml_communicator *communicator);

/**
 * What failed last on this thread, in one line: what was given, what is allowed, what to do. The
 * string is the library's, and lasts until another of its functions fails on this thread. Empty if
 * none has.
 */
const char *switchml_error_message(void);

/**
 * How many ranks are at fault for what failed last on this thread: missing, gone, or those that
 * disagree with the rest; 0 if that is not known. Up to capacity of them are written to ranks,
 * which may be null if capacity is 0.
 *
 * # Safety
 * ranks points to room for capacity numbers.
 */
size_t switchml_error_ranks(uint32_t *ranks, size_t capacity);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SWITCHML_H */
