"""Made by `cargo xtask gen` from `worker-lib/src/settings.rs`: change it there."""

from __future__ import annotations

import os
from typing import Sequence, TypedDict


class Settings(TypedDict, total=False):
    """Keyword arguments of `Communicator`.

    What is None or not given comes from the environment, as torchrun and srun set it, or is the
    default.

    aggregator: The control plane of each aggregator, with commas between them; several share
        the work. Values travel over the same IP version. Not given: SWITCHML_AGGREGATOR, or none:
        the ranks serve each other, and meet at MASTER_ADDR:MASTER_PORT.
    meeting: The place where ranks meet, if they have no aggregator, or no name for their job:
        an address of rank 0's host that all others reach, with a port that is free there, and that
        no other job uses. Not given: SWITCHML_MEETING, or MASTER_ADDR:MASTER_PORT.
    job: The job's name, the same on all ranks. As long as the job runs, no other job may have
        it at these aggregators. Not given: SWITCHML_JOB, or TORCHELASTIC_RUN_ID, or Slurm's job and
        step, or a name that rank 0 makes up.
    rank: This process's rank, 0 to world size - 1, unique in the job. torchrun sets it. Not
        given: RANK, or SLURM_PROCID, if WORLD_SIZE is not set either.
    world_size: The number of ranks. torchrun sets it. Not given: WORLD_SIZE, or
        SLURM_STEP_NUM_TASKS, if RANK is not set either.
    deadline: A call fails if the aggregator has given no answer for this time. Not given:
        SWITCHML_DEADLINE, or 5.
    timeout: A call fails if it has waited for this time for ranks that are connected; the error
        names them. It must be longer than the time by which ranks differ when they call. Not given:
        SWITCHML_TIMEOUT, or 1800.
    join_timeout: How long to wait for the other ranks to join. Not given:
        SWITCHML_JOIN_TIMEOUT, or 60.
    standstill: How long this process may be stopped, as in a debugger, before the other ranks
        treat it as dead. Its host has to answer meanwhile; a host that does not is dead within
        seconds. Not given: SWITCHML_STANDSTILL, or the timeout.
    tls_fingerprint: SHA-256 fingerprint of the aggregator's certificate. Connections then use
        TLS. Not given: SWITCHML_TLS_FINGERPRINT.
    tls_ca: File of the CAs, in PEM, that sign the aggregator's certificate, instead of a
        fingerprint. Connections then use TLS. Not given: SWITCHML_TLS_CA.
    tls_cert: File with this side's certificate, in PEM, if the aggregator asks for one. Not
        given: SWITCHML_TLS_CERT.
    tls_key: File with the private key of that certificate, in PEM. Not given: SWITCHML_TLS_KEY.
    token_file: File with a job token, if the aggregator asks for one. Not given:
        SWITCHML_TOKEN_FILE, or the token in SWITCHML_TOKEN.
    data_threads: Most threads for large calls. All ranks get the smallest number that any of
        them asks for, rounded down to a power of two, or fewer if the aggregator has few slots
        left. Not given: SWITCHML_DATA_THREADS, or one for each processor, shared by the ranks of
        the host, up to the number that fills the link.
    weights: The parts of large calls that several aggregators take, in proportion: a number of
        1 or more for each aggregator, in their order. All ranks must give the same. Not given:
        SWITCHML_WEIGHTS, or computed from the links.
    local_sums: Whether this rank adds up with the other ranks of its host before it sends. They
        have to share a network namespace and a user. Results are the same either way. Not given:
        SWITCHML_LOCAL_SUMS, or yes.
    own_hosts: Whether ranks' hosts help aggregators that are slower than a ring of the ranks:
        each process then adds up a part of every call. With weights, packet tags, TLS, a token or
        RDMA they do not. All ranks must give the same. Not given: SWITCHML_OWN_HOSTS, or yes.
    rdma: Whether packets travel over RDMA (RoCEv2) instead of sockets. The host needs an RDMA
        device at the link and libibverbs, and the aggregator has to accept it. Results are the same
        either way, and a job may have ranks of both kinds. Not given: SWITCHML_RDMA, or no.
    summary: Whether rank 0 of the process's first job writes a line about it to standard error:
        how many ranks and hosts there are, how they are joined, and what would make calls faster.
        Not given: SWITCHML_SUMMARY, or yes.
    """

    aggregator: str | None
    meeting: str | None
    job: str | None
    rank: int | None
    world_size: int | None
    deadline: float | None
    timeout: float | None
    join_timeout: float | None
    standstill: float | None
    tls_fingerprint: str | None
    tls_ca: str | os.PathLike[str] | None
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    token_file: str | os.PathLike[str] | None
    data_threads: int | None
    weights: Sequence[int] | None
    local_sums: bool | None
    own_hosts: bool | None
    rdma: bool | None
    summary: bool | None
