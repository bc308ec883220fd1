//! Statistics of calls: their chunks, resends, round trips, and the ranks that they waited for.

use std::borrow::Cow;
use std::ops::AddAssign;
use std::time::Duration;

use hdrhistogram::Histogram;

use switchml_protocol::bpf_types::times::{SHIFT, SUM, Times, bucket};
use switchml_protocol::ranks::Ranks;

use crate::engine::History;

/// Statistics of one call on this rank, or of several calls together.
///
/// Every chunk is counted in the call that it belongs to, also if calls overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallStats {
    /// Number of calls.
    pub calls: u64,
    /// Bytes of this rank's elements.
    pub bytes: u64,
    /// Time from a call's first packet to its last result, for the data thread that took longest;
    /// for several calls the sum.
    pub duration: Duration,
    /// Chunks sent, each counted once.
    pub chunks: u64,
    /// Data chunks of float sums that were not sent, because they are zero on all ranks, or not
    /// finite on one.
    pub skipped: u64,
    /// Bytes of this rank's elements in these chunks.
    pub skipped_bytes: u64,
    /// Chunks sent without their lanes at first, which are zeros.
    pub empty: u64,
    /// Chunks of these whose lanes the aggregator asked for.
    pub rooms: u64,
    /// Chunks sent again because no answer came in time.
    pub resent_by_timer: u64,
    /// Chunks sent again because results of later ones came first.
    pub resent_by_overtaking: u64,
    /// Chunks sent again to ask whether a late rank has come.
    pub probes: u64,
    /// PENDING answers: the aggregator had this rank's chunk, and waited for others.
    pub pending: u64,
    /// Data chunks of small float sums that were sent before the ranks had agreed on their
    /// exponents.
    pub speculative: u64,
    /// Chunks of these whose results did not count: they were scaled wrongly, or did not have to be
    /// sent.
    pub misspeculated: u64,
    /// Times from chunks' first transmission to their result.
    pub round_trips: RoundTrips,
    /// Times from the call's first packet to each chunk's result: the progress of the call, and the
    /// length of its tail.
    pub finished: RoundTrips,
    /// The late ranks, by rank; empty while no rank was late.
    stragglers: Vec<Straggler>,
}

/// How late a rank was, as far as this rank noticed: it asks for an overdue chunk, and is told who
/// is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Straggler {
    /// Chunks that lacked this rank's share at the last PENDING.
    pub chunks: u64,
    /// How long at least one such chunk was outstanding.
    pub waited: Duration,
}

/// Times from chunks' first transmission to their result. They include loss and waiting for ranks.
///
/// They are kept with a resolution of 64 ns or 1 %, the coarser of the two, up to a minute.
#[derive(Clone, Debug, Default)]
pub struct RoundTrips {
    histogram: Option<Histogram<u64>>,
    /// Times that are not in the histogram yet: a time in ns, and the number of chunks in a row
    /// that had it. Chunks of a superpacket travel together, and a small call has so few of them
    /// that a histogram would cost more than its other statistics.
    runs: Vec<(u64, u64)>,
}

impl CallStats {
    /// The ranks that were waited for, lowest first.
    pub fn stragglers(&self) -> impl Iterator<Item = (u32, Straggler)> {
        (0..).zip(self.stragglers.iter().copied()).filter(|(_, straggler)| straggler.chunks > 0)
    }

    /// Adds the statistics of another part of the same call, which ran at the same time. The
    /// longest duration counts.
    pub fn add_part(&mut self, part: &Self) {
        let (calls, duration) = (self.calls.max(part.calls), self.duration.max(part.duration));
        let waited: Vec<_> = self.stragglers.iter().map(|straggler| straggler.waited).collect();
        *self += part;
        self.calls = calls;
        self.duration = duration;
        for (rank, straggler) in (0..).zip(&mut self.stragglers) {
            let of_part = part.stragglers.get(rank).map_or(Duration::ZERO, |part| part.waited);
            straggler.waited = of_part.max(waited.get(rank).copied().unwrap_or_default());
        }
    }

    fn straggler(&mut self, rank: u32) -> &mut Straggler {
        let rank = rank as usize;
        if self.stragglers.len() <= rank {
            self.stragglers.resize(rank + 1, Straggler::default());
        }
        &mut self.stragglers[rank]
    }
}

