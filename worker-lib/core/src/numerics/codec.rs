//! One collective's way between elements and lanes.

use switchml_protocol::header::Op;
use switchml_protocol::{LANES_PER_BLOCK, MAX_RANKS};

use super::dithered::{self, Dithered};
use super::dtype::{DType, NumericsError, Precision, ReduceOp, Reduction};
use super::exponent::{self, NON_FINITE, Way};
use super::fixed::{self, Fixed};
use super::format::{self, Bf16, F16, F32, F64, Format};
use super::random::Source;
use super::rotated::Rotated;
use super::vectorised::vectorised;
use super::{bytes, long, packed, plain, triple, wide};

/// How a collective's elements become lanes and its result's lanes become elements.
///
/// Chosen once per collective and copied around freely; every call handles one chunk. Elements come
/// and go as bytes in native order at any alignment ([`bytemuck::cast_slice`] gives them), payloads
/// are big-endian lanes. Every rank gets the same bits from the same payload, whatever vector units
/// its processor has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec(Method);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    FixedF32(Fixed),
    FixedF64(Fixed),
    FixedF16(Fixed),
    FixedBf16(Fixed),
    PackedF32(Fixed),
    PackedF16(Fixed),
    PackedBf16(Fixed),
    Rotated(Rotated),
    TripleF32(Fixed),
    TripleF16(Fixed),
    TripleBf16(Fixed),
    WideF32(Fixed),
    WideF16(Fixed),
    WideBf16(Fixed),
    MaxF32,
    MaxF16,
    MaxBf16,
    MaxI32,
    MinF32,
    MinF16,
    MinBf16,
    MinI32,
    SumI32,
    SumI64,
    Bytes,
}

/// Elements of the largest call whose sums take three lanes an element, if they are f32, f16 or
/// bf16. Part of the protocol: all ranks must have the same.
pub const SMALL_COUNT: usize = 1024;

