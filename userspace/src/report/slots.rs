//! The output of `slots`.

use anyhow::bail;
use switchml_cli::say;
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::{SlotsRequest, rank_list};
use switchml_userspace::view::slots::{RoundView, SlotsView};

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

fn table(view: &SlotsView) {
    if view.oldest.is_empty() {
        return;
    }
    let ranks = |ranks: &[u32]| {
        // A rank of a job fits.
        rank_list(&ranks.iter().map(|rank| *rank as u16).collect::<Vec<_>>())
    };
    let rows = view.oldest.iter().map(|round| (round, ranks(&round.contributed)));
    let rows: Vec<_> = rows.collect();
    let width = rows.iter().map(|(_, contributed)| contributed.len()).max().unwrap_or_default();
    say!("\n{:>5} {:>4} {:>10}  {:<width$}  missing", "shard", "slot", "round", "contributed");
    for (RoundView { shard, slot, round, missing, .. }, contributed) in &rows {
        say!("{shard:>5} {slot:>4} {round:>10}  {contributed:<width$}  {}", ranks(missing));
    }
    if view.left_out() > 0 {
        say!("and {} newer ones", view.left_out());
    }
}
