//! An aggregator as operators see it, in the terminal, on its page and as metrics: its answers to
//! `Status` and `ListJobs`, in readable form.

pub mod slots;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use switchml_control::{
    Copies, EndedJob, Ending, JobState, JobStatus, ListJobsReply, MemberStatus, Port, Refusal,
    Security, StatusReply, Tenant, Throughput, Times, Unused, shown_name,
};
use switchml_protocol::bpf_types::times;

/// An aggregator.
#[derive(Debug, PartialEq, Serialize)]
pub struct View {
    /// Name of its host.
    pub host: String,
    /// Seconds since the daemon was started.
    pub uptime_seconds: f64,
    /// Version of its program.
    pub version: String,
    /// The commit that its program was built from.
    pub commit: String,
    /// Its rules for clients.
    pub security: SecurityView,
    /// `xdp`, `software`, `tofino` or `bmv2`.
    pub data_plane: String,
    /// One line on how packets reach it.
    pub attachment: String,
    /// Root or combiner.
    pub role: Role,
    /// The interfaces that it takes frames from.
    pub ports: Vec<PortView>,
    /// Its jobs: by number, then those that wait, by name.
    pub jobs: Vec<JobView>,
    /// Why its jobs are not known, if so: a combiner's parent knows them.
    pub jobs_unknown: Option<String>,
    /// Jobs that have started; a root's only.
    pub jobs_started: u64,
    /// Jobs that have ended, by how.
    pub jobs_ended: Vec<EndingCount>,
    /// The jobs that ended last, the latest first.
    pub ended_lately: Vec<EndedView>,
    /// The resources of tenants.
    pub tenants: Vec<TenantView>,
    /// Packets by outcome.
    pub packets: Vec<PacketCount>,
    /// Connections and requests that were refused.
    pub refusals: Vec<RefusalCount>,
    /// How long rounds took from their first contribution to their last, for a sample of rounds.
    pub round_times: Option<TimesView>,
    /// Time from contributions to their results, as the ranks report it; a root's only.
    pub round_trips: Option<TimesView>,
}

/// Jobs that ended in the same way.
#[derive(Debug, PartialEq, Serialize)]
pub struct EndingCount {
    /// Name of the ending.
    pub ending: String,
    /// Description of the ending.
    pub help: String,
    /// Number of jobs.
    pub jobs: u64,
}

/// A job that has ended.
#[derive(Debug, PartialEq, Serialize)]
pub struct EndedView {
    /// The job's name.
    pub name: String,
    /// The job's number; none if it ended before all ranks had joined.
    pub number: Option<u32>,
    /// Number of its ranks.
    pub world_size: u32,
    /// Name of the ending.
    pub ending: String,
    /// Why it ended, if not all ranks left normally.
    pub reason: Option<String>,
    /// How long ago it ended, in seconds.
    pub ago_seconds: f64,
}

/// The resources of a tenant.
#[derive(Debug, PartialEq, Serialize)]
pub struct TenantView {
    /// The tenant's name.
    pub name: String,
    /// The tenant's jobs.
    pub jobs: u32,
    /// World sizes of these jobs.
    pub ranks: u32,
    /// Slots of these jobs.
    pub slots: u32,
}

/// An aggregator's rules for clients.
#[derive(Debug, PartialEq, Serialize)]
pub struct SecurityView {
    /// Connections are by TLS.
    pub tls: bool,
    /// Clients need a certificate.
    pub client_certificates: bool,
    /// Ranks join with job tokens.
    pub tokens: bool,
    /// When the control plane's certificate expires, in seconds since 1970.
    pub certificate_expires: Option<u64>,
}

/// Times by length.
#[derive(Debug, PartialEq, Serialize)]
pub struct TimesView {
    /// The buckets, in order; none includes the times of earlier ones.
    pub buckets: Vec<Bucket>,
    /// Sum of all times.
    pub sum_seconds: f64,
}

/// Times of about the same length.
#[derive(Debug, PartialEq, Serialize)]
pub struct Bucket {
    /// Upper bound of the times; none in the last bucket, which has all others.
    pub below_seconds: Option<f64>,
    /// Number of times.
    pub count: u64,
}

