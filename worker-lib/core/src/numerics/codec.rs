//! One collective's way between elements and lanes.

use switchml_protocol::wire::header::Op;
use switchml_protocol::{LANES_PER_BLOCK, MAX_RANKS};

use super::by_float::by_float;
use super::dithered::{self, Dithered};
use super::dtype::{DType, NumericsError, Precision, ReduceOp, Reduction};
use super::exponent::{self, NON_FINITE, Way};
use super::fixed::{self, Fixed};
use super::format::{self, F64, Format};
use super::random::Source;
use super::vectorised::vectorised;
use super::{bytes, long, packed, plain, rotated, triple, wide};

/// The codec of a collective: turns its elements into lanes, and its result's lanes into elements.
///
/// Chosen once per collective and copied around freely; every call handles one chunk. Elements come
/// and go as bytes in native order at any alignment ([`bytemuck::cast_slice`] gives them), payloads
/// are big-endian lanes. Every rank decodes the same payload to the same bits, whatever vector
/// units its processor has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    layout: Layout,
    /// The elements' type, which the layout is offered for.
    dtype: DType,
}

/// How elements lie in lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// Floats as multiples of a power of two, a lane each; two lanes for an f64.
    Fixed(Fixed),
    /// Floats in 16 bits: two in a lane.
    Packed(Fixed),
    /// Floats in 8 bits, rotated: four in a lane.
    Rotated(Dithered),
    /// Floats of small calls: three lanes each, as digits.
    Triple(Fixed),
    /// Floats that three lanes are too few for: as many as hold all of the type.
    Wide(Fixed),
    /// Numbers in an order that integers have: a lane each.
    Max,
    /// The same numbers upside down.
    Min,
    /// Integers as they are: a lane for an i32, three for an i64.
    Integers,
    /// Any bytes, four in a lane.
    Bytes,
}

/// Elements of the largest call whose sums take three lanes an element, if they are f32, f16 or
/// bf16. Part of the protocol: all ranks must have the same.
pub const SMALL_COUNT: usize = 1024;

