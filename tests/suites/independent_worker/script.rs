//! The calls that all ranks make, with the expected results in closed form.

use half::{bf16, f16};
use switchml_worker::{Communicator, DType, Element, Precision, ReduceOp, Reduction};

/// Lanes of a data chunk at an MTU of 1500. An element of a small sum takes 3 lanes.
const CHUNK: usize = 352;
/// The same by RoCEv2 (rule 37.6).
const ROCE_CHUNK: usize = 224;
const MOST_SMALL: usize = 1024;

/// All calls.
#[derive(Clone)]
pub struct Script {
    pub ranks: usize,
    pub steps: Vec<Step>,
    /// The module in Python of a worker that can make these calls.
    pub module: &'static str,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Step {
    number: usize,
    ranks: usize,
    /// Lanes of a data chunk.
    chunk: usize,
    what: What,
    dtype: DType,
    count: usize,
    values: Values,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Reduce(Reduction),
    Broadcast(usize),
    Barrier,
}

/// The values of elements. All are small whole numbers times a power of two, so that sums are
/// exact.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Values {
    Plain,
    /// Magnitudes in one chunk differ by up to 2^30.
    Mixed,
    /// Each rank has larger values than the previous one: ranks predict different exponents.
    ByRank,
    /// Each call has smaller values than the previous one: a prediction from the last call is
    /// wrong.
    Falling,
    /// Most chunks are zeros.
    Sparse,
    /// An element of rank 1 is a NaN.
    Nan,
    /// Sums are halfway between two numbers of the type.
    Ties,
    /// Sums of the smallest numbers of the type.
    Tiny,
    /// Sums are too large for the type.
    Huge,
    /// Large values of single ranks, next to the smallest of the type.
    Apart,
}

/// Operators, types, numbers of elements, and kinds of values; some repeat, so that there is a
/// history.
const EXACT: &[(ReduceOp, DType, usize, Values)] = &[
    (ReduceOp::Sum, DType::I32, 1, Values::Plain),
    (ReduceOp::Sum, DType::I32, 20_000, Values::Plain),
    (ReduceOp::Sum, DType::I64, 1, Values::Plain),
    (ReduceOp::Sum, DType::I64, 3000, Values::Plain),
    (ReduceOp::Max, DType::I32, 700, Values::Plain),
    (ReduceOp::Min, DType::I32, 5, Values::Plain),
    (ReduceOp::Sum, DType::F32, 5, Values::Mixed),
    (ReduceOp::Sum, DType::F32, 1024, Values::Mixed),
    (ReduceOp::Sum, DType::F32, 1024, Values::Plain),
    (ReduceOp::Sum, DType::F32, 1024, Values::ByRank),
    (ReduceOp::Sum, DType::F32, 1024, Values::ByRank),
    (ReduceOp::Sum, DType::F32, 900, Values::Falling),
    (ReduceOp::Sum, DType::F32, 900, Values::Falling),
    (ReduceOp::Sum, DType::F32, 900, Values::Falling),
    (ReduceOp::Avg, DType::F32, 900, Values::Plain),
    (ReduceOp::Sum, DType::F32, 1000, Values::Sparse),
    (ReduceOp::Sum, DType::F32, 1000, Values::Nan),
    (ReduceOp::Sum, DType::F32, 1000, Values::Plain),
    (ReduceOp::Sum, DType::F32, 1025, Values::ByRank),
    (ReduceOp::Sum, DType::F32, 1025, Values::Plain),
    (ReduceOp::Sum, DType::F32, 25_000, Values::Plain),
    (ReduceOp::Sum, DType::F32, 25_000, Values::Sparse),
    (ReduceOp::Sum, DType::F32, 25_000, Values::Nan),
    (ReduceOp::Avg, DType::F32, 2000, Values::Plain),
    (ReduceOp::Max, DType::F32, 700, Values::Nan),
    (ReduceOp::Min, DType::F32, 400, Values::Nan),
    (ReduceOp::Sum, DType::F16, 300, Values::Plain),
    (ReduceOp::Sum, DType::F16, 3000, Values::Plain),
    (ReduceOp::Max, DType::F16, 700, Values::Nan),
    (ReduceOp::Min, DType::F16, 700, Values::Plain),
    (ReduceOp::Sum, DType::Bf16, 300, Values::Plain),
    (ReduceOp::Avg, DType::Bf16, 3000, Values::Plain),
    (ReduceOp::Max, DType::Bf16, 700, Values::Plain),
    (ReduceOp::Min, DType::Bf16, 700, Values::Nan),
    (ReduceOp::Sum, DType::F32, 0, Values::Plain),
    (ReduceOp::Sum, DType::F32, 200, Values::Ties),
    (ReduceOp::Sum, DType::F32, 2000, Values::Ties),
    (ReduceOp::Sum, DType::F16, 200, Values::Ties),
    (ReduceOp::Sum, DType::F16, 2000, Values::Ties),
    (ReduceOp::Sum, DType::Bf16, 200, Values::Ties),
    (ReduceOp::Sum, DType::F32, 200, Values::Tiny),
    (ReduceOp::Sum, DType::F16, 2000, Values::Tiny),
    (ReduceOp::Sum, DType::F32, 200, Values::Huge),
    (ReduceOp::Sum, DType::F32, 2000, Values::Huge),
    (ReduceOp::Sum, DType::Bf16, 200, Values::Huge),
    (ReduceOp::Sum, DType::F32, 300, Values::Apart),
    (ReduceOp::Avg, DType::F32, 300, Values::Apart),
    (ReduceOp::Sum, DType::Bf16, 300, Values::Apart),
    (ReduceOp::Avg, DType::F16, 300, Values::Nan),
    (ReduceOp::Sum, DType::F32, 300, Values::Plain),
];