/// An aggregator's role in a tree, and its memory for packets.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The root, which computes results.
    Root {
        /// Slots of all jobs together.
        slots: u32,
        /// Slots that no job has.
        slots_free: u32,
    },
    /// A combiner, which adds up contributions on the way to its parent.
    Combiner {
        /// The parent's control plane.
        parent: String,
        /// Cells for all jobs.
        cells: u32,
    },
}

/// An interface.
#[derive(Debug, PartialEq, Serialize)]
pub struct PortView {
    /// The interface's name.
    pub name: String,
    /// The hook that takes frames.
    pub hook: String,
    /// Faults that keep frames from the aggregator, or its answers from their ranks.
    pub faults: Vec<String>,
    /// Speed of the link, in bits per second; none if there is no link, or the driver does not
    /// tell.
    pub link_speed: Option<u64>,
    /// Bytes of the frames received.
    pub received_bytes: u64,
    /// Bytes of the frames sent.
    pub sent_bytes: u64,
    /// Frames that came in damaged, or that driver or kernel dropped.
    pub receive_drops: u64,
    /// Frames that were not sent.
    pub send_drops: u64,
    /// Frames that native XDP could not send.
    pub xdp_drops: u64,
}

/// A job.
#[derive(Debug, PartialEq, Serialize)]
pub struct JobView {
    /// The job's name.
    pub name: String,
    /// The job's number; none while ranks are missing.
    pub number: Option<u32>,
    /// `waiting`, `assigned`, `started` or `aborted`.
    pub state: &'static str,
    /// Why it was aborted, if so.
    pub reason: Option<String>,
    /// Seconds since the first of its present ranks joined, or came back to a restarted daemon.
    pub age_seconds: f64,
    /// Throughput; none if the job does not run, or the data plane does not show it.
    pub throughput: Option<ThroughputView>,
    /// Number of its aggregators, of which this is one.
    pub aggregators: u32,
    /// The part of large calls that this one takes, 0 to 1; none until ranks have told.
    pub share: Option<f64>,
    /// The job's other aggregators, as its ranks were given them; not all if there are many.
    pub other_aggregators: Vec<String>,
    /// The lost aggregator in whose place the job goes on here.
    pub in_place_of: Option<String>,
    /// Number of its ranks, including those that have not joined yet.
    pub world_size: u32,
    /// Slots of all its data threads together.
    pub slots: u32,
    /// Lanes of a full chunk; 0 until the job starts.
    pub lanes: u32,
    /// The ranks without which it does not go on: they have not joined, are not ready, were lost
    /// and may come back, or do not contribute to a round that others have begun.
    pub waits_for: Vec<u32>,
    /// The action that it waits for; none if it waits for no rank.
    pub waits_for_them: Option<&'static str>,
    /// How long it has waited for ranks to join or to contribute, in seconds.
    pub waiting_seconds: Option<f64>,
    /// Which ranks make it slow, and why; none if it is not known that some do.
    pub slow: Option<String>,
    /// The protocol's options that it does not use.
    pub unused: Vec<UnusedView>,
    /// The ranks that have joined.
    pub members: Vec<MemberView>,
}

/// A capability that a job does not use.
#[derive(Debug, PartialEq, Serialize)]
pub struct UnusedView {
    /// The capability's name in the specification.
    pub capability: String,
    /// Why the job does not use it.
    pub reason: String,
}

/// A job's throughput: the bytes of results that each of its ranks gets.
#[derive(Debug, PartialEq, Serialize)]
pub struct ThroughputView {
    /// Bytes since the job was started.
    pub bytes: u64,
    /// Length of a period.
    pub period_seconds: f64,
    /// Rates in the last periods, the oldest first.
    pub bytes_per_second: Vec<u64>,
}

