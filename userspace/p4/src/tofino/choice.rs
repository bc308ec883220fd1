//! The choice between packets of 64 and of 256 lanes: whether the frames that come in again for
//! 256 lanes find room in the ports that there are. Without I/O.

use std::collections::BTreeMap;

use super::pipeline_of;
use super::ports::Speed;
use super::recirculation::{OWN_PORT, SLOT_CLASSES};

/// Bytes of a frame's headers: Ethernet, IPv4, UDP and ours.
const HEADERS: u64 = 14 + 20 + 8 + 32;
/// Bytes of what is in front of a frame that comes in again: `pass_t` of `p4/include/headers.p4`.
const PASS: u64 = 12;
/// Bytes that a frame takes beside its own: preamble, gap and FCS.
const AROUND: u64 = 24;
/// Bytes of a part of 64 lanes.
const PART: u64 = 256;

/// Bytes of a contribution of 256 lanes on its link.
const CONTRIBUTION: u64 = HEADERS + 4 * PART + AROUND;
/// Bytes of its passes with three parts, two, and one.
const CONTRIBUTION_AGAIN: u64 = 3 * (PASS + HEADERS + AROUND) + (3 + 2 + 1) * PART;
/// Bytes of the passes in which a RESULT is read, two for each part but the first of them.
const RESULT_AGAIN: u64 = 7 * (PASS + HEADERS + AROUND) + (1 + 1 + 2 + 2 + 3 + 3 + 4) * PART;

/// Gb/s that come in again by one port.
const PORT_TAKES: u64 = Speed::Gigabit100.gigabits();
/// Most ranks of a job: more ports do not share a RESULT.
const MOST_RANKS: u64 = crate::entries::MAX_RANKS as u64;

/// A port of the front panel that may be put in loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreePort {
    /// Its name, such as `9/0`.
    pub name: String,
    /// Its number.
    pub number: u16,
}

/// What packets of 256 lanes take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Whether there are ports enough for packets of 256 lanes.
    pub fits: bool,
    /// The free ports to put in loopback for them, as far as there are any.
    pub loops: Vec<FreePort>,
    /// The figures, in one line.
    pub why: String,
}

/// Chooses for a switch with ranks at these ports, given by number and speed, and these other
/// ports. At worst all ports send at their speed.
pub fn choose(listed: &[(u16, Speed)], free: &[FreePort]) -> Choice {
    let mut pipelines: BTreeMap<u16, Load> = BTreeMap::new();
    for &(port, speed) in listed {
        let load = pipelines.entry(pipeline_of(port)).or_default();
        load.ports += 1;
        load.comes_in += speed.gigabits();
    }
    let mut choice = Choice { fits: true, loops: Vec::new(), why: String::new() };
    let mut figures = Vec::new();
    for (number, load) in pipelines {
        let of_pipeline = free.iter().filter(|port| pipeline_of(port.number) == number);
        let free: Vec<_> = of_pipeline.cloned().collect();
        // One of them is the pipeline's own.
        let loops = load.ports_to_recirculate().map(|ports| ports - 1);
        choice.fits &= loops.is_some_and(|loops| loops <= free.len());
        figures.push(load.in_words(number, loops, &free));
        choice.loops.extend(free.into_iter().take(loops.unwrap_or(usize::MAX)));
    }
    choice.why = figures.join("; ");
    choice
}

/// What the ports of a pipeline bring at most.
#[derive(Default)]
struct Load {
    ports: u64,
    /// Gb/s.
    comes_in: u64,
}

impl Load {
    /// What comes in again of each `divisor` Gb/s, as a fraction: dividend and divisor.
    fn comes_again(&self) -> (u64, u64) {
        let ranks = self.ports.min(MOST_RANKS);
        let of_contribution = CONTRIBUTION_AGAIN * ranks + RESULT_AGAIN;
        (self.comes_in * of_contribution, CONTRIBUTION * ranks)
    }

    /// The number of ports that this takes; `None` if slots cannot be spread over so many. The port
    /// with the most classes of slots must take what comes in again for them.
    fn ports_to_recirculate(&self) -> Option<usize> {
        let (dividend, divisor) = self.comes_again();
        let classes = u64::from(SLOT_CLASSES);
        let takes =
            |ports: &u64| dividend * classes.div_ceil(*ports) <= PORT_TAKES * classes * divisor;
        (1..=classes).find(takes).map(|ports| ports as usize)
    }

