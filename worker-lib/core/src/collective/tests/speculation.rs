//! Small float sums, whose data chunks go ahead of their exponents: results have the same bits as
//! if the chunks had waited, whatever is predicted, lost or late.

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::header::Op;

use super::super::*;
use super::Plain;
use crate::call::Kind;
use crate::hash;
use crate::numerics::exponent::{self, Way};
use crate::numerics::{DType, Reduction};

/// A sum of these elements, the first call of a session.
fn submission(call: &Call, codec: Codec, bytes: Vec<u8>) -> Submission {
    Submission { number: 0, call: *call, codec, first: 0, buffer: Box::new(Plain(bytes)) }
}

/// A job whose aggregator checks maxima.
fn terms(ranks: usize) -> Terms {
    Terms { rank: 0, ranks: ranks as u32, lanes: LANES as u16, capabilities: Capabilities::all() }
}

/// Lanes of a full chunk: enough for the exponents of eight data chunks and their predictions.
const LANES: usize = 32;
/// f32 in a full chunk: three lanes each.
const CHUNK: usize = 10;
const MOST_CHUNKS: usize = 12;

/// The kind of a rank's elements in a chunk.
#[derive(Clone, Copy, Debug)]
enum Elements {
    Zeros,
    /// Integers of up to three digits times a power of two.
    Scaled(i32),
    Infinite,
}

/// A rank's prediction for a chunk.
#[derive(Clone, Copy, Debug)]
enum Prediction {
    Honest,
    /// An exponent that is wrong by this much.
    Off(i32),
    Any(i32),
}

/// A rank's part in a call, by chunk.
type Part = Vec<(Elements, Prediction)>;

/// Calls one after the other: the ranks' parts of each, and the choices that order all steps.
#[derive(Clone, Debug)]
struct Scenario {
    dtype: DType,
    op: Reduction,
    /// Whether elements travel as in a call of more than `SMALL_COUNT` elements, though these are
    /// fewer.
    is_large: bool,
    /// Elements that the last chunk lacks.
    short: usize,
    calls: Vec<(Vec<Part>, u64)>,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let elements = prop_oneof![
        1 => Just(Elements::Zeros),
        6 => (-3..3).prop_map(Elements::Scaled),
        1 => (-60..40).prop_map(Elements::Scaled),
        1 => Just(Elements::Infinite),
    ];
    let prediction = prop_oneof![
        12 => Just(Prediction::Honest),
        2 => (-2..=2).prop_map(Prediction::Off),
        1 => prop_oneof![Just(i32::MIN), Just(i32::MAX), any::<i32>()].prop_map(Prediction::Any),
    ];
    let dtypes = prop::sample::select(vec![DType::F32, DType::F64, DType::F16, DType::Bf16]);
    let ops = prop::sample::select(vec![Reduction::SUM, Reduction::AVG]);
    (1..=MOST_CHUNKS, 1..=5usize, dtypes, ops, any::<bool>(), 0..16usize).prop_flat_map(
        move |(chunks, ranks, dtype, op, is_large, short)| {
            let parts = vec(vec((elements.clone(), prediction.clone()), chunks), ranks);
            vec((parts, any::<u64>()), 1..5).prop_map(move |calls| Scenario {
                dtype,
                op,
                is_large,
                short,
                calls,
            })
        },
    )
}

impl Scenario {
    fn chunk_elements(&self) -> usize {
        if self.is_large || self.dtype == DType::F64 { LANES / self.dtype.lanes() } else { CHUNK }
    }

    fn call(&self) -> Call {
        let count = self.calls[0].0[0].len() * self.chunk_elements()
            - self.short.min(self.chunk_elements() - 1);
        Call { kind: Kind::AllReduce(self.op), dtype: self.dtype, count }
    }

    /// A rank's elements, in native byte order.
    fn elements(&self, part: &Part, salt: usize) -> Vec<u8> {
        let element = |i: usize| {
            let integer = ((i + 1) * (2 * salt + 3) % 199) as f64 - 99.0;
            match part[i / self.chunk_elements()].0 {
                Elements::Zeros => -0.0 * integer,
                Elements::Scaled(scale) => integer * 2f64.powi(scale),
                Elements::Infinite => [1.0, f64::NAN, f64::NEG_INFINITY][i % 3],
            }
        };
        let bytes = |x: f64| match self.dtype {
            DType::F32 => (x as f32).to_ne_bytes().to_vec(),
            DType::F16 => half::f16::from_f64(x).to_ne_bytes().to_vec(),
            DType::Bf16 => half::bf16::from_f64(x).to_ne_bytes().to_vec(),
            DType::F64 | DType::I32 | DType::I64 => x.to_ne_bytes().to_vec(),
        };
        (0..self.call().count).flat_map(|i| bytes(element(i))).collect()
    }
}

