//! The UDP ports of a combiner towards its parent (rule 27.2 of `docs/spec`).

/// Ports from which a combiner sends ranks' packets; the ports of jobs follow them.
const RANK_PORTS: u16 = 1024;
/// The distance between the ports of the same rank in successive jobs: the most ranks below a
/// combiner. Hosts on the path merge packets between the same ports, which does not help if the
/// jobs differ.
const PORTS_PER_JOB: u16 = 64;

/// Rule 27.2: the port from which a combiner with this data port sends a rank's packets.
#[inline(always)]
pub const fn rank_port(base: u16, job: u16, rank: u16) -> u16 {
    base.wrapping_add(1 + place(job, rank))
}

/// Rule 27.2: the port at which a combiner with this data port takes a job's RESULTs to all.
#[inline(always)]
pub const fn port_for_all(base: u16, job: u16) -> u16 {
    base.wrapping_add(1 + RANK_PORTS).wrapping_add(job)
}

/// The data port of the combiner that sends a rank's packets, computed from their source port.
#[inline(always)]
pub const fn base_of(rank_port: u16, job: u16, rank: u16) -> u16 {
    rank_port.wrapping_sub(1 + place(job, rank))
}

#[inline(always)]
const fn place(job: u16, rank: u16) -> u16 {
    rank.wrapping_add(job.wrapping_mul(PORTS_PER_JOB)) % RANK_PORTS
}
