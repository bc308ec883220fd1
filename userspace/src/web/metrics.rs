//! The view as OpenMetrics, and in Prometheus' own text format for programs that do not ask for
//! that.

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::atomic::AtomicU64;

use super::process::Process;
use crate::view::{Bucket, EndedView, JobView, MemberView, Role, TimesView, View};

/// Most ranks of a job with a time series each: a job may have 1024 ranks.
const MOST_RANKS: usize = 16;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct About {
    version: String,
    commit: String,
    data_plane: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ending {
    ending: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Tenant {
    tenant: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Port {
    port: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct State {
    state: &'static str,
}

/// The labels of a job. Two jobs may have the same name if one is aborted; a waiting job has no
/// number. No label is `job`, because Prometheus has one of its own.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Job {
    name: String,
    number: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Rank {
    name: String,
    number: String,
    rank: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EndedJob {
    name: String,
    number: String,
    ending: String,
    reason: String,
}

/// A histogram that was counted elsewhere.
#[derive(Debug)]
struct Counted {
    /// Bounds in seconds, and counts; no count includes those of earlier buckets.
    buckets: Vec<(f64, u64)>,
    sum: f64,
}

impl Counted {
    fn new(times: &TimesView) -> Self {
        let bucket =
            |bucket: &Bucket| (bucket.below_seconds.unwrap_or(f64::INFINITY), bucket.count);
        let buckets = times.buckets.iter().map(bucket);
        Self { buckets: buckets.collect(), sum: times.sum_seconds }
    }
}

impl EncodeMetric for Counted {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        let count = self.buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// A scrape's text, as OpenMetrics 1.0.
pub fn openmetrics(view: &View, process: &Process) -> String {
    let mut registry = Registry::with_prefix("switchml");
    // Not of OpenMetrics' type `info`, which Prometheus' own format does not have.
    let about = Family::<About, Gauge>::default();
    about
        .get_or_create(&About {
            version: view.version.clone(),
            commit: view.commit.clone(),
            data_plane: view.data_plane.clone(),
        })
        .set(1);
    registry.register("aggregator_info", "1; the labels say what runs here", about);
    if let Some(expires) = view.security.certificate_expires {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(expires).unwrap_or(i64::MAX));
        let help = "When the certificate of the control plane expires, since 1970";
        registry.register("certificate_expiry_timestamp_seconds", help, gauge);
    }
    add_counts(&mut registry, view);
    add_ports(&mut registry, view);
    add_room(&mut registry, &view.role);
    add_times(&mut registry, view);
    if view.jobs_unknown.is_none() {
        add_tally(&mut registry, view);
        add_ended(&mut registry, &view.ended_lately);
        add_tenants(&mut registry, view);
        add_jobs(&mut registry, &view.jobs);
    }
    // The metrics of the process have common names, without our prefix.
    let mut of_process = Registry::default();
    add_process(&mut of_process, process);
    let mut text = String::new();
    let written = [registry, of_process]
        .iter()
        .try_for_each(|registry| text::encode_registry(&mut text, registry))
        .and_then(|()| text::encode_eof(&mut text));
    written.expect("a string takes all text");
    text
}

/// The metrics in Prometheus' text format 0.0.4, which has no units, and describes a counter by the
/// name of its samples.
pub fn prometheus(view: &View, process: &Process) -> String {
    let text = openmetrics(view, process);
    let counters: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let lines = text.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF");
    let line = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        ["#", _, name, ..] if counters.contains(&name) => {
            line.replacen(name, &format!("{name}_total"), 1) + "\n"
        }
        _ => format!("{line}\n"),
    };
    lines.map(line).collect()
}

fn add_counts(registry: &mut Registry, view: &View) {
    let packets = Family::<Outcome, Counter>::default();
    for count in &view.packets {
        packets.get_or_create(&Outcome { outcome: count.outcome.clone() }).inc_by(count.packets);
    }
    registry.register("packets", "Packets by what happened to them", packets);
    let refusals = Family::<Reason, Counter>::default();
    for count in &view.refusals {
        refusals.get_or_create(&Reason { reason: count.reason.clone() }).inc_by(count.times);
    }
    registry.register("refusals", "Connections and requests that were refused", refusals);
}

fn add_tally(registry: &mut Registry, view: &View) {
    let started = Counter::<u64>::default();
    started.inc_by(view.jobs_started);
    registry.register("jobs_started", "Jobs whose ranks were all ready", started);
    let ended = Family::<Ending, Counter>::default();
    for count in &view.jobs_ended {
        ended.get_or_create(&Ending { ending: count.ending.clone() }).inc_by(count.jobs);
    }
    registry.register("jobs_ended", "Jobs that have ended, by how they ended", ended);
}

/// The jobs that ended lately; of those with the same labels the latest.
fn add_ended(registry: &mut Registry, ended: &[EndedView]) {
    let ago = Family::<EndedJob, Gauge<f64, AtomicU64>>::default();
    for job in ended.iter().rev() {
        let label = EndedJob {
            name: job.name.clone(),
            number: job.number.map(|number| number.to_string()).unwrap_or_default(),
            ending: job.ending.clone(),
            reason: job.reason.clone().unwrap_or_default(),
        };
        ago.get_or_create(&label).set(job.ago_seconds);
    }
    let help = "How long ago a job ended, of the last 16";
    registry.register_with_unit("job_ended", help, Unit::Seconds, ago);
}

fn add_tenants(registry: &mut Registry, view: &View) {
    let (jobs, ranks, slots) = <[Family<Tenant, Gauge>; 3]>::default().into();
    for tenant in &view.tenants {
        let label = Tenant { tenant: tenant.name.clone() };
        jobs.get_or_create(&label).set(tenant.jobs.into());
        ranks.get_or_create(&label).set(tenant.ranks.into());
        slots.get_or_create(&label).set(tenant.slots.into());
    }
    registry.register("tenant_jobs", "Jobs that a tenant has", jobs);
    registry.register("tenant_ranks", "Ranks that a tenant's jobs have, or wait for", ranks);
    registry.register("tenant_slots", "Slots that a tenant's jobs have", slots);
}

fn add_process(registry: &mut Registry, process: &Process) {
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by(process.cpu_seconds);
    registry.register_with_unit("process_cpu", "Processor time used", Unit::Seconds, cpu);
    let mut gauge = |name: &str, help: &str, value: f64| {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    gauge("process_resident_memory_bytes", "Memory in use", process.resident_bytes);
    gauge("process_open_fds", "Open files and sockets", process.open_files);
    gauge("process_max_fds", "Most of these, by the limit", process.most_files);
    gauge(
        "process_start_time_seconds",
        "When the process was started, since 1970",
        process.start_seconds,
    );
}

fn add_times(registry: &mut Registry, view: &View) {
    let round = "From the first contribution of a round to its last, for one round in 512";
    let trip = "From a rank's contribution to its result, of all ranks, as they report it";
    for (name, help, times) in
        [("round_duration", round, &view.round_times), ("round_trip", trip, &view.round_trips)]
    {
        if let Some(times) = times {
            registry.register_with_unit(name, help, Unit::Seconds, Counted::new(times));
        }
    }
}

fn add_ports(registry: &mut Registry, view: &View) {
    let received = Family::<Port, Counter>::default();
    let sent = Family::<Port, Counter>::default();
    let faults = Family::<Port, Gauge>::default();
    let receive_drops = Family::<Port, Counter>::default();
    let send_drops = Family::<Port, Counter>::default();
    let xdp_drops = Family::<Port, Counter>::default();
    for port in &view.ports {
        let name = Port { port: port.name.clone() };
        received.get_or_create(&name).inc_by(port.received_bytes);
        sent.get_or_create(&name).inc_by(port.sent_bytes);
        receive_drops.get_or_create(&name).inc_by(port.receive_drops);
        send_drops.get_or_create(&name).inc_by(port.send_drops);
        xdp_drops.get_or_create(&name).inc_by(port.xdp_drops);
        faults.get_or_create(&name).set(port.faults.len() as i64);
    }
    let bytes = || Unit::Bytes;
    registry.register_with_unit("port_received", "Bytes of all frames received", bytes(), received);
    registry.register_with_unit("port_sent", "Bytes of all frames sent", bytes(), sent);
    let help = "Frames that came in damaged, or that driver or kernel dropped";
    registry.register("port_receive_drops", help, receive_drops);
    registry.register("port_send_drops", "Frames that were not sent", send_drops);
    registry.register("port_xdp_drops", "Frames that native XDP could not send", xdp_drops);
    registry.register(
        "port_faults",
        "Faults that keep packets from ranks, or their answers",
        faults,
    );
}

fn add_room(registry: &mut Registry, role: &Role) {
    let mut gauge = |name: &str, help: &str, value: u32| {
        let gauge = Gauge::<i64>::default();
        gauge.set(value.into());
        registry.register(name, help, gauge);
    };
    match role {
        Role::Root { slots, slots_free } => {
            gauge("slots", "Slots of all jobs together", *slots);
            gauge("slots_free", "Slots that no job has", *slots_free);
        }
        Role::Combiner { cells, .. } => gauge("cells", "Cells of this combiner", *cells),
    }
}

fn add_states(registry: &mut Registry, jobs: &[JobView]) {
    let states = Family::<State, Gauge>::default();
    for state in ["waiting", "assigned", "started", "aborted"] {
        let jobs = jobs.iter().filter(|job| job.state == state);
        states.get_or_create(&State { state }).set(jobs.count() as i64);
    }
    registry.register("jobs", "Jobs by state", states);
}

fn add_jobs(registry: &mut Registry, jobs: &[JobView]) {
    add_states(registry, jobs);
    let bytes = Family::<Job, Counter>::default();
    let ranks = Family::<Job, Gauge>::default();
    let here = Family::<Job, Gauge>::default();
    let aggregators = Family::<Job, Gauge>::default();
    let shares = Family::<Job, Gauge<f64, AtomicU64>>::default();
    let waiting = Family::<Job, Gauge<f64, AtomicU64>>::default();
    let stalled = Family::<Job, Gauge<f64, AtomicU64>>::default();
    let awaited = Family::<Rank, Gauge>::default();
    let waited = Family::<Rank, Counter<f64, AtomicU64>>::default();
    let paths = Paths::default();
    for job in jobs {
        let name = job.name.clone();
        let number = job.number.map(|number| number.to_string()).unwrap_or_default();
        let of_job = Job { name: name.clone(), number: number.clone() };
        ranks.get_or_create(&of_job).set(job.world_size.into());
        here.get_or_create(&of_job).set(job.here() as i64);
        aggregators.get_or_create(&of_job).set(job.aggregators.into());
        if let Some(share) = job.share {
            shares.get_or_create(&of_job).set(share);
        }
        if let Some(throughput) = &job.throughput {
            bytes.get_or_create(&of_job).inc_by(throughput.bytes);
        }
        if let Some(seconds) = job.waiting_seconds {
            let times = if job.state == "started" { &stalled } else { &waiting };
            times.get_or_create(&of_job).set(seconds);
        }
        let label = |rank| Rank { name: name.clone(), number: number.clone(), rank };
        for rank in &job.waits_for {
            awaited.get_or_create(&label(*rank)).set(1);
        }
        for member in most(job, |member| member.waited_for_seconds) {
            waited.get_or_create(&label(member.rank)).inc_by(member.waited_for_seconds);
        }
        paths.add(job, label);
    }
    registry.register("job_ranks", "Ranks of a job", ranks);
    registry.register("job_ranks_here", "Ranks that are connected", here);
    registry.register("job_aggregators", "Aggregators of a job, this one among them", aggregators);
    let help = "The part of a job's large calls that this aggregator takes, 0 to 1";
    registry.register("job_share_ratio", help, shares);
    registry.register_with_unit(
        "job_results",
        "Bytes of results that each rank has got since the job was started",
        Unit::Bytes,
        bytes,
    );
    registry.register_with_unit(
        "job_waiting",
        "Since the first rank of a job waits for others to join",
        Unit::Seconds,
        waiting,
    );
    registry.register_with_unit(
        "job_stalled",
        "Since a round of a started job waits for ranks to contribute",
        Unit::Seconds,
        stalled,
    );
    registry.register("job_rank_awaited", "1 for each rank that a job waits for", awaited);
    paths.register(registry);
    registry.register_with_unit(
        "rank_waited",
        "For how long rounds of a started job have lacked this rank's contribution",
        Unit::Seconds,
        waited,
    );
}

/// What became of ranks' packets.
#[derive(Default)]
struct Paths {
    sent: Family<Rank, Counter>,
    resent: Family<Rank, Counter>,
    pending: Family<Rank, Counter>,
    lost: Family<Rank, Counter>,
    late: Family<Rank, Gauge<f64, AtomicU64>>,
}

impl Paths {
    /// Adds the ranks of a job that send the most again, and those that are late.
    fn add(&self, job: &JobView, label: impl Fn(u32) -> Rank) {
        for member in most(job, |member| member.resent as f64) {
            let label = label(member.rank);
            self.sent.get_or_create(&label).inc_by(member.sent);
            self.resent.get_or_create(&label).inc_by(member.resent);
            self.pending.get_or_create(&label).inc_by(member.pending);
            self.lost.get_or_create(&label).inc_by(member.lost);
        }
        for member in most(job, |member| member.late_seconds) {
            self.late.get_or_create(&label(member.rank)).set(member.late_seconds);
        }
    }

    fn register(self, registry: &mut Registry) {
        let help = "Contributions that this rank sent, as it reports";
        registry.register("rank_sent", help, self.sent);
        let help = "Contributions that this rank sent again";
        registry.register("rank_resent", help, self.resent);
        let help = "Answers that told this rank to wait for others";
        registry.register("rank_pending", help, self.pending);
        let help = "Contributions of this rank, and results for it, that were lost";
        registry.register("rank_lost", help, self.lost);
        let help = "How long after others' contributions this rank's come";
        registry.register_with_unit("rank_late", help, Unit::Seconds, self.late);
    }
}

/// The ranks of a job for which this is the most, and not nothing.
fn most(job: &JobView, of: impl Fn(&MemberView) -> f64) -> Vec<&MemberView> {
    let mut members: Vec<_> = job.members.iter().filter(|member| of(member) > 0.0).collect();
    members.sort_by(|a, b| of(b).total_cmp(&of(a)));
    members.truncate(MOST_RANKS);
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use switchml_control::{Counter, JobState, JobStatus, ListJobsReply, MemberStatus};
    use switchml_control::{Port, Security, StatusReply, Times};

    /// All metrics that the alerts and the dashboard name exist.
    #[test]
    fn alerts_and_dashboard_know_the_metrics() {
        let ports = vec![Port { name: "eth1".to_owned(), ..Port::default() }];
        let counters = vec![Counter { name: "added".to_owned(), ..Counter::default() }];
        let here = MemberStatus { here_ms: 1, ..MemberStatus::default() };
        let mut waiting = JobStatus { world_size: 2, members: vec![here], ..JobStatus::default() };
        waiting.set_state(JobState::Waiting);
        let round_times = Some(Times::default());
        let round_trips = Some(Times::default());
        let security = Some(Security { certificate_expires: Some(1 << 31), ..Security::default() });
        let status = StatusReply {
            ports,
            counters,
            round_times,
            round_trips,
            security,
            ..StatusReply::default()
        };
        let jobs = vec![waiting, stalled(1)];
        let view = View::new(status, Ok(ListJobsReply { jobs }));
        let text = prometheus(&view, &Process::default());
        let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let known: Vec<_> = kinds.filter_map(|kind| kind.split(' ').next()).collect();
        for file in
            [include_str!("../../deploy/alerts.yml"), include_str!("../../deploy/grafana.json")]
        {
            let words = file.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let named: Vec<_> = words.filter(|word| word.starts_with("switchml_")).collect();
            assert!(named.len() > 4, "{named:?}");
            // A histogram's samples have other names than the metric.
            let of_metric = |name: &str| name.strip_suffix("_bucket").unwrap_or(name).to_owned();
            let is_known = |name: &str| known.contains(&name) || known.contains(&&*of_metric(name));
            let unknown: Vec<_> = named.iter().filter(|name| !is_known(name)).collect();
            assert!(unknown.is_empty(), "{unknown:?} are not in {known:?}");
        }
    }

    /// A job that waits for all its ranks; rank 0 has cost a second, each the next 1 ms more.
    fn stalled(ranks: u32) -> JobStatus {
        let member = |rank| MemberStatus {
            rank,
            lacked_ms: 1250,
            lacked_total_ms: 1000 + u64::from(rank),
            ..MemberStatus::default()
        };
        let members = (0..ranks).map(member).collect();
        let mut job = JobStatus { world_size: ranks, members, ..JobStatus::default() };
        job.set_state(JobState::Started);
        job
    }

    #[test]
    fn a_job_has_its_aggregators_and_this_ones_share() {
        let metrics = |aggregators, share| {
            let jobs = vec![JobStatus { aggregators, share, ..stalled(2) }];
            let view = View::new(StatusReply::default(), Ok(ListJobsReply { jobs }));
            let text = openmetrics(&view, &Process::default());
            let value = |name: &str| {
                let start = format!("switchml_job_{name}{{name=\"\",number=\"\"}} ");
                text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
            };
            [value("aggregators"), value("share_ratio")]
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(metrics(3, Some(2500)), [text("3"), text("0.25")]);
        assert_eq!(metrics(3, Some(0)), [text("3"), text("0.0")]);
        assert_eq!(metrics(3, None), [text("3"), None], "until ranks have told");
        assert_eq!(metrics(1, None), [text("1"), text("1.0")]);
        assert_eq!(metrics(0, None), [text("1"), text("1.0")], "an older daemon");
    }

    #[test]
    fn of_many_ranks_those_that_cost_the_most_have_times() {
        let jobs = Ok(ListJobsReply { jobs: vec![stalled(1024)] });
        let view = View::new(StatusReply::default(), jobs);
        let text = openmetrics(&view, &Process::default());
        let times =
            text.lines().filter(|line| line.starts_with("switchml_rank_waited_seconds_total{"));
        let mut times: Vec<_> = times.collect();
        times.sort_unstable();
        assert_eq!(times.len(), 16);
        let line = |rank: u32, time: &str| {
            format!(
                "switchml_rank_waited_seconds_total{{name=\"\",number=\"\",rank=\"{rank}\"}} {time}"
            )
        };
        assert_eq!(times[0], line(1008, "2.008"));
        assert_eq!(times[15], line(1023, "2.023"));
        assert!(
            text.contains("\nswitchml_job_stalled_seconds{name=\"\",number=\"\"} 1.25\n"),
            "{text}"
        );
    }
}
