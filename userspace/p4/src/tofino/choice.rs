//! The choice between packets of 64 and of 256 lanes: whether the frames that come in again for
//! 256 lanes find room in the ports that there are. Without I/O.

use std::collections::BTreeMap;
use std::ops::Range;

use super::layout::{self, FreePort, Layout, Share};
use super::pipeline_of;
use super::ports::Speed;
use super::recirculation::{SLOT_CLASSES, own_port};
use crate::entries::MOST_PARTS;

/// Bytes of a frame's headers: Ethernet, IPv4, UDP and ours.
const HEADERS: u64 = 14 + 20 + 8 + 32;
/// Bytes of what is in front of a frame that comes in again: `pass_t` of `p4/include/headers.p4`.
const PASS: u64 = 12;
/// Bytes that a frame takes beside its own: preamble, gap and FCS.
const AROUND: u64 = 24;
/// Bytes of a part of 64 lanes.
const PART: u64 = 256;
/// Parts of a packet of 256 lanes.
const PARTS: usize = MOST_PARTS as usize;

/// Bytes of a contribution of 256 lanes on its link.
const CONTRIBUTION: u64 = HEADERS + PARTS as u64 * PART + AROUND;
/// For each part, how many parts the frames of a contribution have that come in again for it: the
/// part itself and those after it. For the first it has come in already.
const CONTRIBUTION_AGAIN: [&[u64]; PARTS] = [&[], &[3], &[2], &[1]];
/// The same of a RESULT: the parts after it, which were read before, and from its first half on its
/// own. At the last part, its first half has been read already.
const RESULT_AGAIN: [&[u64]; PARTS] = [&[3, 4], &[2, 3], &[1, 2], &[1]];

/// Gb/s that come in again by one port.
const PORT_TAKES: u64 = Speed::Gigabit100.gigabits();
/// Most ranks of a job: more ports do not share a RESULT.
const MOST_RANKS: u64 = crate::entries::MAX_RANKS as u64;

/// What packets of 256 lanes take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Whether there are ports enough for packets of 256 lanes.
    pub fits: bool,
    /// The layout for the ranks at each pipeline. Where ports are short, it has those that there
    /// are at the ranks' pipeline.
    pub layouts: BTreeMap<u16, Layout>,
    /// The figures, in one line.
    pub why: String,
}

/// Chooses for a switch with ranks at these ports, given by number and speed, and these other
/// ports. At worst all ports send at their speed.
pub fn choose(listed: &[(u16, Speed)], free: &[FreePort]) -> Choice {
    let mut loads: BTreeMap<u16, Load> = BTreeMap::new();
    for &(port, speed) in listed {
        let load = loads.entry(pipeline_of(port)).or_default();
        load.ports += 1;
        load.comes_in += speed.gigabits();
    }
    let with_ranks: Vec<_> = loads.keys().copied().collect();
    let found =
        layout::find(&with_ranks, free, |pipeline, parts| loads[&pipeline].ports_needed(parts));
    let fits = found.values().all(Option::is_some);
    let mut figures = Vec::new();
    let layouts = found.into_iter().map(|(pipeline, found)| {
        let free_here = free.iter().filter(|port| pipeline_of(port.number) == pipeline);
        figures.push(loads[&pipeline].in_words(
            pipeline,
            found.as_ref(),
            free_here.clone().count(),
        ));
        let most = usize::from(SLOT_CLASSES) - 1;
        let all_here = || Layout::at(pipeline, free_here.take(most).cloned().collect());
        (pipeline, found.unwrap_or_else(all_here))
    });
    let layouts = layouts.collect();
    Choice { fits, layouts, why: figures.join("; ") }
}

/// What the ports of a pipeline bring at most.
#[derive(Default)]
struct Load {
    ports: u64,
    /// Gb/s.
    comes_in: u64,
}

impl Load {
    /// The Gb/s that come in again to these parts, as a fraction: dividend and divisor.
    fn comes_again(&self, parts: Range<usize>) -> (u64, u64) {
        let ranks = self.ports.min(MOST_RANKS);
        let of_contribution = bytes(&CONTRIBUTION_AGAIN[parts.clone()]);
        let all = of_contribution * ranks + bytes(&RESULT_AGAIN[parts]);
        (self.comes_in * all, CONTRIBUTION * ranks)
    }

    /// The number of ports that this takes; `None` if slots cannot be spread over so many. The port
    /// with the most classes of slots must take what comes in again for them.
    fn ports_needed(&self, parts: Range<usize>) -> Option<usize> {
        let (dividend, divisor) = self.comes_again(parts);
        let classes = u64::from(SLOT_CLASSES);
        let takes =
            |ports: &u64| dividend * classes.div_ceil(*ports) <= PORT_TAKES * classes * divisor;
        (1..=classes).find(takes).map(|ports| ports as usize)
    }