impl Codec {
    /// The codec of a reduction of `count` elements of `dtype` over `ranks` ranks: those of the
    /// whole call, whichever part of it is encoded (rules 17.3, 21.7 and 26.9).
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
            // With more ranks, each would have too few levels.
            let in_8_bits = precision == Precision::Bits8 && ranks <= dithered::MOST_RANKS;
            let layout = match (op, dtype) {
                (Max | Min, _) | (_, F64 | I32 | I64) => {
                    return Err(NumericsError::NotPacked { reduction, dtype });
                }
                (Sum | Avg, _) if in_8_bits => Layout::Rotated(Dithered::new(fixed)),
                (Sum | Avg, _) => Layout::Packed(fixed),
            };
            return Ok(Self { layout, dtype });
        }
        let layout = match (op, dtype) {
            (Sum | Avg, F32 | F16 | Bf16) if count <= SMALL_COUNT => Layout::Triple(fixed),
            (Sum | Avg, F32 | F64 | F16 | Bf16) => Layout::Fixed(fixed),
            (Sum, I32 | I64) => Layout::Integers,
            (Avg, I32 | I64) => return Err(NumericsError::NoIntegerAverage(dtype)),
            (Max | Min, F64 | I64) => return Err(NumericsError::NoWideExtremum { op, dtype }),
            (Max, _) => Layout::Max,
            (Min, _) => Layout::Min,
        };
        Ok(Self { layout, dtype })
    }

    /// The precision that is really used, which may differ from the requested one: 16 bits instead
    /// of 8 among more than 32 ranks.
    pub const fn precision(self) -> Precision {
        match self.layout {
            Layout::Packed(_) => Precision::Bits16,
            Layout::Rotated(_) => Precision::Bits8,
            _ => Precision::Exact,
        }
    }

    /// This codec for the chunk whose first element is number `first` of call `call`, on `rank`.
    /// Only matters for 8 bits: these values seed the random numbers.
    pub fn at(self, call: u64, first: u64, rank: u32) -> Self {
        match self.layout {
            Layout::Rotated(by) => {
                let layout = Layout::Rotated(by.at(Source::new(call, first, rank)));
                Self { layout, ..self }
            }
            _ => self,
        }
    }

    /// The codec of exponent chunks: one i32 per data chunk, in native byte order, MAX over ranks.
    pub const fn exponents() -> Self {
        Self { layout: Layout::Max, dtype: DType::I32 }
    }

    /// The codec of a broadcast: any bytes, packed four to a lane. The root encodes its bytes,
    /// every other rank none (all its lanes are zero), and SUM delivers the root's. Native byte
    /// order travels as it is, so all ranks must have the same.
    pub const fn bytes() -> Self {
        // Of no type: bytes are counted.
        Self { layout: Layout::Bytes, dtype: DType::I32 }
    }

    /// How the aggregator combines the lanes (rules 17.4 and 21.7).
    pub const fn wire_op(self) -> Op {
        match self.layout {
            Layout::Max | Layout::Min => Op::Max,
            Layout::Fixed(_)
            | Layout::Packed(_)
            | Layout::Rotated(_)
            | Layout::Triple(_)
            | Layout::Wide(_)
            | Layout::Integers
            | Layout::Bytes => Op::Sum,
        }
    }

    /// Whether the ranks must agree on each chunk's exponent before its data, as in float sums.
    /// Other codecs ignore the exponent arguments below, and skip no chunk.
    pub const fn uses_exponents(self) -> bool {
        matches!(
            self.layout,
            Layout::Fixed(_) | Layout::Packed(_) | Layout::Rotated(_) | Layout::Triple(_)
        )
    }

    /// The codec for a chunk's elements if three lanes an element are too few. `None` if this codec
    /// does not use three lanes.
    pub const fn wide(self) -> Option<Self> {
        match self.layout {
            Layout::Triple(by) => Some(Self { layout: Layout::Wide(by), ..self }),
            _ => None,
        }
    }

    /// Rules 18.3 and 18.4: what becomes of a chunk with these exponents of all ranks, that of the
    /// largest magnitude, and, where there is a wide form, that of the smallest above zero.
    pub fn way(self, largest: i32, least: i32) -> Way {
        let too_wide = match self.layout {
            Layout::Triple(by) => {
                by_float!(self.dtype, F => by.is_too_wide::<F>(largest, least))
            }
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
        match self.layout {
            Layout::Bytes => 1,
            _ => self.dtype.size(),
        }
    }

    /// Rules 17.3, 21.7, 26.9 and 29.2: the least whole number of lanes that carries a whole number
    /// of elements, and the bytes of these.
    const fn unit(self) -> (usize, usize) {
        let lanes = match (self.layout, self.dtype) {
            (Layout::Bytes, _) => return (1, 4),
            (Layout::Packed(_), _) => {
                return (LANES_PER_BLOCK, 2 * LANES_PER_BLOCK * self.element());
            }
            (Layout::Rotated(_), _) => {
                return (LANES_PER_BLOCK, 4 * LANES_PER_BLOCK * self.element());
            }
            (Layout::Triple(_), _) => triple::LANES,
            (Layout::Wide(by), dtype) => by_float!(dtype, F => wide::lanes::<F>(by)),
            (Layout::Fixed(_), DType::F64) => 2,
            (Layout::Integers, DType::I64) => long::LANES,
            _ => 1,
        };
        (lanes, self.element())
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
        exponent_of(&self, elements)
    }

    /// This rank's exponent of a chunk's smallest magnitude above zero, where there is a wide form;
    /// [`exponent::ZERO`] when there is none.
    pub fn least_exponent(self, elements: &[u8]) -> i32 {
        least_exponent_of(&self, elements)
    }

    /// Encodes a chunk and returns the wrapping sum of the lanes written, which a sum's check word
    /// needs.
    ///
    /// `elements`: bytes of whole elements. `exponent`: the chunk's global exponent, the maximum
    /// over ranks, not a marker; means nothing in the wide form. `payload`: 4 bytes per lane, as
    /// many lanes as [`Codec::lanes_for`] says; lanes behind the elements are set to zero.
    ///
    /// # Panics
    /// When `elements` does not fit `payload`, is not whole elements, or `payload` is not whole
    /// lanes: the caller's arithmetic is wrong. No value of an element or an exponent panics.
    pub fn encode(self, elements: &[u8], exponent: i32, payload: &mut [u8]) -> u32 {
        self.check_sizes(elements.len(), payload.len());
        encode(&self, elements, exponent, payload)
    }

    /// Decodes a chunk's result, as many elements as `elements` has room for. Arguments as for
    /// [`Codec::encode`].
    ///
    /// # Panics
    /// Panics like [`Codec::encode`], but never because of a payload's content.
    pub fn decode(self, payload: &[u8], exponent: i32, elements: &mut [u8]) {
        self.check_sizes(elements.len(), payload.len());
        decode(&self, payload, exponent, elements);
    }

    /// Writes the residuals of this rank's elements of a chunk: each element minus its contribution
    /// to the sum in fewer bits. So the sum of all ranks' elements minus all their residuals is the
    /// result, except for roundings of f32; for an average, before it is divided. Zeros if all bits
    /// travel. Arguments as for [`Codec::encode`]; `residual` is as long as `elements`.
    ///
    /// # Panics
    /// When `elements` is not whole elements, or `residual` has another length.
    pub fn residual(self, elements: &[u8], exponent: i32, residual: &mut [u8]) {
        self.check_sizes(elements.len(), 4 * self.lanes_for(elements.len()));
        assert_eq!(elements.len(), residual.len(), "a residual for each element");
        residual_of(&self, elements, exponent, residual);
    }

    /// Rule 18.3: writes the result of a chunk that is never sent (see
    /// [`super::exponent::is_marker`]): NaN for [`super::exponent::NON_FINITE`], otherwise +0.0.
    pub fn fill_skipped(self, exponent: i32, elements: &mut [u8]) {
        if exponent != NON_FINITE {
            elements.fill(0);
            return;
        }
        if self.uses_exponents() {
            match self.dtype {
                DType::F64 => bytes::fill(elements, std::iter::repeat(F64::NAN)),
                dtype => by_float!(dtype, F => bytes::fill(elements, std::iter::repeat(F::NAN))),
            }
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
        panic!("{elements} bytes of elements for {payload} bytes of payload in {self:?}");
    }
}

/// The wrapping sum of a payload's big-endian lanes, as the check word takes it.
pub fn lane_sum(payload: &[u8]) -> u32 {
    summed(payload)
}

vectorised! {
    fn exponent_of(codec: &Codec, src: &[u8]) -> i32 = exponent_with;
    fn least_exponent_of(codec: &Codec, src: &[u8]) -> i32 = least_exponent_with;
    fn encode(codec: &Codec, src: &[u8], exponent: i32, payload: &mut [u8]) -> u32 = encode_with;
    fn decode(codec: &Codec, payload: &[u8], exponent: i32, dst: &mut [u8]) = decode_with;
    fn residual_of(codec: &Codec, src: &[u8], exponent: i32, dst: &mut [u8]) = residual_with;
    fn summed(payload: &[u8]) -> u32 = plain::lane_sum;
}

#[inline(always)]
fn exponent_with(codec: &Codec, src: &[u8]) -> i32 {
    match (codec.layout, codec.dtype) {
        (Layout::Fixed(_), DType::F64) => format::largest_exponent::<F64>(src),
        (Layout::Fixed(_) | Layout::Packed(_) | Layout::Triple(_), dtype) => {
            by_float!(dtype, F => format::largest_exponent::<F>(src))
        }
        (Layout::Rotated(ref by), dtype) => {
            rotated::exponent_of((by, dtype), src, codec.lanes_for(src.len()))
        }
        _ => 0,
    }
}

#[inline(always)]
fn least_exponent_with(codec: &Codec, src: &[u8]) -> i32 {
    match codec.layout {
        Layout::Triple(_) => by_float!(codec.dtype, F => format::least_exponent::<F>(src)),
        _ => exponent::ZERO,
    }
}

#[inline(always)]
fn encode_with(codec: &Codec, src: &[u8], exponent: i32, payload: &mut [u8]) -> u32 {
    match (codec.layout, codec.dtype) {
        (Layout::Fixed(by), DType::F64) => fixed::encode_wide(by, src, exponent, payload),
        (Layout::Fixed(by), dtype) => {
            by_float!(dtype, F => fixed::encode::<F>(by, src, exponent, payload))
        }
        (Layout::Packed(by), dtype) => {
            by_float!(dtype, F => packed::encode::<F>(by, src, exponent, payload))
        }
        (Layout::Rotated(ref by), dtype) => rotated::encode_of((by, dtype), src, exponent, payload),
        (Layout::Triple(by), dtype) => {
            by_float!(dtype, F => triple::encode::<F>(by, src, exponent, payload))
        }
        (Layout::Wide(by), dtype) => {
            by_float!(dtype, F => wide::encode::<F>(by, src, payload))
        }
        (Layout::Integers, DType::I64) => long::encode(src, payload),
        (Layout::Integers, _) | (Layout::Max, DType::I32) => {
            plain::encode_integers::<false>(src, payload)
        }
        (Layout::Min, DType::I32) => plain::encode_integers::<true>(src, payload),
        (Layout::Max, dtype) => {
            by_float!(dtype, F => plain::encode_ordered::<F, false>(src, payload))
        }
        (Layout::Min, dtype) => {
            by_float!(dtype, F => plain::encode_ordered::<F, true>(src, payload))
        }
        (Layout::Bytes, _) => plain::encode_bytes(src, payload),
    }
}

#[inline(always)]
fn decode_with(codec: &Codec, payload: &[u8], exponent: i32, dst: &mut [u8]) {
    match (codec.layout, codec.dtype) {
        (Layout::Fixed(by), DType::F64) => fixed::decode_wide(by, payload, exponent, dst),
        (Layout::Fixed(by), DType::F32) => fixed::decode_f32(by, payload, exponent, dst),
        (Layout::Fixed(by), dtype) => {
            by_float!(dtype, F => fixed::decode::<F>(by, payload, exponent, dst));
        }
        (Layout::Packed(by), dtype) => {
            by_float!(dtype, F => packed::decode::<F>(by, payload, exponent, dst));
        }
        (Layout::Rotated(ref by), dtype) => {
            rotated::decode_of((by, dtype), payload, exponent, dst);
        }
        (Layout::Triple(by), dtype) => {
            by_float!(dtype, F => triple::decode::<F>(by, payload, exponent, dst));
        }
        (Layout::Wide(by), dtype) => by_float!(dtype, F => wide::decode::<F>(by, payload, dst)),
        (Layout::Integers, DType::I64) => long::decode(payload, dst),
        (Layout::Integers, _) | (Layout::Max, DType::I32) => {
            plain::decode_integers::<false>(payload, dst);
        }
        (Layout::Min, DType::I32) => plain::decode_integers::<true>(payload, dst),
        (Layout::Max, dtype) => {
            by_float!(dtype, F => plain::decode_ordered::<F, false>(payload, dst));
        }
        (Layout::Min, dtype) => {
            by_float!(dtype, F => plain::decode_ordered::<F, true>(payload, dst));
        }
        (Layout::Bytes, _) => plain::decode_bytes(payload, dst),
    }
}

#[inline(always)]
fn residual_with(codec: &Codec, src: &[u8], exponent: i32, dst: &mut [u8]) {
    match (codec.layout, codec.dtype) {
        (Layout::Packed(by), dtype) => {
            by_float!(dtype, F => packed::residual::<F>(by, src, exponent, dst));
        }
        (Layout::Rotated(ref by), dtype) => {
            rotated::residual_of((by, dtype), src, exponent, codec.lanes_for(src.len()), dst);
        }
        _ => dst.fill(0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The codec itself picks the machine's best vector unit; this tests the lesser ones.
    macro_rules! lesser {
        ($($unit:ident: [$($target:literal),*];)*) => {$(
            mod $unit {
                use super::super::*;
                use crate::numerics::rotated;
                use crate::numerics::rotation::Room;

                #[multiversion::multiversion(targets($($target),*))]
                pub fn exponent_of(codec: &Codec, src: &[u8], lanes: usize) -> i32 {
                    match &codec.layout {
                        Layout::Rotated(by) => {
                            let by = (by, codec.dtype);
                            rotated::exponent_with(by, src, lanes, &mut { Room::NONE })
                        }
                        _ => exponent_with(codec, src),
                    }
                }

                #[multiversion::multiversion(targets($($target),*))]
                pub fn encode(
                    codec: &Codec,
                    src: &[u8],
                    exponent: i32,
                    payload: &mut [u8],
                ) -> u32 {
                    match &codec.layout {
                        Layout::Rotated(by) => {
                            let by = (by, codec.dtype);
                            rotated::encode_with(by, src, exponent, payload, &mut { Room::NONE })
                        }
                        _ => encode_with(codec, src, exponent, payload),
                    }
                }

                #[multiversion::multiversion(targets($($target),*))]
                pub fn decode(codec: &Codec, payload: &[u8], exponent: i32, dst: &mut [u8]) {
                    match &codec.layout {
                        Layout::Rotated(by) => {
                            let by = (by, codec.dtype);
                            rotated::decode_with(by, payload, exponent, dst, &mut { Room::NONE })
                        }
                        _ => decode_with(codec, payload, exponent, dst),
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
        /// Every vector unit gives the same bits, in any precision, at lengths with every kind of
        /// remainder.
        #[test]
        fn every_vector_unit_gives_the_same_bits(
            // The lengths include full packets, which have separate code in 8 bits.
            words in prop_oneof![vec(any::<u64>(), 0..100), vec(any::<u64>(), 640..710)],
            is_finite in any::<bool>(),
            sums in (7usize..=24).prop_flat_map(|blocks| vec(any::<u32>(), 32 * blocks)),
            exponent in prop_oneof![-1080..1030, -8..40],
            ranks in 1usize..=64,
        ) {
            // Without the highest bit of its exponent, no float is an infinity or a NaN.
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
                let src: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                // As many elements as fit: a whole number of every size.
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
                    let own = exponent_of(&codec, src, used);
                    prop_assert_eq!(own, codec.exponent(src));
                    let mut payload = vec![0x33; 4 * lanes];
                    prop_assert_eq!(encode(&codec, src, exponent, &mut payload), sum);
                    prop_assert_eq!(&payload, &expected);
                    let mut elements = vec![0x44; src.len()];
                    decode(&codec, &reply, exponent, &mut elements);
                    prop_assert_eq!(&elements, &result);
                }
            }
        }
    }
}
