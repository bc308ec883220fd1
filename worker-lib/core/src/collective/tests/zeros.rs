//! Chunks that go out without their lanes: those of large broadcasts, from all ranks except the
//! root.

use super::*;

/// Chunks of a large call.
const CHUNKS: usize = MOST_CHUNKS + 1;
/// Elements of a rank in these.
const COUNT: usize = CHUNKS * LANES as usize;

/// The data chunks that rank 1 of `ranks` leaves the lanes out of, of a call with these elements;
/// the other ranks' largest magnitude is 1.
fn empty(call: Call, elements: Vec<u8>, ranks: u32, capabilities: Capabilities) -> Vec<usize> {
    let terms = Terms { rank: 1, ranks, lanes: LANES, capabilities };
    let codec = call.codec(ranks).unwrap();
    let buffer = Box::new(Plain(elements));
    let submission = Submission { number: 9, call, codec, first: 0, buffer };
    let mut rank = Rank::new(Collective::new(0, terms, submission));
    let mut found = Vec::new();
    while let Some(chunk) = rank.next() {
        match chunk.part {
            Part::Exponents(_) => {
                assert!(!chunk.empty);
                let ones = vec![0; 4 * usize::from(chunk.lanes)];
                rank.decode(chunk.part, &ones);
            }
            Part::Data(data) if chunk.empty => {
                assert_eq!(chunk.op, Op::Sum);
                let mut payload = vec![0xFF; 4 * usize::from(chunk.lanes)];
                assert_eq!(rank.collective.encode(chunk.part, &mut payload), 0);
                assert!(payload.iter().all(|byte| *byte == 0), "chunk {data} is not zero");
                found.push(data);
            }
            _ => {}
        }
    }
    found
}

fn call(kind: Kind, dtype: DType, count: usize) -> Call {
    Call { kind, dtype, count }
}

const ALL_REDUCE: Kind = Kind::AllReduce(Reduction::SUM);

#[test]
fn a_broadcast_has_one_rank_with_lanes() {
    let count = 8 * COUNT;
    for (root, expected) in [(0, count / 32), (1, 0)] {
        let found = empty(
            call(Kind::Broadcast { root }, DType::I32, count),
            vec![0; 4 * count],
            4,
            Capabilities::all(),
        );
        assert_eq!(found.len(), expected, "root {root}");
    }
}

/// Rule 17.10.
#[test]
fn the_root_of_a_broadcast_needs_no_lanes() {
    let call = call(Kind::Broadcast { root: 2 }, DType::I32, 40);
    let without = Capabilities::all() - Capabilities::AUDIENCES;
    for (capabilities, op) in [(Capabilities::all(), 128 + 2), (without, 0)] {
        let terms = Terms { rank: 1, ranks: 4, lanes: LANES, capabilities };
        let (codec, buffer) = (call.codec(4).unwrap(), Box::new(Plain(vec![0; 160])));
        let submission = Submission { number: 9, call, codec, first: 0, buffer };
        let mut rank = Rank::new(Collective::new(0, terms, submission));
        let ops: Vec<_> = std::iter::from_fn(|| rank.next()).map(|chunk| chunk.wire_op()).collect();
        assert_eq!(ops, [op; 2]);
    }
}

#[test]
fn nothing_is_left_out_where_it_would_cost_or_break() {
    let zeros = |dtype: DType, count: usize| vec![0; count * dtype.size()];
    let nothing: Vec<usize> = Vec::new();
    let none = |call: Call, ranks, capabilities| {
        assert_eq!(
            empty(call, zeros(call.dtype, call.count), ranks, capabilities),
            nothing,
            "{call} of {ranks} ranks"
        );
    };
    let all = Capabilities::all();
    let broadcast = Kind::Broadcast { root: 0 };
    let large = call(broadcast, DType::I32, COUNT);
    none(large, 4, all - Capabilities::EMPTY_CONTRIBUTIONS);
    // A round trip more would be a large part of it.
    none(call(broadcast, DType::I32, COUNT - LANES as usize), 4, all);
    none(call(Kind::Barrier, DType::I32, 1), 4, all);
    // Chunks of sums would complete out of order.
    none(call(ALL_REDUCE, DType::I32, COUNT), 4, all);
    none(call(ALL_REDUCE, DType::F32, COUNT), 4, all);
    none(call(Kind::AllReduce(Reduction::MAX), DType::I32, COUNT), 4, all);
}

/// In an all-gather, each rank has lanes only in its own part: here one of four parts, each of 3
/// bundles of 4 chunks or more, which take turns.
#[test]
fn an_all_gather_has_one_rank_with_lanes_in_each_part() {
    let count = 32 * 4 * 100;
    let call = call(Kind::AllGather, DType::I32, count);
    let found = empty(call, vec![0; 4 * count], 4, Capabilities::all());
    let lanes = usize::from(LANES);
    let bundle = crate::shards::chunks_per_bundle(lanes);
    assert!(found.len() == 300 && bundle >= 100, "{} of bundles of {bundle}", found.len());
    assert!(found.iter().all(|chunk| chunk / 100 != 1));
}