impl Codec {
    /// The codec of a reduction of `count` elements of `dtype` over `ranks` ranks: those of the
    /// whole call, whichever part of it is encoded (rules 17.3 and 17.4).
    ///
    /// # Errors
    /// When `ranks` is not 1 to 1024, for MAX and MIN of f64 and i64, for AVG of integers, and for
    /// fewer bits of these types, of any MAX and MIN, or among more than 128 ranks: see
    /// [`NumericsError`].
    pub fn reduction(
        dtype: DType,
        reduction: impl Into<Reduction>,
        ranks: usize,
        count: usize,
    ) -> Result<Self, NumericsError> {
        use DType::{Bf16, F16, F32, F64, I32, I64};
        use ReduceOp::{Avg, Max, Min, Sum};
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(NumericsError::Ranks(ranks));
        }
        let reduction = reduction.into();
        let Reduction { op, precision } = reduction;
        let fixed = Fixed::new(ranks, op == Avg);
        if precision != Precision::Exact {
            if ranks > packed::MOST_RANKS {
                return Err(NumericsError::TooManyRanks { reduction, ranks });
            }
            // Too few levels would be left for each of so many ranks.
            let in_8_bits = precision == Precision::Bits8 && ranks <= dithered::MOST_RANKS;
            return Ok(Self(match (op, dtype, in_8_bits) {
                (Sum | Avg, F32, false) => Method::PackedF32(fixed),
                (Sum | Avg, F16, false) => Method::PackedF16(fixed),
                (Sum | Avg, Bf16, false) => Method::PackedBf16(fixed),
                (Sum | Avg, F32, true) => Method::Rotated(Rotated::F32(Dithered::new(fixed))),
                (Sum | Avg, F16, true) => Method::Rotated(Rotated::F16(Dithered::new(fixed))),
                (Sum | Avg, Bf16, true) => Method::Rotated(Rotated::Bf16(Dithered::new(fixed))),
                _ => return Err(NumericsError::NotPacked { reduction, dtype }),
            }));
        }
        let is_small = count <= SMALL_COUNT;
        Ok(Self(match (op, dtype) {
            (Sum | Avg, F32) if is_small => Method::TripleF32(fixed),
            (Sum | Avg, F16) if is_small => Method::TripleF16(fixed),
            (Sum | Avg, Bf16) if is_small => Method::TripleBf16(fixed),
            (Sum | Avg, F32) => Method::FixedF32(fixed),
            (Sum | Avg, F64) => Method::FixedF64(fixed),
            (Sum | Avg, F16) => Method::FixedF16(fixed),
            (Sum | Avg, Bf16) => Method::FixedBf16(fixed),
            (Sum, I32) => Method::SumI32,
            (Sum, I64) => Method::SumI64,
            (Avg, I32 | I64) => return Err(NumericsError::NoIntegerAverage(dtype)),
            (Max, F32) => Method::MaxF32,
            (Max, F16) => Method::MaxF16,
            (Max, Bf16) => Method::MaxBf16,
            (Max, I32) => Method::MaxI32,
            (Min, F32) => Method::MinF32,
            (Min, F16) => Method::MinF16,
            (Min, Bf16) => Method::MinBf16,
            (Min, I32) => Method::MinI32,
            (Max | Min, F64 | I64) => return Err(NumericsError::NoWideExtremum { op, dtype }),
        }))
    }

    /// How many bits of an element really travel, whatever was asked for: 16 instead of 8 among
    /// more than 32 ranks.
    pub const fn precision(self) -> Precision {
        match self.0 {
            Method::PackedF32(_) | Method::PackedF16(_) | Method::PackedBf16(_) => {
                Precision::Bits16
            }
            Method::Rotated(_) => Precision::Bits8,
            _ => Precision::Exact,
        }
    }

    /// This codec for the chunk whose first element is number `first` of call `call`, on `rank`.
    /// Matters in 8 bits alone: random numbers are drawn from that.
    pub fn at(self, call: u64, first: u64, rank: u32) -> Self {
        Self(match self.0 {
            Method::Rotated(by) => Method::Rotated(by.at(Source::new(call, first, rank))),
            other => other,
        })
    }

    /// The codec of exponent chunks: one i32 per data chunk, in native byte order, MAX over ranks.
    pub const fn exponents() -> Self {
        Self(Method::MaxI32)
    }

    /// The codec of a broadcast: any bytes, packed four to a lane. The root encodes its bytes,
    /// every other rank none (all its lanes are zero), and SUM delivers the root's. Native byte
    /// order travels as it is, so all ranks must have the same.
    pub const fn bytes() -> Self {
        Self(Method::Bytes)
    }

    /// How the aggregator combines the lanes (rule 17.4).
    pub const fn wire_op(self) -> Op {
        match self.0 {
            Method::FixedF32(_)
            | Method::FixedF64(_)
            | Method::FixedF16(_)
            | Method::FixedBf16(_) => Op::Sum,
            Method::TripleF32(_) | Method::TripleF16(_) | Method::TripleBf16(_) => Op::Sum,
            Method::WideF32(_) | Method::WideF16(_) | Method::WideBf16(_) => Op::Sum,
            Method::SumI32 | Method::SumI64 | Method::Bytes => Op::Sum,
            Method::PackedF32(_) | Method::PackedF16(_) | Method::PackedBf16(_) => Op::Sum,
            Method::Rotated(_) => Op::Sum,
            Method::MaxF32 | Method::MaxF16 | Method::MaxBf16 | Method::MaxI32 => Op::Max,
            Method::MinF32 | Method::MinF16 | Method::MinBf16 | Method::MinI32 => Op::Max,
        }
    }

    /// Whether the ranks must agree on each chunk's exponent before its data: the float sums.
    /// Elsewhere the exponent arguments below mean nothing, and no chunk is skipped.
    pub const fn uses_exponents(self) -> bool {
        matches!(
            self.0,
            Method::FixedF32(_) | Method::FixedF64(_) | Method::FixedF16(_) | Method::FixedBf16(_)
        ) || !matches!(self.precision(), Precision::Exact)
            || matches!(self.0, Method::TripleF32(_) | Method::TripleF16(_) | Method::TripleBf16(_))
    }

    /// How the elements of a chunk travel that three lanes an element are too few for. `None` if
    /// this codec has other lanes.
    pub const fn wide(self) -> Option<Self> {
        match self.0 {
            Method::TripleF32(by) => Some(Self(Method::WideF32(by))),
            Method::TripleF16(by) => Some(Self(Method::WideF16(by))),
            Method::TripleBf16(by) => Some(Self(Method::WideBf16(by))),
            _ => None,
        }
    }

    /// Rules 18.3 and 18.4: what becomes of a chunk with these exponents of all ranks, that of the
    /// largest magnitude, and, where there is a wide form, that of the smallest above zero.
    pub fn way(self, largest: i32, least: i32) -> Way {
        let too_wide = match self.0 {
            Method::TripleF32(by) => by.is_too_wide::<F32>(largest, least),
            Method::TripleF16(by) => by.is_too_wide::<F16>(largest, least),
            Method::TripleBf16(by) => by.is_too_wide::<Bf16>(largest, least),
            _ => false,
        };
        match largest {
            exponent::ZERO => Way::Skipped,
            NON_FINITE if self.wide().is_none() => Way::Skipped,
            NON_FINITE => Way::Wide,
            _ if too_wide => Way::Wide,
            _ => Way::Scaled,
        }
    }

    /// Bytes of an element; 1 where any bytes go.
    const fn element(self) -> usize {
        match self.0 {
            Method::Bytes => 1,
            Method::FixedF64(_) | Method::SumI64 => 8,
            Method::FixedF16(_)
            | Method::PackedF16(_)
            | Method::TripleF16(_)
            | Method::WideF16(_)
            | Method::MaxF16
            | Method::MinF16 => 2,
            Method::FixedBf16(_) | Method::PackedBf16(_) | Method::TripleBf16(_) => 2,
            Method::WideBf16(_) | Method::MaxBf16 | Method::MinBf16 => 2,
            Method::Rotated(by) => by.element(),
            _ => 4,
        }
    }

    /// Rule 17.3: the least whole number of lanes that carries a whole number of elements, and the
    /// bytes of these.
    const fn unit(self) -> (usize, usize) {
        match self.0 {
            Method::Bytes => (1, 4),
            Method::PackedF32(_) | Method::PackedF16(_) | Method::PackedBf16(_) => {
                (LANES_PER_BLOCK, 2 * LANES_PER_BLOCK * self.element())
            }
            Method::Rotated(_) => (LANES_PER_BLOCK, 4 * LANES_PER_BLOCK * self.element()),
            Method::TripleF32(_) | Method::TripleF16(_) | Method::TripleBf16(_) => {
                (triple::LANES, self.element())
            }
            Method::WideF32(by) => (wide::lanes::<F32>(by), self.element()),
            Method::WideF16(by) => (wide::lanes::<F16>(by), self.element()),
            Method::WideBf16(by) => (wide::lanes::<Bf16>(by), self.element()),
            Method::FixedF64(_) => (2, self.element()),
            Method::SumI64 => (long::LANES, self.element()),
            _ => (1, self.element()),
        }
    }

    /// Bytes of elements that a chunk of `lanes` lanes carries.
    pub const fn bytes_per_chunk(self, lanes: usize) -> usize {
        let (unit, bytes) = self.unit();
        lanes / unit * bytes
    }

    /// Elements that a chunk of `lanes` lanes carries.
    pub const fn elements_per_chunk(self, lanes: usize) -> usize {
        self.bytes_per_chunk(lanes) / self.element()
    }

    /// Lanes that `bytes` bytes of elements take.
    pub const fn used_lanes(self, bytes: usize) -> usize {
        let (lanes, unit) = self.unit();
        bytes.div_ceil(unit) * lanes
    }

    /// Rule 17.5: lanes of the packet for `bytes` bytes of elements, in whole blocks of 32.
    pub const fn lanes_for(self, bytes: usize) -> usize {
        self.used_lanes(bytes).next_multiple_of(LANES_PER_BLOCK)
    }

    /// This rank's exponent of a chunk: E with 2^E <= max|x| < 2^(E+1), [`super::exponent::ZERO`]
    /// when every element is zero, [`super::exponent::NON_FINITE`] when any is infinite or NaN.
    /// `elements`: bytes of whole elements.
    pub fn exponent(self, elements: &[u8]) -> i32 {
        exponent_of(&self.0, elements)
    }

    /// This rank's exponent of a chunk's smallest magnitude above zero, where there is a wide form;
    /// [`exponent::ZERO`] when there is none.
    pub fn least_exponent(self, elements: &[u8]) -> i32 {
        least_exponent_of(&self.0, elements)
    }

    /// Encodes a chunk and returns the wrapping sum of the lanes written: the packet's check word
    /// for a sum.
    ///
    /// `elements`: bytes of whole elements. `exponent`: the chunk's global exponent, the maximum
    /// over ranks, not a marker; means nothing in the wide form. `payload`: 4 bytes per lane, as
    /// many lanes as [`Codec::lanes_for`] says; those behind the elements are set to zero.
    ///
    /// # Panics
    /// When `elements` does not fit `payload`, is not whole elements, or `payload` is not whole
    /// lanes: the caller's arithmetic is wrong. No value of an element or an exponent panics.
    pub fn encode(self, elements: &[u8], exponent: i32, payload: &mut [u8]) -> u32 {
        self.check_sizes(elements.len(), payload.len());
        encode(&self.0, elements, exponent, payload)
    }

    /// Decodes a chunk's result, as many elements as `elements` has room for. Arguments as for
    /// [`Codec::encode`].
    ///
    /// # Panics
    /// As [`Codec::encode`] does. No content of a payload panics.
    pub fn decode(self, payload: &[u8], exponent: i32, elements: &mut [u8]) {
        self.check_sizes(elements.len(), payload.len());
        decode(&self.0, payload, exponent, elements);
    }

    /// Writes what this rank's elements of a chunk lose in fewer bits: each, less what it adds to
    /// the sum. So the sum of all ranks' elements, less all their residuals, is the result but for
    /// roundings of f32; the same for an average, before it is divided. Zeros where all bits
    /// travel. Arguments as for [`Codec::encode`]; `residual` is as long as `elements`.
    ///
    /// # Panics
    /// When `elements` is not whole elements, or `residual` has another length.
    pub fn residual(self, elements: &[u8], exponent: i32, residual: &mut [u8]) {
        self.check_sizes(elements.len(), 4 * self.lanes_for(elements.len()));
        assert_eq!(elements.len(), residual.len(), "a residual for each element");
        residual_of(&self.0, elements, exponent, residual);
    }

    /// Rule 18.3: writes the result of a chunk that is never sent (see
    /// [`super::exponent::is_marker`]): NaN for [`super::exponent::NON_FINITE`], otherwise +0.0.
    pub fn fill_skipped(self, exponent: i32, elements: &mut [u8]) {
        if exponent != NON_FINITE {
            elements.fill(0);
            return;
        }
        match self.0 {
            Method::FixedF32(_) | Method::PackedF32(_) | Method::TripleF32(_) => {
                bytes::fill(elements, std::iter::repeat(F32::NAN));
            }
            Method::FixedF64(_) => bytes::fill(elements, std::iter::repeat(F64::NAN)),
            Method::FixedF16(_) | Method::PackedF16(_) | Method::TripleF16(_) => {
                bytes::fill(elements, std::iter::repeat(F16::NAN));
            }
            Method::FixedBf16(_) | Method::PackedBf16(_) | Method::TripleBf16(_) => {
                bytes::fill(elements, std::iter::repeat(Bf16::NAN));
            }
            Method::Rotated(by) => by.fill_nan(elements),
            _ => {}
        }
    }

    #[inline(always)]
    fn check_sizes(&self, elements: usize, payload: usize) {
        let whole = elements.is_multiple_of(self.element());
        let fits = payload.is_multiple_of(4) && elements <= self.bytes_per_chunk(payload / 4);
        if !(whole && fits) {
            self.refuse_sizes(elements, payload);
        }
    }

    /// Out of the way: a chunk is encoded in tens of nanoseconds.
    #[cold]
    #[inline(never)]
    fn refuse_sizes(&self, elements: usize, payload: usize) -> ! {
        panic!("{elements} bytes of elements for {payload} bytes of payload in {:?}", self.0);
    }
}