impl AddAssign<&Self> for CallStats {
    fn add_assign(&mut self, other: &Self) {
        self.calls += other.calls;
        self.bytes += other.bytes;
        self.duration += other.duration;
        self.chunks += other.chunks;
        self.skipped += other.skipped;
        self.skipped_bytes += other.skipped_bytes;
        self.empty += other.empty;
        self.rooms += other.rooms;
        self.resent_by_timer += other.resent_by_timer;
        self.resent_by_overtaking += other.resent_by_overtaking;
        self.probes += other.probes;
        self.pending += other.pending;
        self.speculative += other.speculative;
        self.misspeculated += other.misspeculated;
        self.round_trips += &other.round_trips;
        self.finished += &other.finished;
        for (rank, straggler) in other.stragglers() {
            let sum = self.straggler(rank);
            sum.chunks += straggler.chunks;
            sum.waited += straggler.waited;
        }
    }
}

impl RoundTrips {
    /// Most runs that are kept.
    const RUNS: usize = 64;

    /// Number of chunks with a recorded time.
    pub fn count(&self) -> u64 {
        self.all().map_or(0, |histogram| histogram.len())
    }

    /// The time that this share of the chunks, 0 to 1, did not exceed; `None` if there were none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        self.all().map(|histogram| Duration::from_nanos(histogram.value_at_quantile(share)))
    }

    /// The longest time; `None` if there were none.
    pub fn max(&self) -> Option<Duration> {
        self.all().map(|histogram| Duration::from_nanos(histogram.max()))
    }

    /// Adds all times to a coarser histogram, as aggregators keep it.
    pub fn add_to(&self, times: &mut Times) {
        let mut add = |nanoseconds: u64, chunks: u64| {
            let units = u32::try_from(nanoseconds >> SHIFT).unwrap_or(u32::MAX);
            times[bucket(units)] += chunks;
            times[SUM] = times[SUM].saturating_add(chunks.saturating_mul(units.into()));
        };
        self.runs.iter().for_each(|&(time, chunks)| add(time, chunks));
        for bucket in self.histogram.iter().flat_map(Histogram::iter_recorded) {
            add(bucket.value_iterated_to(), bucket.count_at_value());
        }
    }

    /// Records `count` chunks with this time in ns.
    fn record(&mut self, nanoseconds: u64, count: u64) {
        match self.runs.last_mut() {
            Some((time, chunks)) if *time == nanoseconds => *chunks += count,
            _ => {
                if self.runs.len() == Self::RUNS {
                    let histogram = self.histogram.get_or_insert_with(histogram);
                    self.runs
                        .drain(..)
                        .for_each(|(time, chunks)| histogram.saturating_record_n(time, chunks));
                }
                self.runs.push((nanoseconds, count));
            }
        }
    }

    /// All recorded times, if there are any.
    fn all(&self) -> Option<Cow<'_, Histogram<u64>>> {
        if self.runs.is_empty() {
            return self.histogram.as_ref().map(Cow::Borrowed);
        }
        let mut all = self.histogram.clone().unwrap_or_else(histogram);
        self.runs.iter().for_each(|&(time, chunks)| all.saturating_record_n(time, chunks));
        Some(Cow::Owned(all))
    }
}

impl PartialEq for RoundTrips {
    fn eq(&self, other: &Self) -> bool {
        self.all() == other.all()
    }
}

impl AddAssign<&Self> for RoundTrips {
    fn add_assign(&mut self, other: &Self) {
        other.runs.iter().for_each(|&(time, chunks)| self.record(time, chunks));
        let Some(other) = &other.histogram else { return };
        let sum = self.histogram.get_or_insert_with(histogram);
        // This is five times as fast as adding all buckets, because a call has few.
        for bucket in other.iter_recorded() {
            sum.saturating_record_n(bucket.value_iterated_to(), bucket.count_at_value());
        }
    }
}

/// A histogram from 64 ns to a minute, with two digits: 24 KiB.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(64, 60_000_000_000, 2).expect("the bounds are in order")
}

