//! The calls of a job's ranks, their elements, and the expected results, computed independently.

use std::fmt;
use std::ops::{Deref, Range};

use half::{bf16, f16};
use switchml_worker_core::call::{Call, Kind};
use switchml_worker_core::numerics::SMALL_COUNT;
use switchml_worker_core::{DType, Precision, ReduceOp, Reduction};

use crate::packed::{Bounds, Chunk, Packing};
use crate::rng::{Rng, hash};

/// One call of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The call.
    pub call: Call,
    /// The kind of its elements.
    pub elements: Elements,
    /// Whether the call is made only when all earlier calls have returned.
    pub waits: bool,
}

/// The kind of a call's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Small integers times a power of two: every sum can be represented.
    Exact,
    /// Exact elements with long runs of zeros, some on all ranks and others on some ranks.
    Sparse,
    /// Any f32 within forty binary orders of magnitude: the sum has the documented error.
    Wild,
    /// Exact, but one element of one rank is not finite.
    Special {
        /// The rank.
        rank: u16,
        /// Place of the element.
        index: usize,
        /// Infinite rather than NaN.
        infinite: bool,
    },
}

/// A program of `steps` calls by `ranks` ranks, of up to `largest` elements each.
pub fn draw(rng: &mut Rng, ranks: u16, steps: u64, largest: u64) -> Vec<Step> {
    let overlaps = rng.one_in(2);
    let mut program: Vec<Step> = Vec::new();
    for _ in 0..steps {
        // Training makes the same calls again and again, with other elements.
        let again = program.last().copied().filter(|_| rng.one_in(2));
        program.push(again.unwrap_or_else(|| draw_step(rng, ranks, largest, overlaps)));
    }
    program
}

fn draw_step(rng: &mut Rng, ranks: u16, largest: u64, overlaps: bool) -> Step {
    let mut count = if rng.one_in(20) { 0 } else { rng.magnitude(1, largest) as usize };
    // I64 was added later. No number is drawn for it, so that seeds which have failed still make
    // the same calls, except for this type.
    let dtype = match rng.pick(&DType::ALL[..5]) {
        DType::I32 if count % 2 == 1 => DType::I64,
        dtype => dtype,
    };
    let kind = match rng.below(10) {
        0 => Kind::Barrier,
        1 => Kind::Broadcast { root: rng.below(ranks.into()) as u32 },
        2 => Kind::AllGather,
        3 => Kind::ReduceScatter(rng.pick(&[Reduction::SUM, Reduction::AVG, Reduction::MAX])),
        _ => Kind::AllReduce(rng.pick(&Reduction::ALL)),
    };
    if matches!(kind, Kind::Broadcast { .. } | Kind::AllGather) && ranks <= 8 && rng.one_in(2) {
        // With this many elements there are chunks in which some ranks have no share, and send
        // EMPTY.
        count = rng.magnitude(2_000, 12_000) as usize;
    }
    let mut call = Call { kind, dtype, count };
    match kind {
        // The call that Communicator::barrier makes.
        Kind::Barrier => call = Call { kind, dtype: DType::I32, count: 1 },
        Kind::AllReduce(_) if call.codec(ranks.into()).is_err() => {
            call.kind = Kind::AllReduce(Reduction::SUM)
        }
        Kind::ReduceScatter(_) if call.codec(ranks.into()).is_err() => {
            call.kind = Kind::ReduceScatter(Reduction::SUM)
        }
        _ => {}
    }
    let is_float_sum =
        matches!(call.kind, Kind::AllReduce(Reduction { op: ReduceOp::Sum | ReduceOp::Avg, .. }))
            && !is_integer(dtype);
    let can_be_wild = call.kind == Kind::AllReduce(Reduction::SUM) || is_packed(call.kind);
    let is_sum = call.kind == Kind::AllReduce(Reduction::SUM) || is_float_sum;
    let elements = match rng.below(7) {
        0 if can_be_wild && dtype == DType::F32 => Elements::Wild,
        1 | 2 if is_sum => Elements::Sparse,
        3 if is_float_sum && count > 0 => Elements::Special {
            rank: rng.below(ranks.into()) as u16,
            index: rng.below(count as u64) as usize,
            infinite: rng.one_in(2),
        },
        _ => Elements::Exact,
    };
    Step { call, elements, waits: !overlaps || rng.one_in(4) }
}