/// Calls in 16 bits, whose sums are exact, too, and in 8 bits, where a chunk has 1408 elements.
const PACKED: &[(Reduction, DType, usize, Values)] = &[
    (Reduction::SUM16, DType::F32, 1, Values::Plain),
    (Reduction::SUM16, DType::F32, 1025, Values::Plain),
    (Reduction::SUM16, DType::F32, 1025, Values::ByRank),
    (Reduction::AVG16, DType::F32, 5000, Values::Plain),
    (Reduction::SUM16, DType::F32, 2000, Values::Sparse),
    (Reduction::SUM16, DType::F32, 2000, Values::Nan),
    (Reduction::SUM16, DType::F16, 705, Values::Plain),
    (Reduction::AVG16, DType::Bf16, 64, Values::Plain),
    (Reduction::SUM16, DType::F32, 20_000, Values::Plain),
    (Reduction::SUM8, DType::F32, 1, Values::Plain),
    (Reduction::SUM8, DType::F32, 128, Values::Plain),
    (Reduction::SUM8, DType::F32, 129, Values::Plain),
    (Reduction::SUM8, DType::F32, 3000, Values::Plain),
    (Reduction::SUM8, DType::F32, 3000, Values::ByRank),
    (Reduction::SUM8, DType::F32, 3000, Values::ByRank),
    (Reduction::SUM8, DType::F32, 3001, Values::Mixed),
    (Reduction::AVG8, DType::F32, 1408, Values::Falling),
    (Reduction::AVG8, DType::F32, 1408, Values::Falling),
    (Reduction::SUM8, DType::F32, 9000, Values::Sparse),
    (Reduction::AVG8, DType::F32, 2000, Values::Nan),
    (Reduction::SUM8, DType::F32, 300, Values::Tiny),
    (Reduction::AVG8, DType::F32, 300, Values::Huge),
    (Reduction::SUM8, DType::F16, 500, Values::Plain),
    (Reduction::AVG8, DType::F16, 500, Values::Tiny),
    (Reduction::SUM8, DType::Bf16, 1409, Values::Plain),
    (Reduction::AVG8, DType::Bf16, 500, Values::Tiny),
    (Reduction::SUM8, DType::F32, 20_000, Values::Plain),
];