/// Records one call's statistics.
#[derive(Debug, Default)]
pub struct Recorder {
    stats: CallStats,
    first_sent_at: Option<u64>,
    /// By rank, the latest period in which a chunk waited for it.
    waits: Vec<(u64, u64)>,
}

impl Recorder {
    /// A recorder for a call with `bytes` bytes of elements.
    pub fn new(bytes: usize) -> Self {
        Self {
            stats: CallStats { calls: 1, bytes: bytes as u64, ..CallStats::default() },
            ..Self::default()
        }
    }

    /// A chunk with this history has its result now, in ns, for which it waited for these ranks.
    pub fn record(&mut self, now: u64, history: &History, missing: &Ranks) {
        let first = *self.first_sent_at.get_or_insert(history.sent_at);
        let stats = &mut self.stats;
        stats.duration = Duration::from_nanos(now.saturating_sub(first));
        stats.chunks += 1;
        stats.empty += u64::from(history.empty);
        stats.rooms += u64::from(history.room);
        stats.resent_by_timer += u64::from(history.resent_by_timer);
        stats.resent_by_overtaking += u64::from(history.resent_by_overtaking);
        stats.probes += u64::from(history.probes);
        stats.pending += u64::from(history.pending);
        stats.round_trips.record(now.saturating_sub(history.sent_at), 1);
        stats.finished.record(now.saturating_sub(first), 1);
        if history.pending > 0 {
            missing.iter().for_each(|rank| self.waited_for(rank.into(), history.sent_at, now));
        }
    }

    /// Records that a data chunk of `bytes` bytes is not sent.
    pub fn skipped(&mut self, bytes: usize) {
        self.stats.skipped += 1;
        self.stats.skipped_bytes += bytes as u64;
    }

    /// Data chunks `sent` were speculative; the exponents of `right` were predicted right. Both are
    /// bitmaps.
    pub fn speculated(&mut self, sent: u64, right: u64) {
        self.stats.speculative += u64::from(sent.count_ones());
        self.stats.misspeculated += u64::from((sent & !right).count_ones());
    }

    /// The statistics of the call.
    pub fn finish(self) -> CallStats {
        self.stats
    }