fn is_integer(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}

/// Whether a call's elements travel in fewer bits.
fn is_packed(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::AllReduce(Reduction { precision: Precision::Bits16 | Precision::Bits8, .. })
    )
}

/// The call that a rank makes instead, by mistake.
pub fn mistake(rng: &mut Rng, step: &Step) -> Step {
    let mut step = *step;
    let call = &mut step.call;
    match (rng.below(4), call.kind) {
        // The call in another precision.
        (0 | 3, Kind::AllReduce(Reduction { op, precision })) if is_packed(call.kind) => {
            let others = [Precision::Exact, Precision::Bits16, Precision::Bits8]
                .map(|other| if other == precision { Precision::Exact } else { other });
            call.kind = Kind::AllReduce(Reduction::new(op, rng.pick(&others)));
        }
        (0, Kind::AllReduce(Reduction::SUM)) => call.kind = Kind::Broadcast { root: 0 },
        // A barrier cannot have another size.
        (0, _) | (_, Kind::Barrier) => call.kind = Kind::AllReduce(Reduction::SUM),
        (1, Kind::AllReduce(_)) => {
            *call = Call {
                kind: Kind::AllReduce(Reduction::SUM),
                dtype: if call.dtype == DType::F32 { DType::I32 } else { DType::F32 },
                ..*call
            };
        }
        _ => call.count += 1,
    }
    step.elements = Elements::Exact;
    step
}

impl Step {
    /// How its elements travel among `ranks` ranks, if in fewer bits.
    pub fn packing(&self, ranks: u16) -> Option<Packing> {
        match self.call.kind {
            Kind::AllReduce(Reduction { precision, .. }) => Packing::of(precision, ranks),
            Kind::ReduceScatter(Reduction { precision, .. }) => Packing::of(precision, ranks),
            Kind::Broadcast { .. } | Kind::Barrier | Kind::AllGather => None,
        }
    }

    /// The elements of the result that a rank is told: of a reduce-scatter, its part.
    pub fn told(&self, rank: u16, ranks: u16) -> Range<usize> {
        match self.call.kind {
            Kind::ReduceScatter(_) => self.part(rank, ranks),
            _ => 0..self.call.count,
        }
    }

    fn part(&self, rank: u16, ranks: u16) -> Range<usize> {
        let start = |rank: u16| self.call.part_start(rank.into(), ranks.into());
        start(rank)..start(rank + 1)
    }

    /// The elements of `rank`, in native byte order. `key` tells sessions and calls apart.
    pub fn elements(&self, key: u64, rank: u16) -> Vec<u8> {
        let Call { kind, dtype, count } = self.call;
        if kind == Kind::Barrier {
            return vec![0; 4];
        }
        self.join(dtype, (0..count).map(|index| self.element(key, rank, index)))
    }