fn added(op: Op, payloads: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let lanes = |payload: Vec<u8>| {
        payload.chunks(4).map(|b| i32::from_be_bytes(b.try_into().unwrap())).collect()
    };
    let sum = payloads.map(lanes).reduce(|a: Vec<i32>, b| {
        let combine =
            |(a, b): (&i32, &i32)| if op == Op::Max { *a.max(b) } else { a.wrapping_add(*b) };
        a.iter().zip(&b).map(combine).collect()
    });
    sum.unwrap().into_iter().flat_map(i32::to_be_bytes).collect()
}

/// The result when each chunk waits for its exponent.
fn in_two_trips(codec: Codec, tensors: &[Vec<u8>]) -> Vec<u8> {
    let size = codec.bytes_per_chunk(LANES);
    let mut result = tensors[0].clone();
    for (place, elements) in result.chunks_mut(size).enumerate() {
        let of = |tensor: &Vec<u8>| place * size..(place * size + size).min(tensor.len());
        let shares = || tensors.iter().map(|tensor| &tensor[of(tensor)]);
        let exponent = shares().map(|share| codec.exponent(share)).max().unwrap();
        let least = shares().map(|share| codec.least_exponent(share));
        let least = least.filter(|least| *least != exponent::ZERO).min();
        let codec = match codec.way(exponent, least.unwrap_or(exponent::ZERO)) {
            Way::Scaled => codec,
            Way::Wide => codec.wide().unwrap(),
            Way::Skipped => {
                codec.fill_skipped(exponent, elements);
                continue;
            }
        };
        let payloads = shares().map(|share| {
            let mut payload = vec![0; 4 * codec.lanes_for(share.len())];
            codec.encode(share, exponent, &mut payload);
            payload
        });
        codec.decode(&added(Op::Sum, payloads), exponent, elements);
    }
    result
}

/// A rank in the middle of a call, and the chunks that it has numbered.
struct Rank {
    collective: Collective,
    chunks: Vec<Chunk>,
    /// Whether the rank has the result, by number of the chunk.
    got: Vec<bool>,
}

impl Rank {
    fn next(&mut self, predictor: &Predictor, part: &Part) {
        let Some(chunk) = self.collective.next(predictor) else { return };
        if chunk.op == Op::Max {
            self.mislead(part);
        }
        self.chunks.push(chunk);
        self.got.push(false);
    }

    /// Replaces honest predictions.
    fn mislead(&mut self, part: &Part) {
        let Some(speculation) = &mut self.collective.speculation else { return };
        let predicted = part.iter().enumerate().map(|(data, (_, prediction))| match prediction {
            Prediction::Honest => speculation.predicted(data),
            Prediction::Off(by) => speculation.predicted(data).saturating_add(*by),
            Prediction::Any(exponent) => *exponent,
        });
        *speculation = Speculation::new(predicted.collect(), speculation.sent());
    }
}