/// The wrapping sum of a payload's big-endian lanes, as the check word takes it.
pub fn lane_sum(payload: &[u8]) -> u32 {
    summed(payload)
}

vectorised! {
    fn exponent_of(method: &Method, src: &[u8]) -> i32 = exponent_with;
    fn least_exponent_of(method: &Method, src: &[u8]) -> i32 = least_exponent_with;
    fn encode(method: &Method, src: &[u8], exponent: i32, payload: &mut [u8]) -> u32 = encode_with;
    fn decode(method: &Method, payload: &[u8], exponent: i32, dst: &mut [u8]) = decode_with;
    fn residual_of(method: &Method, src: &[u8], exponent: i32, dst: &mut [u8]) = residual_with;
    fn summed(payload: &[u8]) -> u32 = plain::lane_sum;
}

#[inline(always)]
fn exponent_with(method: &Method, src: &[u8]) -> i32 {
    match *method {
        Method::FixedF32(_) | Method::PackedF32(_) | Method::TripleF32(_) => {
            format::largest_exponent::<F32>(src)
        }
        Method::FixedF64(_) => format::largest_exponent::<F64>(src),
        Method::FixedF16(_) | Method::PackedF16(_) | Method::TripleF16(_) => {
            format::largest_exponent::<F16>(src)
        }
        Method::FixedBf16(_) | Method::PackedBf16(_) | Method::TripleBf16(_) => {
            format::largest_exponent::<Bf16>(src)
        }
        Method::Rotated(ref by) => by.exponent(src, Codec(*method).lanes_for(src.len())),
        _ => 0,
    }
}