/// A rank.
#[derive(Debug, PartialEq, Serialize)]
pub struct MemberView {
    /// The rank's number.
    pub rank: u32,
    /// Address of its control connection.
    pub address: String,
    /// Name of the rank's host; empty if the rank did not tell.
    pub host: String,
    /// Name of the rank's combiner; empty if there is none.
    pub rack: String,
    /// Whether the rank has left the job.
    pub left: bool,
    /// Whether the rank is connected.
    pub here: bool,
    /// How results to all reach the rank, and why so; `None` until it is ready.
    pub results: Option<&'static str>,
    /// Total time that rounds of the running job have lacked its contribution, in seconds. Waits of
    /// less than half a second may be missing.
    pub waited_for_seconds: f64,
    /// How long after other ranks' contributions its own have come lately, in seconds; 0 if it is
    /// not later than others.
    pub late_seconds: f64,
    /// Contributions sent, all transmissions counted, as the rank has told.
    pub sent: u64,
    /// Those of them that were sent again.
    pub resent: u64,
    /// PENDING answers: it asked for a result that others had not contributed to.
    pub pending: u64,
    /// Contributions and results that were lost.
    pub lost: u64,
}

/// Packets with the same outcome.
#[derive(Debug, PartialEq, Serialize)]
pub struct PacketCount {
    /// Name of the outcome.
    pub outcome: String,
    /// Description of the outcome.
    pub help: String,
    /// Number of packets.
    pub packets: u64,
}

/// Connections or requests that were refused for the same reason.
#[derive(Debug, PartialEq, Serialize)]
pub struct RefusalCount {
    /// Name of the reason.
    pub reason: String,
    /// Description of the reason.
    pub help: String,
    /// Number of refusals.
    pub times: u64,
}

