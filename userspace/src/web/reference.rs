//! The list of all metrics for docs/reference, from scrapes in which each of them has a sample.

use switchml_cli::markdown::{code, prose, table};
use switchml_control::{
    Counter, EndedJob, Ending, JobState, JobStatus, ListJobsReply, MemberStatus, Path, Port,
    Security, StatusReply, Tenant, Throughput, Times,
};
use switchml_protocol::outcome::Outcome;
use switchml_userspace_core::jobs::Tally;

use super::metrics::openmetrics;
use super::process::Process;
use crate::refusals::Refusals;
use crate::view::View;

/// Endings of names that are units.
const UNITS: [&str; 3] = ["bytes", "ratio", "seconds"];

/// All labels, and their meanings.
const LABELS: [(&str, &str); 12] = [
    ("version", "the daemon's version"),
    ("commit", "the commit that the daemon was built from"),
    ("data_plane", "xdp, software, tofino or bmv2"),
    ("outcome", "see below"),
    ("reason", "of a refusal: see below; of a job: why it ended, if not all ranks left normally"),
    ("ending", "see below"),
    ("tenant", "the tenant's name"),
    ("port", "the interface's name"),
    ("state", "waiting (for ranks to join), assigned (not all ranks are ready), started, aborted"),
    ("name", "the job's name"),
    ("number", "the job's number; empty while ranks are missing"),
    ("rank", "the rank's number"),
];

/// A metric of a scrape.
struct Metric {
    /// The name of its samples; of a histogram, without `_bucket`, `_sum` and `_count`.
    name: String,
    kind: String,
    help: String,
    /// None if the scrape has no sample.
    labels: Option<Vec<String>>,
}

/// Tables of all metrics, of their labels, and of the labels' values.
pub fn list_of_metrics() -> String {
    let rows = all().into_iter().map(|metric| {
        let labels: Vec<_> = metric.labels.iter().flatten().map(|label| code(label)).collect();
        let unit =
            UNITS.iter().find(|unit| metric.name.trim_end_matches("_total").ends_with(*unit));
        let unit = unit.copied().unwrap_or_default().to_owned();
        [code(&metric.name), metric.kind, unit, labels.join(", "), prose(&metric.help)]
    });
    let mut text = table(["name", "type", "unit", "labels", "meaning"], rows);
    let labels = LABELS.map(|(label, meaning)| [code(label), meaning.to_owned()]);
    text += &format!("## Labels\n\n{}", table(["label", "meaning"], labels));
    let status = status();
    let outcomes = status.counters.iter().map(|each| [code(&each.name), prose(&each.help)]);
    let reasons = status.refusals.iter().map(|each| [code(&each.reason), prose(&each.help)]);
    let endings = status.jobs_ended.iter().map(|each| [code(&each.ending), prose(&each.help)]);
    text += &values("outcome", "Packets", outcomes);
    text += &values("reason", "Refusals", reasons);
    text + &values("ending", "Ended jobs", endings)
}

fn values(label: &str, heading: &str, rows: impl Iterator<Item = [String; 2]>) -> String {
    format!("## {heading}\n\n{}", table([label, "meaning"], rows))
}

/// The metrics of a root, and those that only combiners have.
fn all() -> Vec<Metric> {
    let combiner = StatusReply { parent: "10.0.0.254:48865".to_owned(), ..StatusReply::default() };
    let combiner = View::new(combiner, Err("a combiner has no jobs".to_owned()));
    let mut metrics = Vec::<Metric>::new();
    for view in [root(), combiner] {
        for metric in of_scrape(&openmetrics(&view, &Process::default())) {
            if metrics.iter().all(|known| known.name != metric.name) {
                metrics.push(metric);
            }
        }
    }
    metrics
}

/// A root for which all is known.
fn root() -> View {
    let path = Path { sent: 2, resent: 1, pending: 1, lost: 1, ..Path::default() };
    let member = MemberStatus {
        lacked_ms: 1000,
        lacked_total_ms: 1000,
        late_us: 1,
        path: Some(path),
        ..MemberStatus::default()
    };
    let of_state = |state, member| JobStatus {
        world_size: 2,
        members: vec![member],
        aggregators: 1,
        throughput: Some(Throughput::default()),
        state: i32::from(state),
        ..JobStatus::default()
    };
    let here = MemberStatus { here_ms: 1, ..MemberStatus::default() };
    let jobs = vec![of_state(JobState::Waiting, here), of_state(JobState::Started, member)];
    View::new(status(), Ok(ListJobsReply { jobs }))
}