/// Makes one call, everything in an order that `seed` decides on; the ranks, done.
fn run(
    codec: Codec,
    call: &Call,
    tensors: &[Vec<u8>],
    parts: &[Part],
    predictors: &mut [Predictor],
    seed: u64,
) -> Vec<Rank> {
    let start = |tensor: &Vec<u8>| Rank {
        collective: Collective::new(
            0,
            terms(tensors.len()),
            submission(call, codec, tensor.clone()),
        ),
        chunks: Vec::new(),
        got: Vec::new(),
    };
    let mut ranks: Vec<_> = tensors.iter().map(start).collect();
    // Each rank's share, by chunk number.
    let mut shares: Vec<Vec<Option<Vec<u8>>>> = Vec::new();
    let mut random = seed;
    let mut below = |n: usize| {
        random = hash::fold([random]);
        (random % n as u64) as usize
    };
    let window = 1 + below(40);
    for _ in 0..100_000 {
        if ranks.iter().all(|rank| rank.collective.is_done()) {
            return ranks;
        }
        let place = below(ranks.len());
        let (rank, all) = (&mut ranks[place], tensors.len());
        let outstanding: Vec<_> =
            (0..rank.chunks.len()).filter(|number| !rank.got[*number]).collect();
        if outstanding.len() < window {
            rank.next(&predictors[place], &parts[place]);
            shares.resize(shares.len().max(rank.chunks.len()), vec![None; all]);
        }
        let Some(&number) = outstanding.get(below(outstanding.len().max(1))) else { continue };
        let chunk = rank.chunks[number];
        // The chunk is sent, and maybe lost: then the next transmission counts.
        let mut payload = vec![0xFF; 4 * usize::from(chunk.lanes)];
        rank.collective.encode(chunk.part, &mut payload);
        if below(2) == 0 {
            shares[number][place].get_or_insert(payload);
        }
        if shares[number].iter().all(Option::is_some) && below(2) == 0 {
            let result = added(chunk.op, shares[number].iter().flatten().cloned());
            rank.collective.decode(chunk.part, &result, &mut predictors[place]).unwrap();
            rank.got[number] = true;
        }
    }
    panic!("the call does not end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Catches: a prediction accepted if only the largest, or only the smallest one is true, or if
    /// it is the same everywhere; no second sending after a wrong prediction; its result used;
    /// results that came before the exponents forgotten; chunks scaled with the rank's own
    /// exponent; a call that ends while a speculative chunk is in flight.
    #[test]
    fn the_same_bits_as_in_two_trips(scenario in scenarios()) {
        let call = scenario.call();
        let mut predictors: Vec<_> =
            scenario.calls[0].0.iter().map(|_| Predictor::default()).collect();
        for (number, (parts, seed)) in scenario.calls.iter().enumerate() {
            let salted = parts.iter().enumerate();
            let tensors: Vec<_> = salted
                .map(|(rank, part)| scenario.elements(part, 7 * number + rank))
                .collect();
            let count = if scenario.is_large { usize::MAX } else { call.count };
            let codec = Codec::reduction(call.dtype, scenario.op, parts.len(), count).unwrap();
            let expected = in_two_trips(codec, &tensors);
            let ranks = run(codec, &call, &tensors, parts, &mut predictors, *seed);
            for rank in &ranks {
                prop_assert_eq!(rank.collective.elements.bytes(), &expected);
                prop_assert_eq!(&rank.chunks, &ranks[0].chunks);
                prop_assert!(rank.got.iter().all(|got| *got));
            }
        }
    }
}

/// Two ranks that call again and again, the second with other tensors.
struct Pair {
    predictors: [Predictor; 2],
}

/// Chunks of a call: in the first flight, after it, and the statistics of speculative ones.
#[derive(Debug, PartialEq, Eq)]
struct Flights {
    first: Vec<(usize, Op)>,
    second: Vec<(usize, Op)>,
    ahead: u64,
    in_vain: u64,
}

impl Pair {
    fn new() -> Self {
        Self { predictors: [Predictor::default(), Predictor::default()] }
    }

    /// Sums these, and checks the result.
    fn sum(&mut self, tensors: [&[f32]; 2]) -> Flights {
        let call = Call {
            kind: Kind::AllReduce(Reduction::SUM),
            dtype: DType::F32,
            count: tensors[0].len(),
        };
        let codec = call.codec(2).unwrap();
        let bytes = tensors.map(|tensor| bytemuck::cast_slice(tensor).to_vec());
        let mut ranks = bytes
            .clone()
            .map(|bytes| Collective::new(0, terms(2), submission(&call, codec, bytes)));
        let mut flights = [(); 2].map(|()| self.flight(&mut ranks)).into_iter();
        let expected = in_two_trips(codec, &bytes);
        let [stats, _] = ranks.map(|rank| {
            assert!(rank.is_done());
            assert_eq!(rank.elements.bytes(), expected);
            rank.finish().1
        });
        let mut next = || flights.next().unwrap();
        Flights {
            first: next(),
            second: next(),
            ahead: stats.speculative,
            in_vain: stats.misspeculated,
        }
    }

    /// All chunks that can be told, then all results, the last one first: data before exponents.
    fn flight(&mut self, ranks: &mut [Collective; 2]) -> Vec<(usize, Op)> {
        let [first, second] = &mut *ranks;
        let chunks: Vec<_> = std::iter::from_fn(|| first.next(&self.predictors[0])).collect();
        assert!(chunks.iter().copied().eq(std::iter::from_fn(|| second.next(&self.predictors[1]))));
        for chunk in chunks.iter().rev() {
            let payloads = ranks.each_ref().map(|rank| {
                let mut payload = vec![0; 4 * usize::from(chunk.lanes)];
                rank.encode(chunk.part, &mut payload);
                payload
            });
            let result = added(chunk.op, payloads.into_iter());
            let ranks = ranks.iter_mut().zip(&mut self.predictors);
            ranks
                .for_each(|(rank, predictor)| rank.decode(chunk.part, &result, predictor).unwrap());
        }
        chunks.iter().map(|chunk| (usize::from(chunk.lanes), chunk.op)).collect()
    }
}

const EXPONENTS: (usize, Op) = (LANES, Op::Max);
const DATA: (usize, Op) = (LANES, Op::Sum);

#[test]
fn steady_exponents_take_one_flight() {
    let mut pair = Pair::new();
    let tensor = [1.5f32; 3 * CHUNK];
    let smaller = [-0.3f32; 3 * CHUNK];
    let one =
        Flights { first: vec![EXPONENTS, DATA, DATA, DATA], second: vec![], ahead: 3, in_vain: 0 };
    // At first a rank can predict only from its own elements, which have the same magnitude.
    assert_eq!(pair.sum([&tensor, &tensor]), one);
    // By now the rank knows other ranks' exponents.
    assert_eq!(pair.sum([&tensor, &smaller]), one);
    assert_eq!(pair.sum([&smaller, &tensor]), one);
    // Elements of another magnitude on all ranks are predicted, too, if larger.
    assert_eq!(pair.sum([&[24.0; 3 * CHUNK], &[-31.0; 3 * CHUNK]]), one);
}

#[test]
fn what_was_predicted_wrongly_is_sent_again() {
    let mut pair = Pair::new();
    let mut tensor = [1.5f32; 3 * CHUNK];
    pair.sum([&tensor, &tensor]);
    // One rank's middle chunk grows.
    tensor[CHUNK + 3] = 100.0;
    let again = Flights {
        first: vec![EXPONENTS, DATA, DATA, DATA],
        second: vec![DATA],
        ahead: 3,
        in_vain: 1,
    };
    assert_eq!(pair.sum([&[1.5; 3 * CHUNK], &tensor]), again);
    // The magnitudes shrink.
    assert_eq!(pair.sum([&[1.5; 3 * CHUNK], &[1.5; 3 * CHUNK]]), again);
}

#[test]
fn nothing_goes_ahead_while_magnitudes_change_all_the_time() {
    let mut pair = Pair::new();
    let sum = |pair: &mut Pair, scale: f32| {
        let flights = pair.sum([&[1.5; 2 * CHUNK], &[scale; 2 * CHUNK]]);
        (flights.ahead, flights.in_vain, flights.first.len(), flights.second.len())
    };
    assert_eq!(sum(&mut pair, 8.0), (2, 2, 3, 2));
    for scale in [100.0, 8.0, 50.0, 1000.0] {
        assert_eq!(sum(&mut pair, scale), (0, 0, 1, 2));
    }
    // Steady exponents are used from the second call on.
    assert_eq!(sum(&mut pair, 1000.0), (0, 0, 1, 2));
    assert_eq!(sum(&mut pair, 1000.0), (2, 0, 3, 0));
}

#[test]
fn zeros_do_not_go_ahead_twice() {
    let mut pair = Pair::new();
    let mut sparse = [0f32; 4 * CHUNK];
    sparse[2 * CHUNK] = 1.0;
    let first = Flights {
        first: vec![EXPONENTS, DATA, DATA, DATA, DATA],
        second: vec![],
        ahead: 4,
        in_vain: 3,
    };
    // A rank's zeros are no prediction: the other's holds.
    assert_eq!(pair.sum([&sparse, &[0.0; 4 * CHUNK]]), first);
    let later = Flights { first: vec![EXPONENTS, DATA], second: vec![], ahead: 1, in_vain: 0 };
    assert_eq!(pair.sum([&[0.0; 4 * CHUNK], &sparse]), later);
    // The chunk is zero until it has an element.
    sparse[0] = 1.0;
    assert_eq!(pair.sum([&sparse, &sparse]).second, [DATA]);
    assert_eq!(pair.sum([&sparse, &sparse]).first.len(), 3);
}

#[test]
fn an_infinity_is_an_accident() {
    let mut pair = Pair::new();
    let tensor = [1.5f32; 3 * CHUNK];
    let mut accident = tensor;
    accident[7] = f32::INFINITY;
    let one = || Flights {
        first: vec![EXPONENTS, DATA, DATA, DATA],
        second: vec![],
        ahead: 3,
        in_vain: 0,
    };
    // The ten elements of that chunk follow in ten lanes each.
    let wide = vec![DATA; 4];
    assert_eq!(pair.sum([&tensor, &accident]), Flights { in_vain: 1, second: wide, ..one() });
    assert_eq!(pair.sum([&tensor, &tensor]), one());
}

/// The exponent chunk must fit a packet: four lanes for each data chunk.
#[test]
fn larger_calls_wait_for_their_exponents() {
    let mut pair = Pair::new();
    assert_eq!(pair.sum([&[1.0; 8 * CHUNK], &[1.0; 8 * CHUNK]]).ahead, 8);
    assert_eq!(pair.sum([&[1.0; 8 * CHUNK + 1], &[1.0; 8 * CHUNK + 1]]).ahead, 0);
}