impl Script {
    /// The sums of f32, which take the specification's core alone.
    pub fn core(ranks: usize) -> Self {
        let Self { mut steps, .. } = Self::new(ranks);
        steps.retain(|step| step.what == What::Reduce(Reduction::SUM) && step.dtype == DType::F32);
        for (number, step) in steps.iter_mut().enumerate() {
            step.number = number;
        }
        Self { ranks, steps, module: "independent_worker" }
    }

    /// The same calls by ranks of which some use RoCEv2, in chunks of at most so many lanes.
    pub fn by_rocev2(mut self, most: usize) -> Self {
        self.steps.iter_mut().for_each(|step| step.chunk = ROCE_CHUNK.min(most));
        Self { module: "independent_worker.options.rocev2", ..self }
    }

    /// Calls of all kinds, by three ranks or more.
    pub fn new(ranks: usize) -> Self {
        let barrier = (What::Barrier, DType::I32, 1, Values::Plain);
        let broadcast = |root, dtype, count| (What::Broadcast(root), dtype, count, Values::Plain);
        let exact = EXACT
            .iter()
            .map(|&(op, dtype, count, values)| (What::Reduce(op.into()), dtype, count, values));
        let packed = PACKED
            .iter()
            .map(|&(op, dtype, count, values)| (What::Reduce(op), dtype, count, values));
        let others = [
            barrier,
            broadcast(0, DType::F32, 1000),
            // The last lane is not full.
            broadcast(1, DType::F16, 777),
            broadcast(2, DType::I32, 20_000),
            barrier,
            (What::Reduce(Reduction::SUM), DType::I32, 3, Values::Plain),
        ];
        let step = |(number, (what, dtype, count, values))| Step {
            number,
            ranks,
            chunk: CHUNK,
            what,
            dtype,
            count,
            values,
        };
        let steps = exact.chain(packed).chain(others).enumerate().map(step).collect();
        Self { ranks, steps, module: "independent_worker.options" }
    }

    /// Panics at the first wrong element of `rank`.
    pub fn check(&self, rank: usize, results: &[Vec<u8>]) {
        assert_eq!(results.len(), self.steps.len(), "calls that rank {rank} has made");
        for (step, result) in self.steps.iter().zip(results) {
            let expected = step.expected();
            assert_eq!(result.len(), expected.len(), "bytes of rank {rank} in {step:?}");
            if step.is_coarse() {
                step.check_coarse(rank, result);
                continue;
            }
            let size = step.dtype.size();
            for (index, (found, expected)) in
                result.chunks(size).zip(expected.chunks(size)).enumerate()
            {
                assert_eq!(found, expected, "element {index} of rank {rank} in {step:?}");
            }
        }
    }
}

impl Step {
    /// The call as a line for `independent_worker`.
    pub fn line(&self, rank: usize) -> String {
        let hex: String = self.elements(rank).iter().map(|byte| format!("{byte:02x}")).collect();
        match self.what {
            What::Reduce(op) => format!("all_reduce {op} {} {hex}", self.dtype),
            What::Broadcast(root) => format!("broadcast {root} {} {hex}", self.dtype),
            What::Barrier => "barrier".to_owned(),
        }
    }

    /// Makes the call through the worker library. Returns the resulting bytes.
    pub fn run(&self, communicator: &Communicator, rank: usize) -> Vec<u8> {
        match self.dtype {
            DType::F32 => self.run_as::<f32>(communicator, rank),
            DType::F16 => self.run_as::<f16>(communicator, rank),
            DType::Bf16 => self.run_as::<bf16>(communicator, rank),
            DType::I32 => self.run_as::<i32>(communicator, rank),
            DType::I64 => self.run_as::<i64>(communicator, rank),
            DType::F64 => self.run_as::<f64>(communicator, rank),
        }
    }