    fn join(&self, dtype: DType, elements: impl Iterator<Item = Element>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.call.count * dtype.size());
        elements.for_each(|element| bytes.extend_from_slice(&element.bits(dtype)));
        bytes
    }

    /// Checks a rank's result of call `number` of a session, of `ranks` ranks in chunks of `lanes`
    /// lanes.
    ///
    /// # Errors
    /// The first element that is wrong.
    pub fn check(
        &self,
        (number, key): (u64, u64),
        (rank, ranks): (u16, u16),
        lanes: u16,
        result: &[u8],
    ) -> Result<(), String> {
        let Call { kind, dtype, count } = self.call;
        let wrong = |index: usize, expected: String| {
            let size = dtype.size();
            let found = &result[index * size..(index + 1) * size];
            Err(format!("element {index} of {count}: {found:02x?}, not {expected}"))
        };
        match kind {
            Kind::Barrier => {
                if result == [0; 4] {
                    Ok(())
                } else {
                    Err("a barrier with values".to_owned())
                }
            }
            Kind::Broadcast { root } => {
                let expected = self.elements(key, root as u16);
                if result == expected { Ok(()) } else { Err("not the root's elements".to_owned()) }
            }
            Kind::AllGather => {
                let parts = (0..ranks)
                    .flat_map(|rank| self.part(rank, ranks).map(move |index| (rank, index)));
                let elements = parts.map(|(rank, index)| self.element(key, rank, index));
                let expected = self.join(dtype, elements);
                if result == expected { Ok(()) } else { Err("not each rank's part".to_owned()) }
            }
            Kind::AllReduce(Reduction { op, .. }) | Kind::ReduceScatter(Reduction { op, .. }) => {
                if let Some(packing) = self.packing(ranks) {
                    return self.check_packed(packing, (number, key), ranks, lanes, result);
                }
                let largest = self.largest_by_chunk(key, ranks, lanes);
                let told = self.told(rank, ranks);
                let found = result.chunks_exact(dtype.size()).enumerate();
                for (index, found) in found.skip(told.start).take(told.len()) {
                    let inputs = (0..ranks).map(|rank| self.element(key, rank, index));
                    let place = index / elements_per_chunk(&self.call, lanes);
                    let expected = match self.elements {
                        Elements::Special { index: special, infinite, .. }
                            if place == special / elements_per_chunk(&self.call, lanes) =>
                        {
                            match (is_small(&self.call), index == special) {
                                (false, _) => Expected::Bits(not_a_number(dtype)),
                                (true, false) => combine(op, dtype, ranks, inputs),
                                (true, true) if infinite => {
                                    Expected::Bits(Element::Real(f64::INFINITY).bits(dtype))
                                }
                                (true, true) => Expected::Bits(not_a_number(dtype)),
                            }
                        }
                        Elements::Wild => {
                            let sum = inputs.map(Element::real).sum();
                            // In three lanes the sums are exact.
                            let error = if is_small(&self.call) {
                                0.0
                            } else {
                                fixed_point_error(ranks, largest[place])
                            };
                            Expected::Near(sum, error + 1.001 * half_unit(sum.abs() + error, dtype))
                        }
                        _ => combine(op, dtype, ranks, inputs),
                    };
                    if !expected.fits(dtype, found) {
                        return wrong(index, format!("{expected:02x?}"));
                    }
                }
                Ok(())
            }
        }
    }

    /// Checks a result in fewer bits.
    fn check_packed(
        &self,
        packing: Packing,
        (number, key): (u64, u64),
        ranks: u16,
        lanes: u16,
        result: &[u8],
    ) -> Result<(), String> {
        let elements_per_chunk = packing.elements() * usize::from(lanes);
        let size = self.call.dtype.size();
        for (chunk, found) in result.chunks(elements_per_chunk * size).enumerate() {
            let first = chunk * elements_per_chunk;
            let places = first..first + found.len() / size;
            let elements =
                |rank| places.clone().map(|index| self.element(key, rank, index).real()).collect();
            let chunk = Chunk { call: number, ranks: (0..ranks).map(elements).collect() };
            self.check_chunk(packing, &chunk, found).map_err(|wrong| {
                format!("chunk of {} from element {first}: {wrong}", places.len())
            })?;
        }
        Ok(())
    }

    fn check_chunk(&self, packing: Packing, chunk: &Chunk, found: &[u8]) -> Result<(), String> {
        let dtype = self.call.dtype;
        let found = found.chunks_exact(dtype.size());
        let is_finite = chunk.ranks.iter().flatten().all(|x| x.is_finite());
        if !is_finite || chunk.is_zero() {
            let zero = Element::Real(0.0).bits(dtype);
            let skipped = if is_finite { zero } else { not_a_number(dtype) };
            let wrong = found.enumerate().find(|(_, bits)| **bits != *skipped);
            return wrong.map_or(Ok(()), |(place, bits)| {
                Err(format!("element {place}: {bits:02x?}, not {skipped:02x?}"))
            });
        }
        let is_average = self.call.kind == Kind::AllReduce(Reduction::AVG16)
            || self.call.kind == Kind::AllReduce(Reduction::AVG8);
        let divisor = if is_average { chunk.ranks.len() as f64 } else { 1.0 };
        let Bounds { each, column, columns } = chunk.bounds(packing).over(divisor);
        let (mut errors, mut roundings) = (vec![0f64; columns], vec![0f64; columns]);
        for (place, bits) in found.enumerate() {
            let truth = chunk.ranks.iter().map(|elements| elements[place]).sum::<f64>() / divisor;
            let rounding = 1.001 * half_unit(truth.abs() + each, dtype);
            let error = (real(dtype, bits) - truth).abs();
            // This is false for NaN, too.
            let is_near = error <= each + rounding;
            if !is_near {
                return Err(format!("element {place}: off by {error}, more than {each}"));
            }
            errors[place % columns] += error.powi(2);
            roundings[place % columns] += rounding.powi(2);
        }
        for (error, rounding) in errors.into_iter().zip(roundings) {
            if error.sqrt() > column + rounding.sqrt() {
                return Err(format!("a column is off by {}, more than {column}", error.sqrt()));
            }
        }
        Ok(())
    }

    /// Element `index` of `rank`.
    fn element(&self, key: u64, rank: u16, index: usize) -> Element {
        let random = hash(&[key, u64::from(rank), index as u64]);
        let is_zero = self.elements == Elements::Sparse && is_in_zeros(key, rank, index);
        match self.call.dtype {
            dtype if is_zero && is_integer(dtype) => return Element::Integer(0),
            DType::I32 => return Element::Integer((random as i32).into()),
            DType::I64 => return Element::Integer(random as i64),
            _ => {}
        }
        let scale = || 2f64.powi(hash(&[key]) as i32 % 4 - 2);
        match self.elements {
            Elements::Special { rank: special, index: at, infinite }
                if (rank, index) == (special, at) =>
            {
                Element::Real(if infinite { f64::INFINITY } else { f64::NAN })
            }
            _ if is_zero => Element::Real(0.0),
            Elements::Wild => {
                let mantissa = f64::from(random as i32 >> 8) / f64::from(1 << 23);
                Element::Real(mantissa * 2f64.powi((random >> 32) as i32 % 20))
            }
            _ => {
                let limit = largest_exact(self.call.dtype);
                let integer = (random % (2 * limit + 1)) as i64 - limit as i64;
                Element::Real(integer as f64 * scale())
            }
        }
    }

    /// The largest magnitude of Wild elements over all ranks, by chunk.
    fn largest_by_chunk(&self, key: u64, ranks: u16, lanes: u16) -> Vec<f64> {
        if self.elements != Elements::Wild {
            return Vec::new();
        }
        let size = elements_per_chunk(&self.call, lanes);
        let mut largest = vec![0f64; self.call.count.div_ceil(size)];
        for (rank, index) in
            (0..ranks).flat_map(|rank| (0..self.call.count).map(move |index| (rank, index)))
        {
            let place = &mut largest[index / size];
            *place = place.max(self.element(key, rank, index).real().abs());
        }
        largest
    }
}