#[inline(always)]
fn least_exponent_with(method: &Method, src: &[u8]) -> i32 {
    match *method {
        Method::TripleF32(_) => format::least_exponent::<F32>(src),
        Method::TripleF16(_) => format::least_exponent::<F16>(src),
        Method::TripleBf16(_) => format::least_exponent::<Bf16>(src),
        _ => exponent::ZERO,
    }
}

#[inline(always)]
fn encode_with(method: &Method, src: &[u8], exponent: i32, payload: &mut [u8]) -> u32 {
    match *method {
        Method::FixedF32(by) => fixed::encode::<F32>(by, src, exponent, payload),
        Method::FixedF64(by) => fixed::encode_wide(by, src, exponent, payload),
        Method::FixedF16(by) => fixed::encode::<F16>(by, src, exponent, payload),
        Method::FixedBf16(by) => fixed::encode::<Bf16>(by, src, exponent, payload),
        Method::Rotated(ref by) => by.encode(src, exponent, payload),
        Method::PackedF32(by) => packed::encode::<F32>(by, src, exponent, payload),
        Method::PackedF16(by) => packed::encode::<F16>(by, src, exponent, payload),
        Method::PackedBf16(by) => packed::encode::<Bf16>(by, src, exponent, payload),
        Method::TripleF32(by) => triple::encode::<F32>(by, src, exponent, payload),
        Method::TripleF16(by) => triple::encode::<F16>(by, src, exponent, payload),
        Method::TripleBf16(by) => triple::encode::<Bf16>(by, src, exponent, payload),
        Method::WideF32(by) => wide::encode::<F32>(by, src, payload),
        Method::WideF16(by) => wide::encode::<F16>(by, src, payload),
        Method::WideBf16(by) => wide::encode::<Bf16>(by, src, payload),
        Method::MaxF32 => plain::encode_ordered::<F32, false>(src, payload),
        Method::MaxF16 => plain::encode_ordered::<F16, false>(src, payload),
        Method::MaxBf16 => plain::encode_ordered::<Bf16, false>(src, payload),
        Method::MinF32 => plain::encode_ordered::<F32, true>(src, payload),
        Method::MinF16 => plain::encode_ordered::<F16, true>(src, payload),
        Method::MinBf16 => plain::encode_ordered::<Bf16, true>(src, payload),
        Method::SumI32 | Method::MaxI32 => plain::encode_integers::<false>(src, payload),
        Method::MinI32 => plain::encode_integers::<true>(src, payload),
        Method::SumI64 => long::encode(src, payload),
        Method::Bytes => plain::encode_bytes(src, payload),
    }
}

