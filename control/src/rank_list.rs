//! Ranks in words, for messages that both sides make.

/// Most runs of ranks that are named; further ones are counted.
const MOST_RUNS: usize = 16;

/// The ranks in words, runs of three and more drawn together: "rank 3", "ranks 0, 2 and 4-9",
/// "ranks 0, 2, … and 480 more". They are in ascending order.
pub fn rank_list(ranks: &[u16]) -> String {
    let runs = ranks.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let (named, others): (Vec<_>, Vec<_>) =
        runs.enumerate().partition(|(index, _)| *index < MOST_RUNS);
    let mut runs: Vec<String> = named
        .into_iter()
        .flat_map(|(_, run)| match run {
            [first, _, .., last] => vec![format!("{first}-{last}")],
            short => short.iter().map(u16::to_string).collect(),
        })
        .collect();
    let others: usize = others.iter().map(|(_, run)| run.len()).sum();
    if others > 0 {
        runs.push(format!("{others} more"));
    }
    match (ranks, runs.as_slice()) {
        ([], _) => "no rank".to_owned(),
        ([one], _) => format!("rank {one}"),
        (_, [run]) => format!("ranks {run}"),
        (_, [first @ .., last]) => format!("ranks {} and {last}", first.join(", ")),
        (_, []) => unreachable!("ranks without a run"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_in_words() {
        for (ranks, words) in [
            (&[][..], "no rank"),
            (&[3], "rank 3"),
            (&[0, 1], "ranks 0 and 1"),
            (&[0, 1, 2], "ranks 0-2"),
            (&[0, 2, 4, 5, 6, 7, 8, 9], "ranks 0, 2 and 4-9"),
            (&[1, 2, 3, 63], "ranks 1-3 and 63"),
        ] {
            assert_eq!(rank_list(ranks), words);
        }
        let even: Vec<u16> = (0..512).map(|rank| 2 * rank).collect();
        let words = "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 496 more";
        assert_eq!(rank_list(&even), words);
    }
}
