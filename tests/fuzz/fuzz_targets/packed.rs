//! Any floats through chunks of 16 and 8 bits, among any number of ranks, and any lanes back: there
//! is no panic, the lanes and elements have the same bits as those computed by section 26 of
//! docs/spec without a vector unit, and results are within the promised bounds.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use switchml_worker_core::numerics::{Codec, DType, Reduction, exponent};

/// Lanes of the longest packet.
const MOST_LANES: usize = 768;
const BLOCK: usize = 32;
/// Elements of all ranks together at most, so that a run is short.
const MOST_ELEMENTS: usize = 8192;
/// Elements that are mixed.
const COLUMN: usize = 128;

fuzz_target!(|input: &[u8]| {
    let mut input = Unstructured::new(input);
    let Ok(case) = Case::choose(&mut input) else { return };
    case.reduce();
    case.survive(&mut input);
});

/// A chunk of a call.
struct Case {
    format: Format,
    reduction: Reduction,
    call: u64,
    first: u64,
    ranks: Vec<Vec<u32>>,
}

/// Elements are bits.
#[derive(Clone, Copy)]
struct Format {
    dtype: DType,
    mantissa: u32,
    bias: i32,
}

const FORMATS: [Format; 3] = [
    Format { dtype: DType::F32, mantissa: 23, bias: 127 },
    Format { dtype: DType::F16, mantissa: 10, bias: 15 },
    Format { dtype: DType::Bf16, mantissa: 7, bias: 127 },
];
const REDUCTIONS: [Reduction; 4] =
    [Reduction::SUM16, Reduction::AVG16, Reduction::SUM8, Reduction::AVG8];

impl Format {
    fn sign(self) -> u32 {
        1 << (8 * self.dtype.size() - 1)
    }

    fn infinity(self) -> u32 {
        (2 * self.bias as u32 + 1) << self.mantissa
    }

    fn magnitude(self, bits: u32) -> u32 {
        bits & (self.sign() - 1)
    }

    /// The exact value; for infinity the number that would come next with one more exponent.
    fn value(self, bits: u32) -> f64 {
        let (field, rest) =
            (self.magnitude(bits) >> self.mantissa, bits & ((1 << self.mantissa) - 1));
        let (whole, field) =
            if field == 0 { (rest, 1) } else { (rest | 1 << self.mantissa, field) };
        let number = f64::from(whole) * power(field as i32 - self.bias - self.mantissa as i32);
        if bits & self.sign() != 0 { -number } else { number }
    }

    /// Whether no number is nearer to `x` than the number with these bits; if two are equally near,
    /// the even one.
    fn is_nearest(self, bits: u32, x: f64) -> bool {
        let magnitude = self.magnitude(bits);
        if magnitude > self.infinity() || (bits & self.sign() != 0) != x.is_sign_negative() {
            return false;
        }
        let off = |bits: u32| (self.value(bits) - x.abs()).abs();
        let (own, even) = (off(magnitude), magnitude.is_multiple_of(2));
        let beats = |other: u32| own < off(other) || own == off(other) && even;
        (magnitude == 0 || beats(magnitude - 1))
            && (magnitude == self.infinity() || beats(magnitude + 1))
    }

    fn bytes(self, elements: &[u32]) -> Vec<u8> {
        elements
            .iter()
            .flat_map(|bits| match self.dtype.size() {
                2 => (*bits as u16).to_ne_bytes().to_vec(),
                _ => bits.to_ne_bytes().to_vec(),
            })
            .collect()
    }

    fn elements(self, bytes: &[u8]) -> Vec<u32> {
        match self.dtype.size() {
            2 => bytes.as_chunks().0.iter().map(|x| u16::from_ne_bytes(*x).into()).collect(),
            _ => bytes.as_chunks().0.iter().map(|x| u32::from_ne_bytes(*x)).collect(),
        }
    }
}