/// The status of a root, with each outcome, refusal and ending.
fn status() -> StatusReply {
    let counter = |outcome: &Outcome| Counter {
        name: outcome.name().to_owned(),
        help: outcome.help().to_owned(),
        packets: 0,
    };
    let tally = Tally::default();
    let ended = tally.ended().map(|(ending, help, jobs)| Ending {
        ending: ending.to_owned(),
        help: help.to_owned(),
        jobs,
    });
    StatusReply {
        counters: Outcome::ALL.iter().map(counter).collect(),
        ports: vec![Port::default()],
        refusals: Refusals::default().list(),
        jobs_ended: ended.collect(),
        ended_lately: vec![EndedJob::default()],
        tenants: vec![Tenant::default()],
        round_times: Some(Times { counts: vec![1], sum: 1 }),
        round_trips: Some(Times { counts: vec![1], sum: 1 }),
        security: Some(Security { certificate_expires: Some(1), ..Security::default() }),
        ..StatusReply::default()
    }
}

/// The metrics of a scrape, in its order.
fn of_scrape(text: &str) -> Vec<Metric> {
    let described = |kind: &str, name: &str| {
        let start = format!("# {kind} {name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_default().to_owned()
    };
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let metric = |name: &str| {
        let kind = described("TYPE", name);
        let (shown, sample) = match kind.as_str() {
            "counter" => (format!("{name}_total"), format!("{name}_total")),
            "histogram" => (name.to_owned(), format!("{name}_sum")),
            _ => (name.to_owned(), name.to_owned()),
        };
        let labels = text.lines().find_map(|line| labels(line.strip_prefix(&sample)?));
        Metric { name: shown, kind, help: described("HELP", name), labels }
    };
    names.map(metric).collect()
}

/// The labels behind the name of a sample; none if the name goes on.
fn labels(rest: &str) -> Option<Vec<String>> {
    if rest.starts_with(' ') {
        return Some(Vec::new());
    }
    let inside = rest.strip_prefix('{')?.rsplit_once('}')?.0;
    let names = inside.split("\",").filter_map(|label| label.split_once('='));
    Some(names.map(|(name, _)| name.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_sample_a_help_and_known_labels() {
        for Metric { name, help, labels, .. } in all() {
            assert!(!help.is_empty(), "{name}");
            for label in labels.unwrap_or_else(|| panic!("no sample of {name}")) {
                assert!(LABELS.iter().any(|(known, _)| *known == label), "{label} of {name}");
            }
        }
    }

    #[test]
    fn every_metric_that_the_source_names_is_in_the_list() {
        let (source, _) = include_str!("metrics.rs").split_once("#[cfg(test)]").expect("tests");
        let calls = source.split("register").chain(source.split("gauge"));
        let names = calls.filter_map(|call| {
            let arguments = call.trim_start_matches("_with_unit").strip_prefix('(')?;
            arguments.trim_start().strip_prefix('"')?.split('"').next()
        });
        let names: Vec<_> = names.collect();
        assert!(names.len() > 30, "{names:?}");
        let list = list_of_metrics();
        for name in names {
            let is_known = ["`", "_"].map(|end| list.contains(&format!("{name}{end}")));
            assert_ne!(is_known, [false, false], "{name}");
        }
    }

    #[test]
    fn a_metric_is_named_as_its_samples() {
        let list = list_of_metrics();
        for row in [
            "| `switchml_packets_total` | counter |  | `outcome` | Packets by ",
            "| `switchml_job_stalled_seconds` | gauge | seconds | `name`, `number` | ",
            "| `switchml_round_duration_seconds` | histogram | seconds |  | ",
            "| `process_cpu_seconds_total` | counter | seconds |  | Processor time used. |",
            "| `switchml_cells` | gauge |  |  | ",
        ] {
            assert!(list.contains(row), "no {row} in {list}");
        }
    }
}
