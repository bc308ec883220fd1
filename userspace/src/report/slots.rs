//! The output of `slots`.

use anyhow::bail;
use switchml_cli::say;
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::{SlotsRequest, rank_list};
use switchml_userspace::view::slots::{RangeView, SlotsView};

use super::{Aggregator, ask};

/// Most ranks whose places are printed.
const MOST_PLACES: usize = 16;

/// Prints the unfinished rounds of a job, and the ranks that they lack, as a table or as JSON for
/// programs.
pub async fn slots(of: &Aggregator, job: String, json: bool) -> anyhow::Result<()> {
    let reply = ask(of, async |mut aggregator: AggregatorClient<_>| {
        aggregator.slots(SlotsRequest { job }).await
    });
    let view = SlotsView::new(reply.await?.into_inner());
    if json {
        say!("{}", serde_json::to_string(&view)?);
        return Ok(());
    }
    let job = &view.job;
    let wait = job.reason.clone().or_else(|| job.wait());
    let wait = wait.map(|wait| format!(", {}", wait.escape_debug())).unwrap_or_default();
    say!("job          \"{}\": {}{wait}", job.name.escape_debug(), job.state);
    if !view.shown {
        bail!("{}'s data plane does not show the slots of this job", of.address);
    }
    job.slow.iter().for_each(|slow| say!("slow         {}", slow.escape_debug()));
    say!("unfinished   {} of {} slots", view.unfinished, job.slots);
    let missing = view.missing();
    for member in missing.iter().take(MOST_PLACES) {
        say!("missing      {}", member.in_words().escape_debug());
    }
    if missing.len() > MOST_PLACES {
        say!("missing      {} more", missing.len() - MOST_PLACES);
    }
    table(&view);
    Ok(())
}

/// A line for each range of slots; the columns are as wide as their contents.
fn table(view: &SlotsView) {
    if view.oldest.is_empty() {
        return;
    }
    let heads = ["shard", "slots", "round", "operation", "contributed", "missing"];
    let rows: Vec<_> = view.oldest.iter().map(cells).collect();
    let widths: [usize; 6] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].len()).chain([heads[column].len()]).max().unwrap_or(0)
    });
    say!("");
    for row in [heads.map(str::to_owned)].iter().chain(&rows) {
        let [shard, slots, round, op, contributed, missing] = row;
        let [a, b, c, d, e, _] = widths;
        say!("{shard:>a$}  {slots:>b$}  {round:>c$}  {op:<d$}  {contributed:<e$}  {missing}");
    }
    if view.left_out() > 0 {
        say!("and {} more slots", view.left_out());
    }
}

fn cells(range: &RangeView) -> [String; 6] {
    let ranks = |ranks: &[u32]| {
        // A rank of a job fits.
        rank_list(&ranks.iter().map(|rank| *rank as u16).collect::<Vec<_>>())
    };
    let slots = match (range.first_slot, range.last_slot) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    let operation = match (&range.op, range.lanes) {
        (Some(op), Some(lanes)) => format!("{op} of {lanes} lanes"),
        _ => "not shown".to_owned(),
    };
    let (contributed, missing) = (ranks(&range.contributed), ranks(&range.missing));
    [range.shard.to_string(), slots, range.round.to_string(), operation, contributed, missing]
}