    fn run_as<T: Element>(&self, communicator: &Communicator, rank: usize) -> Vec<u8> {
        let bytes = self.elements(rank);
        let mut tensor: Vec<T> =
            bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
        let outcome = match self.what {
            What::Reduce(op) => communicator.all_reduce(&mut tensor, op),
            What::Broadcast(root) => communicator.broadcast(&mut tensor, root as u32),
            What::Barrier => communicator.barrier(),
        };
        outcome.unwrap_or_else(|error| panic!("rank {rank} in {self:?}: {error}"));
        bytemuck::cast_slice(&tensor).to_vec()
    }

    /// The bytes of a rank's elements.
    fn elements(&self, rank: usize) -> Vec<u8> {
        if self.what == What::Barrier {
            return Vec::new();
        }
        (0..self.count).flat_map(|index| self.bytes(self.value(rank, index))).collect()
    }

    fn expected(&self) -> Vec<u8> {
        match self.what {
            What::Barrier => Vec::new(),
            What::Broadcast(root) => self.elements(root),
            What::Reduce(op) => {
                (0..self.count).flat_map(|index| self.bytes(self.reduced(op, index))).collect()
            }
        }
    }

    /// The value that a rank contributes; f64 holds it and all sums.
    fn value(&self, rank: usize, index: usize) -> f64 {
        if self.dtype == DType::I32 {
            let word = (index as u32)
                .wrapping_mul(2_654_435_761)
                .wrapping_add((rank * 977 + self.number) as u32);
            return f64::from(word as i32);
        }
        if self.dtype == DType::I64 {
            // Sums of all ranks have 53 bits.
            let word = (index as u64)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .wrapping_add((rank * 977 + self.number) as u64);
            return (word as i64 >> 16) as f64;
        }
        // A number that 16 bits hold, or that f32 holds in each kind of values.
        let most = if self.dtype == DType::F32 { 999 } else { 127 };
        let small =
            ((index * 37 + rank * 101 + self.number * 7) % (2 * most + 1)) as f64 - most as f64;
        match self.values {
            Values::Plain => small,
            Values::Mixed => small * 2f64.powi(6 * (index % 4) as i32 - 20),
            Values::ByRank => small * 2f64.powi(rank as i32),
            Values::Falling => small * 2f64.powi(-3 * self.number as i32),
            Values::Sparse if index % 600 == 3 => small,
            Values::Sparse => 0.0,
            Values::Nan if rank == 1 && index == 5 => f64::NAN,
            Values::Nan => small,
            Values::Ties if rank == 0 => self.odd_above() + 2.0 * (index % 50) as f64 - 1.0,
            Values::Ties => f64::from(u8::from(rank == 1)),
            Values::Tiny => small * self.smallest(),
            Values::Apart if index % 7 == rank => self.largest() / 2.0,
            Values::Apart if index % 7 == 5 => small * self.smallest(),
            Values::Apart => 0.0,
            // Half of the largest number, so that a rounding error does not make it infinite.
            Values::Huge if self.is_coarse() => self.largest() / 2.0,
            Values::Huge => self.largest(),
        }
    }

    /// The first odd number that the type cannot hold, because from 2^n on it holds only even
    /// numbers.
    fn odd_above(&self) -> f64 {
        match self.dtype {
            DType::F16 => 2049.0,
            DType::Bf16 => 257.0,
            _ => 16_777_217.0,
        }
    }

    fn smallest(&self) -> f64 {
        match self.dtype {
            DType::F16 => 2f64.powi(-24),
            DType::Bf16 => 2f64.powi(-133),
            _ => 2f64.powi(-149),
        }
    }