impl View {
    /// The view from an aggregator's answers; the second may be the reason for which there is none.
    pub fn new(status: StatusReply, jobs: Result<ListJobsReply, String>) -> Self {
        let (jobs, jobs_unknown) = match jobs {
            Ok(list) => (list.jobs, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let role = match status.parent.as_str() {
            "" => Role::Root { slots: status.slots_total, slots_free: status.slots_free },
            parent => Role::Combiner { parent: parent.to_owned(), cells: status.cells },
        };
        let packets = status.counters.into_iter().map(|counter| PacketCount {
            outcome: counter.name,
            help: counter.help,
            packets: counter.packets,
        });
        let refusals = status.refusals.into_iter();
        let refusals =
            refusals.map(|Refusal { reason, help, times }| RefusalCount { reason, help, times });
        let ended = status.jobs_ended.into_iter();
        let ended = ended.map(|Ending { ending, help, jobs }| EndingCount { ending, help, jobs });
        let tenants = status.tenants.into_iter().map(|tenant| {
            let Tenant { name, jobs, ranks, slots } = tenant;
            TenantView { name, jobs, ranks, slots }
        });
        Self {
            host: status.host,
            uptime_seconds: seconds(status.uptime_ms),
            version: status.version,
            commit: status.commit,
            security: SecurityView::new(status.security.unwrap_or_default()),
            data_plane: status.data_plane,
            attachment: status.attachment,
            role,
            ports: status.ports.into_iter().map(PortView::new).collect(),
            jobs: jobs.iter().map(JobView::new).collect(),
            jobs_unknown,
            jobs_started: status.jobs_started,
            jobs_ended: ended.collect(),
            ended_lately: status.ended_lately.into_iter().map(EndedView::new).collect(),
            tenants: tenants.collect(),
            packets: packets.collect(),
            refusals: refusals.collect(),
            round_times: status.round_times.map(TimesView::new),
            round_trips: status.round_trips.map(TimesView::new),
        }
    }

    /// Faults of the ports, each with the port's name.
    pub fn faults(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ports
            .iter()
            .flat_map(|port| port.faults.iter().map(|fault| (port.name.as_str(), fault.as_str())))
    }
}

impl SecurityView {
    fn new(of: Security) -> Self {
        let Security { tls, client_certificates, tokens, certificate_expires } = of;
        Self { tls, client_certificates, tokens, certificate_expires }
    }
}

impl EndedView {
    fn new(job: EndedJob) -> Self {
        Self {
            name: shown_name(&job.name).to_owned(),
            number: job.job,
            world_size: job.world_size,
            ending: job.ending,
            reason: Some(job.reason).filter(|reason| !reason.is_empty()),
            ago_seconds: seconds(job.ago_ms),
        }
    }
}

impl TimesView {
    fn new(Times { counts, sum }: Times) -> Self {
        let bound = |index| Some(times::bound_seconds(index)).filter(|bound| bound.is_finite());
        let bucket = |(index, count)| Bucket { below_seconds: bound(index), count };
        let buckets = counts.into_iter().enumerate().map(bucket).collect();
        Self { buckets, sum_seconds: times::seconds(sum) }
    }
}

impl UnusedView {
    fn new(Unused { capability, reason }: &Unused) -> Self {
        Self { capability: capability.clone(), reason: reason.clone() }
    }
}

impl PortView {
    fn new(port: Port) -> Self {
        Self {
            faults: faults(&port),
            name: port.name,
            hook: port.hook,
            link_speed: Some(port.link_speed).filter(|speed| *speed > 0),
            received_bytes: port.received_bytes,
            sent_bytes: port.sent_bytes,
            receive_drops: port.receive_drops,
            send_drops: port.send_drops,
            xdp_drops: port.xdp_drops,
        }
    }
}

fn faults(port: &Port) -> Vec<String> {
    let mut faults = Vec::new();
    if !port.problem.is_empty() {
        faults.push(format!("serves nobody: {}", port.problem));
    }
    if port.foreign_program > 0 {
        let kind = if port.foreign_is_generic { "xdpgeneric" } else { "xdp" };
        faults.push(format!(
            "XDP program {} is not the aggregator's, and sees frames first; `ip link set dev {} \
             {kind} off` removes it",
            port.foreign_program, port.name
        ));
    }
    if port.program_before > 0 {
        faults.push(format!(
            "program {} at tc ingress is not the aggregator's, and sees frames first; restart the \
             aggregator, or stop what attached that one (`bpftool net show dev {}`)",
            port.program_before, port.name
        ));
    }
    if port.drops_answers {
        faults.push(
            "what XDP sends there is dropped; `ethtool -K <other end> gro on` at its other end \
             fixes that"
                .to_owned(),
        );
    }
    faults
}

impl JobView {
    fn new(job: &JobStatus) -> Self {
        let state = job.state();
        let members: Vec<_> = job.members.iter().map(MemberView::new).collect();
        let (waits_for, waits_for_them) = waits(job);
        let longest = |time: fn(&MemberStatus) -> u64| job.members.iter().map(time).max();
        let waited = match waits_for_them {
            Some(TO_JOIN) => longest(|member| member.here_ms),
            Some(TO_CONTRIBUTE) => longest(|member| member.lacked_ms),
            _ => None,
        };
        Self {
            name: shown_name(&job.name).to_owned(),
            // A job has a number once all ranks have joined.
            number: (!job.shards.is_empty()).then_some(job.job),
            state: match state {
                JobState::Unspecified => "unknown",
                JobState::Waiting => "waiting",
                JobState::Assigned => "assigned",
                JobState::Started => "started",
                JobState::Aborted => "aborted",
            },
            reason: Some(job.reason.clone()).filter(|reason| !reason.is_empty()),
            age_seconds: longest(|member| member.here_ms).map_or(0.0, seconds),
            throughput: job.throughput.clone().map(ThroughputView::new),
            // A daemon of an earlier build does not say.
            aggregators: job.aggregators.max(1),
            share: match job.aggregators {
                0 | 1 => Some(1.0),
                _ => job.share.map(|share| f64::from(share) / 1e4),
            },
            other_aggregators: job.other_aggregators.clone(),
            in_place_of: Some(job.in_place_of.clone()).filter(|address| !address.is_empty()),
            world_size: job.world_size,
            slots: job.slots,
            lanes: job.lanes,
            waits_for,
            waits_for_them,
            waiting_seconds: waited.map(seconds),
            slow: Some(job.slow.clone()).filter(|slow| !slow.is_empty()),
            unused: job.unused.iter().map(UnusedView::new).collect(),
            members,
        }
    }

    /// The ranks that the job waits for, for what and since when, if it waits.
    pub fn wait(&self) -> Option<String> {
        let ranks: Vec<_> = self.waits_for.iter().map(u32::to_string).collect();
        let ranks = format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, ranks.join(", "));
        let since = self.waiting_seconds.map(|seconds| format!(", for {seconds:.0} s"));
        Some(format!("waits for {ranks} {}{}", self.waits_for_them?, since.unwrap_or_default()))
    }

    /// The options that it does not use, by reason.
    pub fn unused(&self) -> Vec<String> {
        let reasons: BTreeSet<_> = self.unused.iter().map(|unused| &unused.reason).collect();
        let line = |reason: &String| {
            let has_reason = self.unused.iter().filter(|unused| unused.reason == *reason);
            let names: Vec<_> = has_reason.map(|unused| unused.capability.as_str()).collect();
            format!("{} ({reason})", names.join(", "))
        };
        reasons.into_iter().map(line).collect()
    }

    /// This aggregator among those of the job, its share of calls, and the others; none if it is
    /// the only one.
    pub fn stripe(&self) -> Option<String> {
        if let Some(lost) = &self.in_place_of {
            return Some(format!("in place of {lost}, which was lost"));
        }
        let of = format!("1 of {}", self.aggregators);
        let of = Some(of).filter(|_| self.aggregators > 1)?;
        let share = self.share.map(|share| format!(", {:.1} %", 100.0 * share));
        let others = match &self.other_aggregators[..] {
            [] => String::new(),
            others => format!(", beside {}", others.join(", ")),
        };
        Some(of + &share.unwrap_or_default() + &others)
    }

    /// Number of connected ranks.
    pub fn here(&self) -> usize {
        self.members.iter().filter(|member| member.here).count()
    }

    /// The ranks that are not connected, whatever the reason.
    pub fn missing(&self) -> Vec<u32> {
        let is_here =
            |rank: &u32| self.members.iter().any(|member| member.rank == *rank && member.here);
        (0..self.world_size).filter(|rank| !is_here(rank)).collect()
    }

    /// The ranks that have joined and not left, by their racks' names; an empty name for none.
    pub fn racks(&self) -> Vec<(&str, Vec<u32>)> {
        let names: BTreeSet<_> = self.members.iter().map(|member| member.rack.as_str()).collect();
        self.group(names, |member| Some(member.rack.as_str()))
    }

    /// The ready ranks, by how results reach them.
    pub fn results(&self) -> Vec<(&'static str, Vec<u32>)> {
        self.group(WAYS, |member| member.results)
    }

    /// The ranks that have not left, by these names; names without ranks are left out.
    fn group<'a, 'b>(
        &'a self,
        names: impl IntoIterator<Item = &'b str>,
        name_of: impl Fn(&'a MemberView) -> Option<&'a str>,
    ) -> Vec<(&'b str, Vec<u32>)> {
        let present = || self.members.iter().filter(|member| !member.left);
        let ranks_of = |name: &str| -> Vec<u32> {
            let ranks = present().filter(|member| name_of(member) == Some(name));
            ranks.map(|member| member.rank).collect()
        };
        let groups = names.into_iter().map(|name| (name, ranks_of(name)));
        groups.filter(|(_, ranks)| !ranks.is_empty()).collect()
    }
}

impl ThroughputView {
    fn new(Throughput { bytes, period_ms, bytes_per_second }: Throughput) -> Self {
        Self { bytes, period_seconds: seconds(period_ms), bytes_per_second }
    }
}

fn seconds(milliseconds: u64) -> f64 {
    Duration::from_millis(milliseconds).as_secs_f64()
}

const TO_JOIN: &str = "to join";
const TO_BE_READY: &str = "to be ready";
const TO_COME_BACK: &str = "to come back";
const TO_CONTRIBUTE: &str = "to contribute";

/// Shorter waits are usual in training.
const WORTH_A_WORD_MS: u64 = 1000;

/// The ranks that a job waits for, and the action that it waits for.
fn waits(job: &JobStatus) -> (Vec<u32>, Option<&'static str>) {
    let member = |rank: &u32| job.members.iter().find(|member| member.rank == *rank);
    let ranks_of = |is: fn(&MemberStatus) -> bool| -> Vec<u32> {
        job.members.iter().filter(|member| is(member)).map(|member| member.rank).collect()
    };
    let (ranks, what) = match job.state() {
        JobState::Waiting => {
            let ranks = 0..job.world_size;
            (ranks.filter(|rank| !member(rank).is_some_and(is_here)).collect(), TO_JOIN)
        }
        JobState::Assigned => (ranks_of(|member| !member.ready), TO_BE_READY),
        JobState::Started => match ranks_of(|member| member.awaited) {
            lost if !lost.is_empty() => (lost, TO_COME_BACK),
            _ => (ranks_of(|member| member.lacked_ms >= WORTH_A_WORD_MS), TO_CONTRIBUTE),
        },
        JobState::Aborted | JobState::Unspecified => (Vec::new(), ""),
    };
    let what = Some(what).filter(|_| !ranks.is_empty());
    (ranks, what)
}

fn is_here(member: &MemberStatus) -> bool {
    !member.left && !member.awaited
}

impl MemberView {
    fn new(member: &MemberStatus) -> Self {
        let path = member.path.unwrap_or_default();
        Self {
            rank: member.rank,
            address: member.address.clone(),
            host: member.host_name.clone(),
            rack: member.rack.clone(),
            left: member.left,
            here: is_here(member),
            results: way(member),
            waited_for_seconds: seconds(member.lacked_total_ms),
            late_seconds: Duration::from_micros(member.late_us).as_secs_f64(),
            sent: path.sent,
            resent: path.resent,
            pending: path.pending,
            lost: path.lost,
        }
    }

    /// The rank and where it is: `rank 1 (10.0.0.2, rack tor1 at 10.0.0.254, host node7)`.
    pub fn in_words(&self) -> String {
        let Self { rank, address, rack, host, .. } = self;
        let named =
            [("rack", rack), ("host", host)].into_iter().filter(|(_, name)| !name.is_empty());
        let named: String = named.map(|(what, name)| format!(", {what} {name}")).collect();
        format!("rank {rank} ({address}{named})")
    }

    /// A remark if results to all do not reach the rank by multicast.
    pub fn remark(&self) -> Option<&'static str> {
        match self.results {
            Some(REPLAYS) => Some("no multicast"),
            Some(FORCED | UNHEARD | LOST) => Some("copies"),
            _ => None,
        }
    }
}

/// All ways, the best first.
const WAYS: [&str; 6] = [COMBINER, MULTICAST, REPLAYS, FORCED, UNHEARD, LOST];
const COMBINER: &str = "by their racks' combiners";
const MULTICAST: &str = "by multicast";
const REPLAYS: &str =
    "by replays, slowly (multicast does not reach them, and --fanout forbids copies)";
const FORCED: &str = "by copies (all ranks get their own)";
const UNHEARD: &str = "by copies (multicast did not reach them when they joined)";
const LOST: &str = "by copies (multicast stopped reaching them)";

fn way(member: &MemberStatus) -> Option<&'static str> {
    match member.copies() {
        _ if member.no_multicast => Some(REPLAYS),
        Copies::Forced => Some(FORCED),
        Copies::GroupUnheard => Some(UNHEARD),
        Copies::GroupLost => Some(LOST),
        Copies::Unspecified if !member.ready => None,
        Copies::Unspecified if member.rack.is_empty() => Some(MULTICAST),
        Copies::Unspecified => Some(COMBINER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_a_job_does_not_use_are_told_by_reason() {
        let unused = |capability: &str, reason: &str| Unused {
            capability: capability.to_owned(),
            reason: reason.to_owned(),
        };
        let job = JobStatus {
            unused: vec![
                unused("PARTIAL_SUMS", "packets have tags"),
                unused("ROCE", "the data plane lacks it"),
                unused("AUDIENCES", "packets have tags"),
            ],
            ..JobStatus::default()
        };
        assert_eq!(
            JobView::new(&job).unused(),
            ["PARTIAL_SUMS, AUDIENCES (packets have tags)", "ROCE (the data plane lacks it)"]
        );
    }

    #[test]
    fn a_program_that_sees_frames_first_is_a_fault_at_either_hook() {
        let port = |foreign_program, program_before| Port {
            name: "eth1".to_owned(),
            foreign_program,
            program_before,
            ..Port::default()
        };
        assert_eq!(faults(&port(0, 0)), [] as [&str; 0]);
        for (port, first) in
            [(port(7, 0), "XDP program 7 "), (port(0, 8), "program 8 at tc ingress ")]
        {
            let [fault] = &faults(&port)[..] else { panic!("one fault") };
            assert!(fault.starts_with(first) && fault.contains("eth1"), "{fault}");
        }
    }
}
