//! The table and the JSON.

use std::fmt::Write;

use super::measure::{Measured, Run};

/// The results as Markdown. All conditions are compared with the first one.
pub fn table(
    workers: usize,
    size: &str,
    runs: usize,
    iters: usize,
    measured: &[Measured],
) -> String {
    let mut table = format!(
        "{workers} workers, {size} of f32, {runs} runs of {iters} timed all-reduces for each row, \
         in turn. Faults each way, on every link.\n\n\
         | faults | time in ms: median (range) | to none | 99 % of chunks, ms | frames lost, \
         doubled, held back, corrupted of all | resent per 1000 chunks: overtaken, timer, \
         probe |\n\
         | --- | --- | --- | --- | --- | --- |\n"
    );
    let none = measured[0].median().time_ms;
    for condition in measured {
        let (median, (shortest, longest), faults) =
            (condition.median(), condition.range(), condition.faults());
        let resent = [median.resent.by_overtaking, median.resent.by_timer, median.resent.probes];
        let [overtaken, timer, probes] =
            resent.map(|count| 1000.0 * count as f64 / median.chunks as f64);
        // Writing to a String cannot fail.
        let _ = writeln!(
            table,
            "| {} | {:.0} ({shortest:.0}-{longest:.0}) | {:.2} | {:.0} | {}, {}, {}, {} of {} | \
             {overtaken:.1}, {timer:.1}, {probes:.1} |",
            condition.name,
            median.time_ms,
            median.time_ms / none,
            finished(median, 99.0),
            faults.lost,
            faults.duplicated,
            faults.reordered,
            faults.corrupted + faults.flipped,
            faults.frames,
        );
    }
    table
}

/// The time by which a percentage of the chunks was done, in ms.
fn finished(run: &Run, percent: f64) -> f64 {
    run.finished.iter().find(|point| point.0 >= percent).map_or(f64::NAN, |point| point.1)
}

/// All results as JSON.
pub fn json(measured: &[Measured]) -> String {
    // This cannot fail: it contains only strings, numbers and lists of these.
    serde_json::to_string(measured).unwrap_or_default()
}