/// 2^`exponent`, of a normal f64.
fn power(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

fn hash(words: &[u64]) -> u64 {
    words.iter().fold(0u64, |hash, word| {
        let mut x = hash.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ word;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    })
}

/// w of rule 26.4.
fn word(seed: u32, lane: usize) -> u32 {
    let x = seed.wrapping_add(lane as u32);
    let x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    let x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}

/// a of rule 26.5.
fn shift(e: i32) -> i32 {
    match e {
        61.. => 64,
        ..-60 => -100,
        _ => 0,
    }
}

/// Steps 3 and 5 of rule 26.5, in so many rows.
fn add_up(x: &mut [f32], rows: usize) {
    let columns = x.len() / rows;
    for d in (0..rows.ilog2()).map(|bit| columns << bit) {
        for i in (0..x.len()).filter(|i| (i / d).is_multiple_of(2)) {
            (x[i], x[i + d]) = (x[i] + x[i + d], x[i] - x[i + d]);
        }
    }
}

/// Steps 3 to 5.
fn rotate(x: &mut [f32]) {
    let (row, turn) = (x.len() / 8, x.len() / COLUMN);
    add_up(x, 8);
    x.chunks_mut(row).enumerate().for_each(|(r, row)| row.rotate_left(r * turn));
    add_up(x, 16);
}

/// Steps 5 to 3, and 4 to the right.
fn rotate_back(x: &mut [f32]) {
    let (row, turn) = (x.len() / 8, x.len() / COLUMN);
    add_up(x, 16);
    x.chunks_mut(row).enumerate().for_each(|(r, row)| row.rotate_right(r * turn));
    add_up(x, 8);
}

impl Case {
    fn choose(input: &mut Unstructured) -> Result<Self> {
        let format = *input.choose(&FORMATS)?;
        let reduction = *input.choose(&REDUCTIONS)?;
        let ranks = input.int_in_range(1..=128)?;
        let count = input.int_in_range(1..=(4 * MOST_LANES).min(MOST_ELEMENTS / ranks))?;
        let (call, first) = (input.arbitrary()?, u64::from(input.arbitrary::<u32>()?));
        // All elements are taken from a few that the input holds: with any bits, or with any except
        // NaN and infinities.
        let (is_finite, seed) = (input.ratio(7, 8)?, input.arbitrary::<u64>()?);
        let palette: [u32; 8] = input.arbitrary()?;
        let element = |rank: usize, index: usize| {
            let bits = palette[hash(&[seed ^ rank as u64, index as u64]) as usize % 8];
            let bits = bits & (format.sign() | (format.sign() - 1));
            let half = format.infinity() & !(format.infinity() << 1);
            let too_large = is_finite && format.magnitude(bits) >= format.infinity();
            if too_large { bits & !half } else { bits }
        };
        let elements = |rank| (0..count).map(|index| element(rank, index)).collect();
        Ok(Self { format, reduction, call, first, ranks: (0..ranks).map(elements).collect() })
    }

    fn in_8_bits(&self) -> bool {
        let n = self.ranks.len();
        matches!(self.reduction, Reduction::SUM8 | Reduction::AVG8) && n <= 32
    }

    /// N, where the result is an average.
    fn divisor(&self) -> f64 {
        let is_average = matches!(self.reduction, Reduction::AVG16 | Reduction::AVG8);
        if is_average { self.ranks.len() as f64 } else { 1.0 }
    }

    fn codec(&self, rank: usize) -> Codec {
        let codec = Codec::reduction(self.format.dtype, self.reduction, self.ranks.len(), 1 << 20);
        codec.expect("offered").at(self.call, self.first, rank as u32)
    }

    fn lanes(&self) -> usize {
        let fields = if self.in_8_bits() { 4 } else { 2 };
        self.ranks[0].len().div_ceil(fields).next_multiple_of(BLOCK)
    }

    /// The chunk goes to all ranks and back.
    fn reduce(&self) {
        if self.lanes() > MOST_LANES {
            return;
        }
        let exponents: Vec<_> = (0..self.ranks.len()).map(|rank| self.exponent(rank)).collect();
        let exponent = *exponents.iter().max().expect("a rank");
        let mut result = vec![0x55; self.ranks[0].len() * self.format.dtype.size()];
        if exponent::is_marker(exponent) {
            self.codec(0).fill_skipped(exponent, &mut result);
            let nan = self.format.infinity() | 1 << (self.format.mantissa - 1);
            let all = if exponent == exponent::NON_FINITE { nan } else { 0 };
            assert!(self.format.elements(&result).iter().all(|bits| *bits == all));
            return;
        }
        let mut sums = vec![0u32; self.lanes()];
        for rank in 0..self.ranks.len() {
            let lanes = self.encode(rank, exponent);
            let fields = self.fields(rank, exponent);
            assert_eq!(lanes, self.packed(&fields), "lanes of rank {rank}");
            sums.iter_mut().zip(&lanes).for_each(|(sum, lane)| *sum = sum.wrapping_add(*lane));
        }
        let payload: Vec<u8> = sums.iter().flat_map(|lane| lane.to_be_bytes()).collect();
        self.codec(0).decode(&payload, exponent, &mut result);
        let found = self.format.elements(&result);
        for (index, exact) in
            self.decoded(&sums, exponent).into_iter().enumerate().take(found.len())
        {
            let bits = found[index];
            assert!(self.format.is_nearest(bits, exact), "element {index}: {bits:08x}, {exact:e}");
            let truth: f64 = self.ranks.iter().map(|x| self.format.value(x[index])).sum();
            let error = (exact - truth / self.divisor()).abs();
            let bound = self.bound(exponent);
            assert!(error <= bound, "element {index}: {exact:e} for {truth:e}, bound {bound:e}");
        }
    }

    /// A rank's exponent, checked.
    fn exponent(&self, rank: usize) -> i32 {
        let found = self.codec(rank).exponent(&self.format.bytes(&self.ranks[rank]));
        let magnitudes = self.ranks[rank].iter().map(|bits| self.format.magnitude(*bits));
        let largest = magnitudes.max().expect("an element");
        let expected = if largest == 0 {
            exponent::ZERO
        } else if largest >= self.format.infinity() {
            exponent::NON_FINITE
        } else {
            let value = self.format.value(largest);
            let own = (-149..128).rfind(|e| power(*e) <= value).expect("some power");
            if self.in_8_bits() { self.sixteenths(rank, own) } else { own }
        };
        assert_eq!(found, expected, "exponent of rank {rank}");
        found
    }

    /// Rule 26.6.
    fn sixteenths(&self, rank: usize, own: i32) -> i32 {
        let y = self.rotated(rank, own).into_iter().fold(0f32, |y, x| y.max(x.abs()));
        let limit = |e: i32| power(e >> 4) * (1.0 + f64::from(e & 15) / 16.0);
        let y = f64::from(y) * power(shift(own));
        (-2400..2400).rfind(|e| limit(*e) <= y).expect("some sixteenth")
    }

    /// Rule 26.5.
    fn rotated(&self, rank: usize, e: i32) -> Vec<f32> {
        let (lanes, signs) = (self.lanes(), hash(&[self.call]) as u32);
        let mut x = vec![0f32; 4 * lanes];
        for (i, bits) in self.ranks[rank].iter().enumerate() {
            let value = (self.format.value(*bits) * power(-shift(e))) as f32;
            let flips = word(signs, i % lanes) >> (31 - i / lanes) & 1 == 1;
            x[i] = if flips { -value } else { value };
        }
        rotate(&mut x);
        x
    }

    /// u of rules 26.7 and 26.8.
    fn random(&self, i: usize) -> u32 {
        let (lanes, dither) = (self.lanes(), hash(&[self.call, self.first]) as u32);
        let (field, lane) = (i / lanes, i % lanes);
        word(dither, lane) >> (8 * field) & 0xFF
    }

    /// The fields of all elements, in order: rules 26.2 and 26.7.
    fn fields(&self, rank: usize, exponent: i32) -> Vec<u32> {
        let n = self.ranks.len() as u32;
        if self.in_8_bits() {
            let (e, z, steps) = self.scale(exponent);
            let f = (f64::from((128.0 * steps / z) as f32) * power(shift(e) - e)) as f32;
            let middle = (128.0 * steps) as f32;
            let field = |(i, x): (usize, f32)| {
                let t = (self.random(i) + 256 * rank as u32 / n) % 256;
                let q = (x * f).clamp(-middle, middle).round_ties_even();
                ((q + middle) as u32 + t) / 256
            };
            return self.rotated(rank, e).into_iter().enumerate().map(field).collect();
        }
        let (p, m) = self.places(exponent);
        let field = |i| {
            let x = self.ranks[rank].get(i).map_or(0.0, |bits| self.format.value(*bits));
            ((x * power(p)).round_ties_even().clamp(-m, m) + m) as u32
        };
        (0..2 * self.lanes()).map(field).collect()
    }

    /// e, z and K of rule 26.7.
    fn scale(&self, exponent: i32) -> (i32, f64, f64) {
        let e = exponent.div_euclid(16);
        let z = 1.0 + f64::from(exponent - 16 * e + 1) / 16.0;
        (e, z, if self.ranks.len() == 1 { 127.0 } else { (255 / self.ranks.len()) as f64 })
    }

    /// p and m of rule 26.2.
    fn places(&self, exponent: i32) -> (i32, f64) {
        let growth = self.ranks.len().next_power_of_two().ilog2() as i32;
        (14 - exponent - growth, power(15 - growth) - 1.0)
    }

    /// Rule 26.1.
    fn packed(&self, fields: &[u32]) -> Vec<u32> {
        let lanes = self.lanes();
        let bits = 32 * lanes / fields.len();
        let lane = |lane| {
            let fields = fields.iter().skip(lane).step_by(lanes).enumerate();
            fields.map(|(j, field)| field << (j * bits)).sum()
        };
        (0..lanes).map(lane).collect()
    }

    /// The elements before they are rounded to their type: rules 26.3 and 26.8.
    fn decoded(&self, sums: &[u32], exponent: i32) -> Vec<f64> {
        let n = self.ranks.len() as i64;
        let lanes = sums.len();
        if !self.in_8_bits() {
            let (p, m) = self.places(exponent);
            let factor = power(-p) / self.divisor();
            let value = |i| {
                let field = i64::from(sums[i % lanes] >> (16 * (i / lanes)) & 0xFFFF);
                (field - n * m as i64) as f64 * factor
            };
            return (0..2 * lanes).map(value).collect();
        }
        let (e, z, steps) = self.scale(exponent);
        let middle = 128 * n * (steps as i64 - 1) + (0..n).map(|rank| 256 * rank / n).sum::<i64>();
        let rotated = |i| {
            let field = i64::from(sums[i % lanes] >> (8 * (i / lanes)) & 0xFF);
            (256 * field - i64::from(self.random(i)) * n % 256 - middle) as f32
        };
        let mut x: Vec<f32> = (0..4 * lanes).map(rotated).collect();
        rotate_back(&mut x);
        let factor = (z / (steps * self.divisor() * 128.0 * 128.0)) as f32;
        let signs = hash(&[self.call]) as u32;
        let element = |(i, x): (usize, f32)| {
            let flips = word(signs, i % lanes) >> (31 - i / lanes) & 1 == 1;
            f64::from((if flips { -x } else { x }) * factor) * power(e)
        };
        x.into_iter().enumerate().map(element).collect()
    }

    /// The error bound of an element before it is rounded to its type, as documented by the
    /// numerics.
    fn bound(&self, exponent: i32) -> f64 {
        let n = self.ranks.len() as f64;
        if self.in_8_bits() {
            let (e, z, steps) = self.scale(exponent);
            return 1.01 * n * power(e) * z / steps / self.divisor();
        }
        let largest = self.ranks.iter().flatten().map(|bits| self.format.value(*bits).abs());
        let growth = self.ranks.len().next_power_of_two().ilog2() as i32;
        n * power(growth - 15) * largest.fold(0.0, f64::max) / self.divisor() * (1.0 + 1e-12)
    }

    fn encode(&self, rank: usize, exponent: i32) -> Vec<u32> {
        let mut payload = vec![0xAA; 4 * self.lanes()];
        let elements = self.format.bytes(&self.ranks[rank]);
        let sum = self.codec(rank).encode(&elements, exponent, &mut payload);
        let lanes: Vec<_> =
            payload.as_chunks().0.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect();
        assert_eq!(sum, lanes.iter().fold(0u32, |sum, lane| sum.wrapping_add(*lane)), "lane sum");
        lanes
    }

    /// Any exponent, as from a wrong prediction or a foreign packet, and any lanes back.
    fn survive(&self, input: &mut Unstructured) {
        let exponent = input.arbitrary().unwrap_or_default();
        if self.lanes() > MOST_LANES || exponent::is_marker(exponent) {
            return;
        }
        let lanes = self.encode(0, exponent);
        let most = if self.in_8_bits() { 255 / self.ranks.len() as u32 } else { 0xFFFF };
        let bits = if self.in_8_bits() { 8 } else { 16 };
        let fields = (0..32).step_by(bits).flat_map(|at| lanes.iter().map(move |lane| lane >> at));
        let largest = fields.map(|field| field & ((1 << bits) - 1)).max();
        assert!(largest <= Some(most), "a field of {largest:?} would carry");
        let mut payload = vec![0; 4 * self.lanes()];
        let filled = input.len().min(payload.len());
        input.fill_buffer(&mut payload[..filled]).expect("as much as there is");
        let mut result = vec![0; self.ranks[0].len() * self.format.dtype.size()];
        self.codec(0).decode(&payload, exponent, &mut result);
    }
}