#[inline(always)]
fn decode_with(method: &Method, payload: &[u8], exponent: i32, dst: &mut [u8]) {
    match *method {
        Method::FixedF32(by) => fixed::decode_f32(by, payload, exponent, dst),
        Method::FixedF64(by) => fixed::decode_wide(by, payload, exponent, dst),
        Method::FixedF16(by) => fixed::decode::<F16>(by, payload, exponent, dst),
        Method::FixedBf16(by) => fixed::decode::<Bf16>(by, payload, exponent, dst),
        Method::Rotated(ref by) => by.decode(payload, exponent, dst),
        Method::PackedF32(by) => packed::decode::<F32>(by, payload, exponent, dst),
        Method::PackedF16(by) => packed::decode::<F16>(by, payload, exponent, dst),
        Method::PackedBf16(by) => packed::decode::<Bf16>(by, payload, exponent, dst),
        Method::TripleF32(by) => triple::decode::<F32>(by, payload, exponent, dst),
        Method::TripleF16(by) => triple::decode::<F16>(by, payload, exponent, dst),
        Method::TripleBf16(by) => triple::decode::<Bf16>(by, payload, exponent, dst),
        Method::WideF32(by) => wide::decode::<F32>(by, payload, dst),
        Method::WideF16(by) => wide::decode::<F16>(by, payload, dst),
        Method::WideBf16(by) => wide::decode::<Bf16>(by, payload, dst),
        Method::MaxF32 => plain::decode_ordered::<F32, false>(payload, dst),
        Method::MaxF16 => plain::decode_ordered::<F16, false>(payload, dst),
        Method::MaxBf16 => plain::decode_ordered::<Bf16, false>(payload, dst),
        Method::MinF32 => plain::decode_ordered::<F32, true>(payload, dst),
        Method::MinF16 => plain::decode_ordered::<F16, true>(payload, dst),
        Method::MinBf16 => plain::decode_ordered::<Bf16, true>(payload, dst),
        Method::SumI32 | Method::MaxI32 => plain::decode_integers::<false>(payload, dst),
        Method::MinI32 => plain::decode_integers::<true>(payload, dst),
        Method::SumI64 => long::decode(payload, dst),
        Method::Bytes => plain::decode_bytes(payload, dst),
    }
}