    fn in_words(&self, pipeline: u16, layout: Option<&Layout>, free: usize) -> String {
        let (dividend, divisor) = self.comes_again(0..PARTS);
        let brought = format!(
            "{} ports of pipeline {pipeline} bring up to {} Gb/s, of which {} Gb/s would \
             recirculate",
            self.ports,
            self.comes_in,
            dividend.div_ceil(divisor)
        );
        if let Some(Layout(shares)) = layout {
            let shares = shares.iter().map(|share| share_in_words(share, pipeline));
            return format!("{brought}, {}", shares.collect::<Vec<_>>().join(", "));
        }
        let Some(ports) = self.ports_needed(0..PARTS) else {
            return format!("{brought}, more than any ports take");
        };
        format!(
            "{brought}; that takes port {} and {} more in loopback, of which {free} are free \
             there, and parts of packets find no room in other pipelines",
            own_port(pipeline),
            ports - 1
        )
    }
}

/// Bytes of frames that have so many parts each time that they come in again.
fn bytes(frames: &[&[u64]]) -> u64 {
    let of_frame = |parts: &u64| PASS + HEADERS + AROUND + parts * PART;
    frames.iter().copied().flatten().map(of_frame).sum()
}

/// The ports of a share, for ranks at this pipeline.
fn share_in_words(share: &Share, ranks_at: u16) -> String {
    let names: Vec<_> = share.loops.iter().map(|port| &*port.name).collect();
    let takes = share.ports().len() as u64 * PORT_TAKES;
    let own = own_port(share.pipeline);
    let ports = match (share.by_own_port, names.join(", ")) {
        (true, names) if names.is_empty() => format!("port {own} takes {takes}"),
        (true, names) => format!("port {own} takes {takes} with {names} in loopback"),
        (false, names) => format!("{names} in loopback take {takes}"),
    };
    match (share.pipeline == ranks_at, share.parts.len()) {
        (true, _) => format!("and {ports}"),
        (false, 1) => {
            format!("part {} goes to pipeline {}: {ports}", share.parts.end, share.pipeline)
        }
        (false, _) => format!(
            "parts {} to {} go to pipeline {}: {ports}",
            share.parts.start + 1,
            share.parts.end,
            share.pipeline
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Speed::{Gigabit10, Gigabit25, Gigabit100};

    /// Ports of so many connectors, the first at this number.
    fn listed(first: u16, count: u16, speed: Speed) -> Vec<(u16, Speed)> {
        (0..count).map(|place| (first + 4 * place, speed)).collect()
    }

    /// Free ports, named as if each pipeline had 16 connectors.
    fn free(first: u16, count: u16) -> Vec<FreePort> {
        let name = |number: u16| format!("{}/0", 16 * (number / 128) + number % 128 / 4 + 1);
        let port = |number| FreePort { name: name(number), number };
        (0..count).map(|place| port(first + 4 * place)).collect()
    }

    /// For ranks at a pipeline, which pipelines add up how many parts, and the ports in loopback.
    fn shares(choice: &Choice, at: u16) -> Vec<(u16, usize, Vec<&str>)> {
        let shares = choice.layouts[&at].0.iter();
        let of_share = shares.map(|share| {
            let names = share.loops.iter().map(|port| &*port.name).collect();
            (share.pipeline, share.parts.len(), names)
        });
        of_share.collect()
    }

    fn names(choice: &Choice) -> Vec<&str> {
        let loops = choice.layouts.values().flat_map(Layout::loops);
        loops.map(|port| &*port.name).collect()
    }

    /// Of a frame of 1098 bytes, 1122 on the link, 1866 and the N-th part of 4866 come in again.
    #[test]
    fn frames_that_come_in_again_have_these_bytes() {
        // 842, 586 and 330 bytes, each with 36 around it.
        assert_eq!(bytes(&CONTRIBUTION_AGAIN), 842 + 586 + 330 + 3 * 36);
        assert_eq!(bytes(&RESULT_AGAIN), 2 * (330 + 586 + 842) + 1098 + 7 * 36);
        assert_eq!(CONTRIBUTION, 1098 + 24);
        // By part: 878, 622, 366 of a contribution, 878 + 1134, 622 + 878, 366 + 622, 366 of a
        // RESULT.
        let of_parts = [0, 1, 2, 3].map(|part| {
            (bytes(&CONTRIBUTION_AGAIN[part..=part]), bytes(&RESULT_AGAIN[part..=part]))
        });
        assert_eq!(of_parts, [(0, 2012), (878, 1500), (622, 988), (366, 366)]);
    }

    #[test]
    fn three_ports_of_10_gigabits_take_no_loopback_and_four_take_one() {
        // 30 * (1866 + 4866 / 3) / 1122 = 93.3
        let three = choose(&listed(0, 3, Gigabit10), &free(12, 13));
        assert!(three.fits && names(&three).is_empty());
        assert_eq!(
            three.why,
            "3 ports of pipeline 0 bring up to 30 Gb/s, of which 94 Gb/s would recirculate, and \
             port 68 takes 100"
        );
        // 40 * (1866 + 4866 / 4) / 1122 = 109.9
        let four = choose(&listed(0, 4, Gigabit10), &free(16, 12));
        assert!(four.fits);
        assert_eq!(names(&four), ["5/0"]);
        assert_eq!(
            four.why,
            "4 ports of pipeline 0 bring up to 40 Gb/s, of which 110 Gb/s would recirculate, and \
             port 68 takes 200 with 5/0 in loopback"
        );
        let none_free = choose(&listed(0, 4, Gigabit10), &[]);
        assert!(!none_free.fits);
        assert_eq!(
            none_free.why,
            "4 ports of pipeline 0 bring up to 40 Gb/s, of which 110 Gb/s would recirculate; that \
             takes port 68 and 1 more in loopback, of which 0 are free there, and parts of packets \
             find no room in other pipelines"
        );
    }

    #[test]
    fn eight_ports_of_25_gigabits_take_four_in_loopback() {
        // 200 * (1866 + 4866 / 8) / 1122 = 441.1; a fifth of 64 classes are 13, so one port gets
        // 13 / 64 * 441.1 = 89.6, and of four it would get 16 / 64 * 441.1 = 110.3.
        let choice = choose(&listed(0, 8, Gigabit25), &free(32, 8));
        assert!(choice.fits);
        assert_eq!(names(&choice), ["9/0", "10/0", "11/0", "12/0"]);
        assert_eq!(choice.layouts[&0].ports(), [(); 4].map(|()| vec![68, 32, 36, 40, 44]));
        let short = choose(&listed(0, 8, Gigabit25), &free(32, 3));
        assert!(!short.fits);
        // A folder with one program leaves no choice: then it takes what there is.
        assert_eq!(names(&short), ["9/0", "10/0", "11/0"]);
    }

    /// Three ports would take 291 Gb/s at most, since one of them has 22 of 64 classes of slots.
    #[test]
    fn the_port_with_the_most_slots_counts() {
        let loops = |ranks, free: &[FreePort]| {
            let choice = choose(&listed(0, ranks, Gigabit10), free);
            choice.fits.then(|| names(&choice).len())
        };
        // 90 * (1866 + 4866 / 9) / 1122 = 193.05 and 22 / 64 of it 66.4; of two ports, 96.5.
        assert_eq!(loops(9, &free(36, 7)), Some(1));
        // 14 ports: 276.2, and 22 / 64 of it 95; 15 ports: 292.8, 22 / 64: 100.7.
        assert_eq!(loops(14, &free(56, 2)), Some(2));
        assert_eq!(loops(15, &free(60, 1)), None);
        assert_eq!(loops(15, &free(60, 5)), Some(3));
    }

    /// 8 ports of 100 Gb/s, at a chip of two pipelines with 16 connectors each. 800 * (1866 +
    /// 4866 / 8) / 1122 = 1764.2, more than the 9 ports that are left in pipeline 0 take.
    #[test]
    fn parts_go_to_another_pipeline_where_ports_are_short() {
        let others = [free(32, 8), free(128, 16)].concat();
        let choice = choose(&listed(0, 8, Gigabit100), &others);
        assert!(choice.fits);
        // Of the last part, 800 * (366 + 366 / 8) / 1122 = 293.6 Gb/s come to pipeline 1 and 1470.6
        // to pipeline 0, whose 9 ports take 9 * 100 * 64 / 72 = 800; of the last two, 825.1 and
        // 939.1; of the last three, 1584.8, of which a 16th is 99.05, and 800 * 2012 / 8 / 1122 =
        // 179.3.
        let there: Vec<_> = (17..32).map(|connector| format!("{connector}/0")).collect();
        let there: Vec<_> = there.iter().map(String::as_str).collect();
        assert_eq!(shares(&choice, 0), [(0, 1, vec!["9/0"]), (1, 3, there.clone())]);
        assert_eq!(
            choice.why,
            format!(
                "8 ports of pipeline 0 bring up to 800 Gb/s, of which 1765 Gb/s would recirculate, \
                 and port 68 takes 200 with 9/0 in loopback, parts 2 to 4 go to pipeline 1: port \
                 196 takes 1600 with {} in loopback",
                there.join(", ")
            )
        );
        let [first, second, third, fourth] = choice.layouts[&0].ports();
        assert_eq!(first, [68, 32]);
        assert_eq!(
            second,
            [&[196][..], &(0..15).map(|p| 128 + 4 * p).collect::<Vec<_>>()].concat()
        );
        assert!(third == second && fourth == second);
        // One port less in pipeline 1, and three parts do not fit any more.
        assert!(!choose(&listed(0, 8, Gigabit100), &others[..22]).fits);
    }

    /// 15 ports of 100 Gb/s leave pipeline 0 two ports.
    #[test]
    fn on_four_pipelines_each_may_have_a_part() {
        let counts = |free: &[FreePort]| -> Option<Vec<_>> {
            let choice = choose(&listed(0, 15, Gigabit100), free);
            let shares = choice.layouts[&0].0.iter();
            choice.fits.then(|| shares.map(|share| share.ports().len()).collect())
        };
        let of_four = |first, second, third| {
            [free(60, 1), free(128, first), free(256, second), free(384, third)].concat()
        };
        // 1500 * (0 + 2012 / 15) / 1122 = 179.3; (878 + 1500 / 15): 1307.5, over 13 ports 5 / 64 of
        // it, 102.1, over 16 4 / 64; (622 + 988 / 15): 919.6, over 10 ports 7 / 64 of it, 100.6,
        // over 11 6 / 64; (366 + 366 / 15): 521.9, over 5 ports 13 / 64, 106.01, over 6 11 / 64.
        assert_eq!(counts(&of_four(15, 10, 5)), Some(vec![2, 16, 11, 6]));
        // The pipeline with the most room takes the second part.
        assert_eq!(counts(&of_four(5, 10, 15)), Some(vec![2, 16, 11, 6]));
        assert_eq!(counts(&of_four(14, 10, 5)), None);
        assert_eq!(counts(&of_four(15, 9, 5)), None);
        assert_eq!(counts(&of_four(15, 10, 4)), None);
        // The last two parts, 1441.5, find room in one pipeline with 16 ports: 90.1 each.
        assert_eq!(counts(&of_four(15, 15, 15)), Some(vec![2, 16, 16]));
        // All 16 connectors of pipeline 0 leave it port 68, but a RESULT takes more.
        let full = choose(&listed(0, 16, Gigabit100), &of_four(16, 16, 16)[1..]);
        assert!(!full.fits);
    }

    #[test]
    fn a_pipeline_full_of_ports_of_100_gigabits_has_64_lanes() {
        // 1600 * (1866 + 4866 / 16) / 1122 = 3094.7
        let choice = choose(&listed(0, 16, Gigabit100), &[]);
        assert!(!choice.fits && names(&choice).is_empty());
        assert!(choice.why.contains("1600 Gb/s, of which 3095 Gb/s would"), "{}", choice.why);
    }

    #[test]
    fn one_pipeline_with_too_many_decides_for_all() {
        let [small, large] = [listed(0, 4, Gigabit10), listed(128, 16, Gigabit100)];
        let all_free = free(16, 12);
        let both = choose(&[small.clone(), large].concat(), &all_free);
        assert!(!both.fits);
        assert!(both.why.contains("pipeline 0") && both.why.contains("; 16 ports of pipeline 1"));
    }

    /// Each has its own port. So the ranks at pipeline 1, which has no free port, get one of
    /// pipeline 0, once its own ranks have theirs.
    #[test]
    fn a_pipeline_helps_another_with_what_it_does_not_need() {
        let ranks = [listed(0, 4, Gigabit10), listed(128, 4, Gigabit10)].concat();
        let near = choose(&ranks, &[free(16, 12), free(160, 1)].concat());
        assert!(near.fits);
        assert_eq!(names(&near), ["5/0", "25/0"]);
        let far = choose(&ranks, &free(16, 2));
        assert!(far.fits);
        // 40 * (366 + 366 / 4) / 1122 = 16.3 of 109.9 Gb/s.
        assert_eq!(shares(&far, 0), [(0, 4, vec!["5/0"])]);
        assert_eq!(shares(&far, 1), [(1, 3, vec![]), (0, 1, vec!["6/0"])]);
        assert!(
            far.why.ends_with(
                "and port 196 takes 100, part 4 goes to pipeline 0: 6/0 in loopback take 100"
            ),
            "{}",
            far.why
        );
        assert!(!choose(&ranks, &free(16, 1)).fits);
        // Both need a third one: the first of them gets its own port.
        let third = choose(&ranks, &free(256, 1));
        assert!(third.fits);
        assert_eq!(shares(&third, 0), [(0, 3, vec![]), (2, 1, vec![])]);
        assert_eq!(shares(&third, 1), [(1, 3, vec![]), (2, 1, vec!["33/0"])]);
        // A port that a pipeline has of its own is for its ranks, even if ports are short there.
        let short = [listed(0, 4, Gigabit10), listed(128, 8, Gigabit100)].concat();
        let choice = choose(&short, &free(160, 1));
        assert_eq!(shares(&choice, 0), [(0, 3, vec![]), (1, 1, vec!["25/0"])]);
    }
}