    /// Chunks wait side by side: time counts once.
    fn waited_for(&mut self, rank: u32, from: u64, until: u64) {
        if self.waits.len() <= rank as usize {
            self.waits.resize(rank as usize + 1, (0, 0));
        }
        let (begin, end) = &mut self.waits[rank as usize];
        let new = if from > *end {
            *begin = from;
            until.saturating_sub(from)
        } else {
            let earlier = begin.saturating_sub(from);
            *begin -= earlier;
            earlier + until.saturating_sub(*end)
        };
        *end = until.max(*end);
        let straggler = self.stats.straggler(rank);
        straggler.chunks += 1;
        straggler.waited += Duration::from_nanos(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn sent_at(time: u64) -> History {
        History { sent_at: time, ..History::default() }
    }

    /// Chunks with the times of their results, and the ranks that they waited for.
    fn call_with(chunks: &[(u64, History, &[u16])]) -> CallStats {
        let mut recorder = Recorder::new(100);
        for (now, history, missing) in chunks {
            recorder.record(*now, history, &missing.iter().copied().collect());
        }
        recorder.finish()
    }

    fn call(chunks: &[(u64, History)]) -> CallStats {
        let chunks: Vec<_> =
            chunks.iter().map(|(now, history)| (*now, *history, &[][..])).collect();
        call_with(&chunks)
    }

    fn waited(sent: u64, now: u64, missing: &[u16]) -> (u64, History, &[u16]) {
        (now, History { pending: 1, ..sent_at(sent) }, missing)
    }

    #[test]
    fn quantiles_of_known_times() {
        // 1, 2, …, 1000 us, in another order.
        let chunks: Vec<_> =
            (0..1000).map(|i| (5 * US + (i * 7 % 1000 + 1) * US, sent_at(5 * US))).collect();
        let stats = call(&chunks);
        assert_eq!(
            (stats.calls, stats.bytes, stats.chunks, stats.round_trips.count()),
            (1, 100, 1000, 1000)
        );
        for (share, microseconds) in
            [(0.0, 1.0), (0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)]
        {
            let found = stats.round_trips.quantile(share).unwrap().as_secs_f64() * 1e6;
            assert!(
                (found - microseconds).abs() <= f64::max(0.064, microseconds / 100.0),
                "{share}: {found} us"
            );
        }
        assert!(
            stats.round_trips.max().unwrap().abs_diff(Duration::from_millis(1))
                < Duration::from_micros(10)
        );
    }

    #[test]
    fn few_times_and_many_count_alike() {
        let mut sum = CallStats::default();
        let mut count = 0;
        // Runs of the same time, from few to more than [`RoundTrips::RUNS`]; each call is added to
        // the sum.
        for runs in [1, 2, RoundTrips::RUNS, RoundTrips::RUNS + 1, 3, 500] {
            let chunks: Vec<_> = (0..runs)
                .flat_map(|run| vec![((run as u64 + 1) * US, sent_at(0)); run % 5 + 1])
                .collect();
            let stats = call(&chunks);
            assert_eq!(stats.round_trips.count(), chunks.len() as u64, "{runs} runs");
            let longest = stats.round_trips.max().unwrap().as_secs_f64() * 1e6;
            assert!(
                (longest - runs as f64).abs() <= f64::max(0.064, runs as f64 / 100.0),
                "{runs} runs: {longest} us"
            );
            sum += &stats;
            count += chunks.len() as u64;
            assert_eq!(
                (sum.round_trips.count(), sum.finished.count()),
                (count, count),
                "{runs} runs"
            );
        }
        // Each call has one chunk of 1 us, and all except the first two calls have chunks of 2 us.
        assert!(sum.round_trips.quantile(6.0 / count as f64).unwrap() < Duration::from_nanos(1100));
        assert!(sum.round_trips.quantile(8.0 / count as f64).unwrap() > Duration::from_nanos(1900));
    }

    #[test]
    fn times_in_powers_of_two_of_a_unit() {
        // Times in ns and their buckets, by hand: 0, 1 and 3 units of 1024 ns, and more than 4.3 s.
        let by_hand = [(1023, 0), (1024, 1), (2047, 1), (3 * 1024, 2), (5_000_000_000, 23)];
        let chunks: Vec<_> = by_hand.map(|(time, _)| (time, sent_at(0))).into();
        let mut expected = [0; 25];
        by_hand.iter().for_each(|(_, bucket)| expected[*bucket] += 1);
        expected[24] = 1 + 1 + 3 + 5_000_000_000 / 1024;
        let mut times = [0; 25];
        call(&chunks).round_trips.add_to(&mut times);
        assert_eq!(times, expected);
        // Many runs of the middle of bucket 11, 1024 to 2047 units, come from the histogram.
        let many: Vec<_> = (0..500).map(|i| (1500 * 1024 + i, sent_at(0))).collect();
        call(&many).round_trips.add_to(&mut times);
        expected[11] += 500;
        assert_eq!(times[..24], expected[..24]);
        let units = times[24] - expected[24];
        assert!(units.abs_diff(500 * 1500) <= 500 * 15, "to 1 %: {units}");
    }

    #[test]
    fn times_beyond_the_bounds_count_as_the_bounds() {
        let stats = call(&[(0, sent_at(0)), (3_600_000_000_000, sent_at(0))]);
        assert!(stats.round_trips.quantile(0.5).unwrap() < Duration::from_nanos(200));
        let longest = stats.round_trips.max().unwrap();
        assert!(
            longest >= Duration::from_secs(60) && longest < Duration::from_secs(62),
            "{longest:?}"
        );
    }

    #[test]
    fn a_call_lasts_from_its_first_packet_to_its_last_result() {
        let stats = call(&[(30, sent_at(10)), (90, sent_at(20)), (95, sent_at(11))]);
        assert_eq!(stats.duration, Duration::from_nanos(85));
        assert_eq!(call(&[]).duration, Duration::ZERO);
        assert_eq!(call(&[]).round_trips.quantile(0.5), None);
    }

    #[test]
    fn chunks_finish_after_the_calls_first_packet() {
        let stats = call(&[
            (30 * US, sent_at(10 * US)),
            (90 * US, sent_at(80 * US)),
            (70 * US, sent_at(50 * US)),
        ]);
        let finished = [0.0, 0.5, 1.0].map(|share| stats.finished.quantile(share).unwrap());
        for (found, expected) in finished.into_iter().zip([20, 60, 80]) {
            assert!(
                found.abs_diff(Duration::from_micros(expected)) < Duration::from_micros(1),
                "{finished:?}"
            );
        }
    }

    #[test]
    fn resends_by_cause() {
        let chunk = |timer, overtaking, probes, pending| History {
            resent_by_timer: timer,
            resent_by_overtaking: overtaking,
            probes,
            pending,
            ..sent_at(0)
        };
        let stats =
            call(&[(1, chunk(1, 2, 3, 4)), (2, chunk(10, 20, 30, 40)), (3, chunk(0, 0, 0, 0))]);
        let counters =
            (stats.resent_by_timer, stats.resent_by_overtaking, stats.probes, stats.pending);
        assert_eq!(counters, (11, 22, 33, 44));
    }

    #[test]
    fn speculative_chunks() {
        let mut recorder = Recorder::new(100);
        recorder.speculated(0b1110, 0b0111);
        let mut stats = recorder.finish();
        assert_eq!((stats.speculative, stats.misspeculated), (3, 1));
        stats += &stats.clone();
        assert_eq!((stats.speculative, stats.misspeculated), (6, 2));
    }

    #[test]
    fn stragglers_by_rank_and_time_counts_once() {
        let stats = call_with(&[
            // Two side by side, one after a pause, one that began before that pause's end, one
            // within.
            waited(10, 50, &[2]),
            waited(20, 60, &[1, 2]),
            waited(100, 200, &[2]),
            waited(90, 210, &[2]),
            waited(150, 210, &[2]),
            (999, sent_at(0), &[]),
        ]);
        let stragglers: Vec<_> = stats.stragglers().collect();
        let straggler = |chunks, ns| Straggler { chunks, waited: Duration::from_nanos(ns) };
        // Rank 1: 20..60. Rank 2: 10..60 and 90..210.
        assert_eq!(stragglers, [(1, straggler(1, 40)), (2, straggler(5, 50 + 120))]);
        assert_eq!(stats.pending, 5);
        let last = call_with(&[waited(3, 7, &[1023])]);
        assert_eq!(last.stragglers().collect::<Vec<_>>(), [(1023, straggler(1, 4))]);
    }

    #[test]
    fn parts_of_a_call_are_one_call() {
        let mut whole = CallStats::default();
        whole.add_part(&call_with(&[waited(4 * US, 5 * US, &[0, 1])]));
        whole.add_part(&call_with(&[(US, sent_at(0), &[]), waited(0, 9 * US, &[0])]));
        assert_eq!((whole.calls, whole.bytes, whole.chunks, whole.pending), (1, 200, 3, 2));
        assert_eq!((whole.duration, whole.round_trips.count()), (Duration::from_micros(9), 3));
        let stragglers: Vec<_> =
            whole.stragglers().map(|(rank, one)| (rank, one.chunks, one.waited)).collect();
        assert_eq!(
            stragglers,
            [(0, 2, Duration::from_micros(9)), (1, 1, Duration::from_micros(1))]
        );
    }

    #[test]
    fn calls_add_up() {
        let (first, second) = (
            call_with(&[(US, sent_at(0), &[]), waited(0, 9 * US, &[0])]),
            call_with(&[waited(4 * US, 5 * US, &[0, 1])]),
        );
        let mut sum = CallStats::default();
        sum += &first;
        assert_eq!(sum, first);
        sum += &second;
        assert_eq!((sum.calls, sum.bytes, sum.chunks, sum.pending), (2, 200, 3, 2));
        assert_eq!((sum.duration, sum.round_trips.count()), (Duration::from_micros(10), 3));
        let stragglers: Vec<_> =
            sum.stragglers().map(|(rank, one)| (rank, one.chunks, one.waited)).collect();
        assert_eq!(
            stragglers,
            [(0, 2, Duration::from_micros(10)), (1, 1, Duration::from_micros(1))]
        );
        sum += &CallStats::default();
        assert_eq!(sum.round_trips.count(), 3);
    }
}