#[inline(always)]
fn residual_with(method: &Method, src: &[u8], exponent: i32, dst: &mut [u8]) {
    match *method {
        Method::PackedF32(by) => packed::residual::<F32>(by, src, exponent, dst),
        Method::PackedF16(by) => packed::residual::<F16>(by, src, exponent, dst),
        Method::PackedBf16(by) => packed::residual::<Bf16>(by, src, exponent, dst),
        Method::Rotated(ref by) => {
            by.residual(src, exponent, Codec(*method).lanes_for(src.len()), dst);
        }
        _ => dst.fill(0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The machine's best is what the codec itself picks; here are the lesser ones.
    macro_rules! lesser {
        ($($unit:ident: [$($target:literal),*];)*) => {$(
            mod $unit {
                use super::super::*;
                use crate::numerics::rotated;
                use crate::numerics::rotation::Room;

                #[multiversion::multiversion(targets($($target),*))]
                pub fn exponent_of(method: &Method, src: &[u8], lanes: usize) -> i32 {
                    match method {
                        Method::Rotated(by) => {
                            rotated::exponent_with(by, src, lanes, &mut { Room::NONE })
                        }
                        _ => exponent_with(method, src),
                    }
                }

                #[multiversion::multiversion(targets($($target),*))]
                pub fn encode(
                    method: &Method,
                    src: &[u8],
                    exponent: i32,
                    payload: &mut [u8],
                ) -> u32 {
                    match method {
                        Method::Rotated(by) => {
                            rotated::encode_with(by, src, exponent, payload, &mut { Room::NONE })
                        }
                        _ => encode_with(method, src, exponent, payload),
                    }
                }

                #[multiversion::multiversion(targets($($target),*))]
                pub fn decode(method: &Method, payload: &[u8], exponent: i32, dst: &mut [u8]) {
                    match method {
                        Method::Rotated(by) => {
                            rotated::decode_with(by, payload, exponent, dst, &mut { Room::NONE })
                        }
                        _ => decode_with(method, payload, exponent, dst),
                    }
                }
            }
        )*};
    }
    lesser! {
        avx2: ["x86_64+avx2"];
        sse4: ["x86_64+sse4.1"];
        baseline: [];
    }

    proptest! {
        /// Same bits from every vector unit, in any bits, at lengths that leave every kind of
        /// remainder.
        #[test]
        fn every_vector_unit_gives_the_same_bits(
            // Also those of a full packet, which has code of its own in 8 bits.
            words in prop_oneof![vec(any::<u64>(), 0..100), vec(any::<u64>(), 640..710)],
            is_finite in any::<bool>(),
            sums in (7usize..=24).prop_flat_map(|blocks| vec(any::<u32>(), 32 * blocks)),
            exponent in prop_oneof![-1080..1030, -8..40],
            ranks in 1usize..=64,
        ) {
            // Without the highest bit of the exponent no float is an infinity or a NaN.
            let mask = if is_finite { 0xBFFF_BFFF_BFFF_BFFF } else { u64::MAX };
            let words: Vec<u64> = words.into_iter().map(|word| word & mask).collect();
            let lanes = sums.len();
            let codecs = DType::ALL.into_iter().flat_map(|dtype| {
                let ops = Reduction::ALL.into_iter().flat_map(|op| [(op, 1), (op, usize::MAX)]);
                ops.filter_map(move |(op, count)| Codec::reduction(dtype, op, ranks, count).ok())
            });
            let codecs = codecs.flat_map(|codec| [Some(codec), codec.wide()]).flatten();
            for codec in codecs.chain([Codec::bytes()]) {
                // Random numbers of some other chunk than the first.
                let codec = codec.at(words.len() as u64, 1 << 20, ranks as u32 - 1);
                let method = &codec.0;
                let src: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                // As many as there is room for, of every size of element a whole number.
                let src = &src[..codec.bytes_per_chunk(lanes).min(src.len())];
                let mut expected = vec![0x11; 4 * lanes];
                let sum = codec.encode(src, exponent, &mut expected);
                let reply: Vec<u8> = sums.iter().flat_map(|lane| lane.to_be_bytes()).collect();
                let mut result = vec![0x22; src.len()];
                codec.decode(&reply, exponent, &mut result);
                for (exponent_of, encode, decode) in [
                    (
                        avx2::exponent_of as fn(&_, &_, _) -> _,
                        avx2::encode as fn(&_, &_, _, &mut _) -> _,
                        avx2::decode as fn(&_, &_, _, &mut _),
                    ),
                    (sse4::exponent_of, sse4::encode, sse4::decode),
                    (baseline::exponent_of, baseline::encode, baseline::decode),
                ] {
                    let used = codec.lanes_for(src.len());
                    let own = exponent_of(method, src, used);
                    prop_assert_eq!(own, codec.exponent(src));
                    let mut payload = vec![0x33; 4 * lanes];
                    prop_assert_eq!(encode(method, src, exponent, &mut payload), sum);
                    prop_assert_eq!(&payload, &expected);
                    let mut elements = vec![0x44; src.len()];
                    decode(method, &reply, exponent, &mut elements);
                    prop_assert_eq!(&elements, &result);
                }
            }
        }
    }
}