    fn in_words(&self, pipeline: u16, loops: Option<usize>, free: &[FreePort]) -> String {
        let (dividend, divisor) = self.comes_again();
        let brought = format!(
            "{} ports of pipeline {pipeline} bring up to {} Gb/s, of which {} Gb/s would \
             recirculate",
            self.ports,
            self.comes_in,
            dividend.div_ceil(divisor)
        );
        match loops {
            Some(0) => format!("{brought}, and port {OWN_PORT} takes {PORT_TAKES}"),
            Some(loops) if loops <= free.len() => {
                let names: Vec<_> = free[..loops].iter().map(|port| &*port.name).collect();
                format!(
                    "{brought}, and port {OWN_PORT} takes {} with {} in loopback",
                    (loops as u64 + 1) * PORT_TAKES,
                    names.join(", ")
                )
            }
            Some(loops) => format!(
                "{brought}; port {OWN_PORT} takes {PORT_TAKES}, and needs {loops} ports in \
                 loopback beside it, but {} are free",
                free.len()
            ),
            None => format!("{brought}, more than any ports take"),
        }
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

    fn free(first: u16, count: u16) -> Vec<FreePort> {
        let port = |number| FreePort { name: format!("{}/0", number / 4 + 1), number };
        (0..count).map(|place| port(first + 4 * place)).collect()
    }

    fn names(choice: &Choice) -> Vec<&str> {
        choice.loops.iter().map(|port| &*port.name).collect()
    }

    /// Of a frame of 1098 bytes, 1122 on the link, 1866 and the N-th part of 4866 come in again.
    #[test]
    fn frames_that_come_in_again_have_these_bytes() {
        // 842, 586 and 330 bytes, each with 36 around it.
        assert_eq!(CONTRIBUTION_AGAIN, 842 + 586 + 330 + 3 * 36);
        assert_eq!(RESULT_AGAIN, 2 * (330 + 586 + 842) + 1098 + 7 * 36);
        assert_eq!(CONTRIBUTION, 1098 + 24);
    }

    #[test]
    fn three_ports_of_10_gigabits_take_no_loopback_and_four_take_one() {
        // 30 * (1866 + 4866 / 3) / 1122 = 93.3
        let three = choose(&listed(0, 3, Gigabit10), &free(12, 13));
        assert!(three.fits && three.loops.is_empty());
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
        assert!(
            none_free.why.ends_with(
                "port 68 takes 100, and needs 1 ports in loopback beside it, but 0 are free"
            ),
            "{}",
            none_free.why
        );
    }

    #[test]
    fn eight_ports_of_25_gigabits_take_four_in_loopback() {
        // 200 * (1866 + 4866 / 8) / 1122 = 441.1; a fifth of 64 classes are 13, so one port gets
        // 13 / 64 * 441.1 = 89.6, and of four it would get 16 / 64 * 441.1 = 110.3.
        let choice = choose(&listed(0, 8, Gigabit25), &free(32, 8));
        assert!(choice.fits);
        assert_eq!(names(&choice), ["9/0", "10/0", "11/0", "12/0"]);
        assert!(!choose(&listed(0, 8, Gigabit25), &free(32, 3)).fits);
    }

    /// Three ports would take 291 Gb/s at most, since one of them has 22 of 64 classes of slots.
    #[test]
    fn the_port_with_the_most_slots_counts() {
        // 90 * (1866 + 4866 / 9) / 1122 = 193.05 and 22 / 64 of it 66.4; of two ports, 96.5.
        assert_eq!(choose(&listed(0, 9, Gigabit10), &free(36, 7)).loops.len(), 1);
        // 14 ports: 276.2, and 22 / 64 of it 95; 15 ports: 292.8, 22 / 64: 100.7.
        assert_eq!(choose(&listed(0, 14, Gigabit10), &free(56, 2)).loops.len(), 2);
        assert!(!choose(&listed(0, 15, Gigabit10), &free(60, 1)).fits);
        assert_eq!(choose(&listed(0, 15, Gigabit10), &free(60, 5)).loops.len(), 3);
    }

    #[test]
    fn a_pipeline_full_of_ports_of_100_gigabits_has_64_lanes() {
        // 1600 * (1866 + 4866 / 16) / 1122 = 3094.7
        let choice = choose(&listed(0, 16, Gigabit100), &[]);
        assert!(!choice.fits && choice.loops.is_empty());
        assert!(choice.why.contains("1600 Gb/s, of which 3095 Gb/s would"), "{}", choice.why);
    }

    #[test]
    fn one_pipeline_with_too_many_decides_for_all() {
        let [small, large] = [listed(0, 4, Gigabit10), listed(128, 16, Gigabit100)];
        let all_free = free(16, 12);
        let both = choose(&[small.clone(), large].concat(), &all_free);
        assert!(!both.fits);
        assert!(both.why.contains("pipeline 0") && both.why.contains("; 16 ports of pipeline 1"));
        // Each pipeline has its own ports: those of the other do not help.
        let far = listed(128, 4, Gigabit10);
        assert!(!choose(&[small.clone(), far.clone()].concat(), &all_free).fits);
        let near = [all_free, free(160, 1)].concat();
        let each = choose(&[small, far].concat(), &near);
        assert!(each.fits);
        assert_eq!(names(&each), ["5/0", "41/0"]);
    }
}
