//! Numbers: elements to 32-bit lanes and back.
//!
//! An aggregator adds 32-bit integers; tensors hold floats. A [`Codec`] turns each chunk of
//! elements into lanes, and the lanes of the result into elements. Pure functions, one call per
//! chunk. Sections 17 to 21 of `docs/spec` are the specification.
//!
//! # What a result is
//!
//! Every result is **bit-identical on every rank, whatever the order of arrival** (rule 17.1): what
//! is summed are integers.
//!
//! Below, N is the number of ranks, L = ceil(log2 N), and M is the largest magnitude in the
//! element's chunk (one packet's worth of consecutive elements) over all ranks. E is M's binary
//! exponent: 2^E <= M < 2^(E+1).
//!
//! | | lanes per element | `Sum`, `Avg` | `Max`, `Min` |
//! | --- | --- | --- | --- |
//! | f32, f16, bf16, up to 1024 elements ([`SMALL_COUNT`]) | sums 3, else 1 | fixed point, step 2^(E+3L-94) | exact |
//! | f32, f16, bf16, more elements | 1 | fixed point, step 2^(E+L-30) | exact |
//! | f64 | 2 | fixed point, step 2^(E+2L-62) | refused |
//! | i32 | 1 | `Sum` exact, wrapping; `Avg` refused | exact |
//! | i64 | 3 | `Sum` exact, wrapping; `Avg` refused | refused |
//!
//! **In 16 bits** ([`Precision::Bits16`]), `Sum` and `Avg` of f32, f16 and bf16 pack two elements
//! into a lane, and have the step 2^(E+L-14): as `Sum` and `Avg`, with half the packets, but
//! |result - true sum| <= N * 2^(L-15) * M, and half a unit. An average is off by 2^-14 M for 2
//! ranks, 2^-13 M for 4, 2^-9 M for 64, 2^-8 M for 128, beyond which there are no calls in 16 bits;
//! a chunk has twice as many elements. Elements below half a step count as 0.
//!
//! The step is a power of two, so that small whole numbers, and averages of them, stay exact. To
//! use every level that a field has room for, floor((2^16 - 1) / N), would gain nothing for 2, 4,
//! 8, … ranks, and a factor of 2 at most for others.
//!
//! **In 8 bits** ([`Precision::Bits8`]), they pack four elements into a lane. A chunk's elements
//! are rotated: multiplied by random signs, then, in columns of 128, by a Hadamard matrix. So
//! every element is spread over 128, and a large one does not take its neighbours' bits. B is a
//! limit of all rotated elements: their largest magnitude over all ranks, or a sixteenth more.
//! Each rank's share of a field has K = floor(255 / N) steps from -B to B (127 for a single rank),
//! and is rounded with a dither that is taken off the sum again. So
//!
//! > |result - true sum| <= N * B / K, and 1.01 times that with the roundings on the way.
//!
//! Over a column of 128 the errors' root of the sum of squares is within that bound, too: their
//! root mean square is at most N * B / K / sqrt(128).
//!
//! The error is zero on average, over calls, to 2^-9 of a step. Its variance is N * (2B / K)^2 /
//! 12 / 128 for ranks whose elements have nothing in common, that of one rank where all hold the
//! same, and N times the first at worst. B is at most 136 M, as the magnitudes of a column add up
//! to 128 M at most. Signs are random, so B is below 8.5 * sqrt(128) * M in every chunk but one in
//! 10^8 (Hoeffding's inequality, for 3072 elements of 32 ranks); for elements of like magnitudes it
//! is about half of that. To clip the largest rotated elements would leave normal ones finer steps
//! (squared errors 0.8 times with 4 ranks, 0.6 with 8), but take a part of every large element that
//! stands alone, in each call. Random numbers are a hash of the call's number in the session, and
//! of the element's place: in its chunk for the signs, in the call for the dither, which the rank
//! shifts. So they are the same in every run. Results of zeros are not zero, unless the whole chunk
//! is. Among more than 32 ranks K would be below 8: calls in 8 bits travel in 16
//! ([`Codec::precision`]).
//!
//! **f32, f16, bf16 of up to 1024 elements, `Sum` and `Avg`.** The number of elements is the whole
//! call's. The result is the **true sum, or average, rounded once**, ties to even: within half a
//! unit in the last place, cancellation or not, and so at least as near as a sum in f64. Where all
//! elements of a chunk, over all ranks, are multiples of the step for sure, three lanes an element
//! hold that: for up to 64 ranks all of f16, each f32 of at least 2^-53 M, and each bf16 of at
//! least 2^-69 M; for 1024 ranks 2^-41 M and 2^-57 M. Elements of other chunks travel in the **wide
//! form** ([`Codec::wide`]), in 10 to 14 lanes an f32, which hold all of the type. They come one
//! round trip later.
//!
//! A negative average that is rounded to zero gives -0.0.
//!
//! **f32, f16, bf16 of more elements, `Sum`.** Each rank's element is rounded once to a multiple of
//! the step (nearest, ties to even); the sum of those is exact; it is rounded once to the element's
//! type. So for each element
//!
//! > |result - true sum| <= N * 2^(L-31) * M, plus half a unit in the last place of the result.
//!
//! The first part is 2^-29 M for 2 ranks, 2^-27 M for 4, 2^-25 M for 8, 2^-23 M for 16, 2^-19 M for
//! 64, 2^-11 M for 1024 (2^-24 is one rounding of an f32). It is zero when all elements of the
//! chunk are multiples of the step, such as integers below 2^(31-L), and for single elements not
//! much smaller than M: those of at least 2^(L-7) M in f32, 2^(L-20) M in f16, 2^(L-23) M in bf16.
//! Elements that are far smaller than M keep this *absolute* precision, not their relative one.
//!
//! **f64, `Sum`.** The same with |result - true sum| <= N * 2^(2L-63) * M (1.5 times that for more
//! than 32 ranks), plus half a unit in the last place. Each rank contributes 63-2L bits and a sign:
//! all 53 bits of elements near M up to 32 ranks, 51 bits up to 64, 43 bits for 1024.
//!
//! `cargo run --release -p switchml-worker-core --example precision` measures what that is for
//! some distributions (`docs/research/benchmarks.md`).
//!
//! **`Avg`** of these and of f64 is the same integer sum. f32, f16, bf16: times the f64 nearest to
//! step/N, in f64, and then rounded to the type; so an average that the type can hold comes out
//! exactly, among up to 128 ranks if it has the 24 bits of an f32. f64: the sum rounded to f64,
//! then divided by N (one more rounding, and yet another when the average is subnormal).
//!
//! **Special values.** In the `Sum` and `Avg` of up to 1024 f32, f16 or bf16, infinities and NaN
//! stay where they are: an element's result is infinite if it is on some rank, and NaN if it is
//! that on some rank, or infinities of both signs meet. (Their chunks take the wide form.) In
//! others, of more elements, of f64, or in fewer bits, an infinity or NaN on any rank makes its
//! **whole chunk NaN** on every rank; such a chunk is not sent. A sum beyond the type's largest
//! number is infinite. A chunk of zeros on all ranks is not sent, and gives +0.0, as does any sum
//! of zeros of whatever sign. Subnormal numbers count like all others. `Max` and `Min` take -0.0 to
//! be less than +0.0, and give the canonical NaN when any rank has a NaN.
//!
//! **Refused**, with an error when the call is made: `Max` and `Min` of f64 and i64 (lanes are
//! compared one by one, and these span several); `Avg` of i32 and i64 (it would lose the
//! remainder); fewer bits of all of these, and of any `Max` and `Min`.
//!
//! All this supposes the processor's default float environment, as all Rust code does: a process
//! that turns on flush-to-zero gives other bits for subnormal numbers.

mod by_float;
mod bytes;
mod codec;
mod dithered;
mod dtype;
pub mod exponent;
mod fixed;
mod format;
mod long;
mod packed;
mod plain;
mod random;
mod rotated;
mod rotation;
mod triple;
mod vectorised;
mod wide;

pub use codec::{Codec, SMALL_COUNT, lane_sum};
pub use dtype::{DType, Element, NumericsError, Precision, ReduceOp, Reduction};