    fn largest(&self) -> f64 {
        match self.dtype {
            DType::F16 => 65_504.0,
            DType::Bf16 => bf16::MAX.to_f64(),
            _ => f64::from(f32::MAX),
        }
    }

    /// Whether results may be off by more than a rounding.
    fn is_coarse(&self) -> bool {
        matches!(self.what, What::Reduce(Reduction { precision: Precision::Bits8, .. }))
    }

    /// Checks results in 8 bits: their root mean square error is at most N * B / K / sqrt(128),
    /// with B at most 10 sqrt(128) times the largest element (except once in 10^8 chunks). NaN and
    /// zeros are exact.
    fn check_coarse(&self, rank: usize, result: &[u8]) {
        let What::Reduce(reduction) = self.what else { return };
        let largest = (0..self.ranks)
            .flat_map(|rank| (0..self.count).map(move |index| self.value(rank, index).abs()))
            .fold(0.0, f64::max);
        let levels = (255 / self.ranks) as f64;
        let divisor = if reduction.op == ReduceOp::Avg { self.ranks as f64 } else { 1.0 };
        // Plus half of the smallest number.
        let bound = 10.0 * self.ranks as f64 * largest / levels / divisor + self.smallest() / 2.0;
        let mut squares = 0.0;
        for (index, bits) in result.chunks(self.dtype.size()).enumerate() {
            let (found, expected) = (self.real(bits), self.reduced(reduction, index));
            assert_eq!(
                found.is_nan(),
                expected.is_nan(),
                "element {index} of rank {rank}, {self:?}"
            );
            if !expected.is_nan() {
                squares += (found - expected).powi(2) / self.count as f64;
            }
        }
        assert!(squares.sqrt() <= bound, "{} of rank {rank} in {self:?}: {bound}", squares.sqrt());
    }

    fn reduced(&self, Reduction { op, precision }: Reduction, index: usize) -> f64 {
        let values = (0..self.ranks).map(|rank| self.value(rank, index));
        let is_nan = self.values == Values::Nan;
        let is_small = precision == Precision::Exact && self.count <= MOST_SMALL;
        let chunk = match precision {
            Precision::Exact => self.chunk,
            Precision::Bits16 => 2 * self.chunk,
            Precision::Bits8 => 4 * self.chunk,
        };
        match op {
            ReduceOp::Max | ReduceOp::Min if is_nan && index == 5 => f64::NAN,
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            // One NaN makes its whole chunk NaN, except in a small call.
            _ if is_nan && (index == 5 || (!is_small && index < chunk)) => f64::NAN,
            ReduceOp::Avg => values.sum::<f64>() / self.ranks as f64,
            // Whole sums of 0 are +0.0, as the first addend makes them.
            _ => values.fold(0.0, |sum, value| sum + value),
        }
    }

    fn real(&self, bytes: &[u8]) -> f64 {
        match self.dtype {
            DType::F32 => f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)),
            DType::F16 => bytemuck::pod_read_unaligned::<f16>(bytes).into(),
            DType::Bf16 => bytemuck::pod_read_unaligned::<bf16>(bytes).into(),
            DType::I32 => f64::from(bytemuck::pod_read_unaligned::<i32>(bytes)),
            DType::I64 => bytemuck::pod_read_unaligned::<i64>(bytes) as f64,
            DType::F64 => bytemuck::pod_read_unaligned(bytes),
        }
    }

    /// The bytes of a value in the call's type; an i32 wraps.
    fn bytes(&self, value: f64) -> Vec<u8> {
        match self.dtype {
            DType::F32 => (value as f32).to_ne_bytes().to_vec(),
            DType::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
            DType::Bf16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
            DType::I32 => (value as i64 as i32).to_ne_bytes().to_vec(),
            DType::I64 => (value as i64).to_ne_bytes().to_vec(),
            DType::F64 => value.to_ne_bytes().to_vec(),
        }
    }
}