/// An element before it has a type. Reals fit every type that they are for.
#[derive(Clone, Copy, Debug)]
enum Element {
    Integer(i64),
    Real(f64),
}

impl Element {
    fn real(self) -> f64 {
        match self {
            Self::Integer(x) => x as f64,
            Self::Real(x) => x,
        }
    }

    fn integer(self) -> i64 {
        match self {
            Self::Integer(x) => x,
            Self::Real(x) => x as i64,
        }
    }

    fn bits(self, dtype: DType) -> Bits {
        match (self, dtype) {
            (Self::Integer(x), DType::I32) => Bits::of((x as i32).to_ne_bytes()),
            (Self::Integer(x), _) => Bits::of(x.to_ne_bytes()),
            (Self::Real(x), DType::F32) => Bits::of((x as f32).to_ne_bytes()),
            (Self::Real(x), DType::F16) => Bits::of(f16::from_f64(x).to_ne_bytes()),
            (Self::Real(x), DType::Bf16) => Bits::of(bf16::from_f64(x).to_ne_bytes()),
            (Self::Real(x), DType::F64 | DType::I32 | DType::I64) => Bits::of(x.to_ne_bytes()),
        }
    }
}

/// The bytes of an element.
#[derive(Clone, Copy)]
struct Bits {
    bytes: [u8; 8],
    len: usize,
}

impl Bits {
    fn of<const LEN: usize>(bytes: [u8; LEN]) -> Self {
        let mut all = [0; 8];
        all[..LEN].copy_from_slice(&bytes);
        Self { bytes: all, len: LEN }
    }
}

impl Deref for Bits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[derive(Debug)]
enum Expected {
    Bits(Bits),
    /// The number, and the largest error allowed.
    Near(f64, f64),
}

