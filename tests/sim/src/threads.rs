//! Draws the data threads that ranks offer, and calls that are large enough to be cut into parts.

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::wire::auth::TAG_LEN;
use switchml_userspace_core::jobs::Threads;
use switchml_worker_core::call::{Call, Kind};
use switchml_worker_core::packet::{LARGEST_DATAGRAM, packet_len};

use crate::rng::Rng;
use crate::scenario::{JobPlan, SECOND, Scenario};

/// Most ranks of a job with large calls, which are half a megabyte and more.
const MOST_RANKS: u16 = 4;
/// Least and most blocks of a packet where calls are large: few packets carry them.
const BLOCKS: (u64, u64) = (8, 24);
/// Bundles of a large call: with 8 of them two shards run parts of it, with 16 four.
const BUNDLES: (u64, u64) = (6, 20);

/// Gives some scenarios ranks with several data threads, and some of these large calls. It draws
/// from a generator of its own, so that the rest of a seed's scenario does not depend on it.
pub fn draw(scenario: Scenario) -> Scenario {
    let rng = &mut Rng::new(scenario.seed.rotate_left(16) ^ 0x7468_7265_6164);
    if !rng.one_in(3) {
        return scenario;
    }
    let mut scenario = draw_threads(rng, scenario);
    // Shards open their paths one after another, and large packets are looked for in several steps.
    scenario.join_timeout += 8 * SECOND;
    if rng.one_in(6) {
        draw_large_calls(rng, &mut scenario);
    }
    scenario
}

/// Most jobs agree on two or four threads; some on one, because a rank offers no more.
fn draw_threads(rng: &mut Rng, mut scenario: Scenario) -> Scenario {
    for job in &scenario.jobs {
        let (most, differ) = (rng.pick(&[2, 2, 4, 4, 7]), rng.one_in(4));
        for &worker in &job.workers {
            let most = if differ { rng.range(most / 2, most) } else { most };
            scenario.threads[worker] = Threads { most: most as u32, host: String::new() };
        }
    }
    scenario
}

pub(crate) fn draw_large_calls(rng: &mut Rng, scenario: &mut Scenario) {
    let (least, most) = BLOCKS;
    scenario.max_lanes = LANES_PER_BLOCK as u16 * rng.range(least, most) as u16;
    for links in &mut scenario.links {
        let blocks = rng.range(least, most) as usize;
        let tag = if scenario.tags { TAG_LEN } else { 0 };
        let largest = packet_len(blocks * LANES_PER_BLOCK) + tag;
        links.iter_mut().for_each(|link| link.largest_packet = largest);
    }
    let small = |job: &&mut JobPlan| job.ranks <= MOST_RANKS;
    for job in scenario.jobs.iter_mut().filter(small) {
        for _ in 0..rng.range(1, 2) {
            let place = rng.below(job.program.len() as u64) as usize;
            let step = &mut job.program[place];
            if step.call.kind != Kind::Barrier {
                let (least, most) = BUNDLES;
                let lanes = rng.range(least, most) as usize * LARGEST_DATAGRAM / 4;
                let per_lane = step.packing(job.ranks).map_or(1, |packing| packing.elements());
                let count = lanes * per_lane * 4 / step.call.dtype.size().max(4);
                let call = Call { count, ..step.call };
                step.call = if call.codec(job.ranks.into()).is_ok() { call } else { step.call };
            }
        }
    }
}