impl Expected {
    fn fits(&self, dtype: DType, found: &[u8]) -> bool {
        match self {
            Self::Bits(bits) => **bits == *found,
            Self::Near(number, distance) => (real(dtype, found) - number).abs() <= *distance,
        }
    }
}

fn combine(
    op: ReduceOp,
    dtype: DType,
    ranks: u16,
    inputs: impl Iterator<Item = Element>,
) -> Expected {
    if is_integer(dtype) {
        let inputs = inputs.map(Element::integer);
        let result = match op {
            ReduceOp::Max => inputs.max(),
            ReduceOp::Min => inputs.min(),
            _ => inputs.reduce(i64::wrapping_add),
        };
        return Expected::Bits(Element::Integer(result.unwrap_or_default()).bits(dtype));
    }
    let inputs = inputs.map(Element::real);
    match op {
        ReduceOp::Max => {
            Expected::Bits(Element::Real(inputs.fold(f64::NEG_INFINITY, f64::max)).bits(dtype))
        }
        ReduceOp::Min => {
            Expected::Bits(Element::Real(inputs.fold(f64::INFINITY, f64::min)).bits(dtype))
        }
        ReduceOp::Sum => Expected::Bits(Element::Real(inputs.sum()).bits(dtype)),
        ReduceOp::Avg => {
            // Rounded once, or twice in f64.
            let average = inputs.sum::<f64>() / f64::from(ranks);
            let roundings = if dtype == DType::F64 { 2.0 } else { 1.001 };
            Expected::Near(average, roundings * half_unit(average, dtype))
        }
    }
}

/// Whether a sparse element is in a run of zeros.
fn is_in_zeros(key: u64, rank: u16, index: usize) -> bool {
    let run = index as u64 / 150;
    match hash(&[key, run]) % 3 {
        0 => true,
        1 => !hash(&[key, run, rank.into()]).is_multiple_of(3),
        _ => false,
    }
}

/// Largest magnitude of an exact element, before scaling: 64 of them add up exactly in the type's
/// mantissa.
fn largest_exact(dtype: DType) -> u64 {
    match dtype {
        DType::F64 | DType::I64 => 1 << 40,
        DType::F32 | DType::I32 => 1000,
        DType::F16 => 16,
        DType::Bf16 => 2,
    }
}

/// Elements of a full chunk, of a sum of floats.
fn elements_per_chunk(call: &Call, lanes: u16) -> usize {
    usize::from(lanes) / if is_small(call) { 3 } else { call.dtype.lanes() }
}

/// Whether a sum of floats is exact, because an element has three lanes or more.
fn is_small(call: &Call) -> bool {
    call.count <= SMALL_COUNT && call.dtype != DType::F64
}

/// The error that the numerics promise for f32: N * 2^(L-31) * M.
fn fixed_point_error(ranks: u16, largest: f64) -> f64 {
    let growth = ranks.next_power_of_two().ilog2() as i32;
    f64::from(ranks) * 2f64.powi(growth - 31) * largest
}

/// At least half a unit in the last place of `x` in this type.
fn half_unit(x: f64, dtype: DType) -> f64 {
    let mantissa = match dtype {
        DType::F64 | DType::I64 => 52,
        DType::F32 | DType::I32 => 23,
        DType::F16 => 10,
        DType::Bf16 => 7,
    };
    x.abs() * 2f64.powi(-mantissa - 1)
}

/// The canonical NaN.
fn not_a_number(dtype: DType) -> Bits {
    match dtype {
        DType::F64 | DType::I64 => Bits::of(0x7FF8_0000_0000_0000u64.to_ne_bytes()),
        DType::F16 => Bits::of(0x7E00u16.to_ne_bytes()),
        DType::Bf16 => Bits::of(0x7FC0u16.to_ne_bytes()),
        DType::F32 | DType::I32 => Bits::of(0x7FC0_0000u32.to_ne_bytes()),
    }
}

fn real(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F64 | DType::I64 => bytemuck::pod_read_unaligned(bytes),
        DType::F32 | DType::I32 => bytemuck::pod_read_unaligned::<f32>(bytes).into(),
        DType::F16 => bytemuck::pod_read_unaligned::<f16>(bytes).into(),
        DType::Bf16 => bytemuck::pod_read_unaligned::<bf16>(bytes).into(),
    }
}
