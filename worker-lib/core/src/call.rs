//! Calls, and how a rank submits them.

use std::fmt;

use crate::buffer::Buffer;
use crate::hash;
use crate::numerics::{Codec, DType, NumericsError, Precision, Reduction};

/// The kind of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every rank gets the reduction over all ranks.
    AllReduce(Reduction),
    /// Every rank gets the root's elements (rule 21.5).
    Broadcast {
        /// The rank whose elements count.
        root: u32,
    },
    /// Nobody goes on before everybody is here (rule 21.6).
    Barrier,
    /// Every rank gets the reduction over all ranks of its part of the elements
    /// ([`Call::part_start`]).
    ReduceScatter(Reduction),
    /// Every rank gets each rank's part of the elements.
    AllGather,
}

/// A call, equal on all ranks except the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The kind of the call.
    pub kind: Kind,
    /// Type of the elements.
    pub dtype: DType,
    /// Number of elements.
    pub count: usize,
}

impl Call {
    /// How the call's elements travel, among `ranks` ranks.
    pub fn codec(&self, ranks: u32) -> Result<Codec, NumericsError> {
        match self.kind {
            Kind::AllReduce(op) | Kind::ReduceScatter(op) => {
                Codec::reduction(self.dtype, op, ranks as usize, self.count)
            }
            Kind::Broadcast { .. } | Kind::Barrier | Kind::AllGather => Ok(Codec::bytes()),
        }
    }

    /// Rule 17.8: the first element of a rank's part, if the elements are split into `ranks` parts,
    /// as equal as possible; for rank `ranks`, the end of the last part.
    pub const fn part_start(&self, rank: u32, ranks: u32) -> usize {
        (self.count as u128 * rank as u128 / ranks as u128) as usize
    }

    /// Hash of the call and its number in the session, the same on all ranks that make the same
    /// call.
    pub fn fingerprint(&self, number: u64) -> u32 {
        let (kind, detail) = match self.kind {
            Kind::AllReduce(reduction) => (0, number_of(reduction)),
            Kind::Broadcast { root } => (1, u64::from(root)),
            Kind::Barrier => (2, 0),
            Kind::ReduceScatter(reduction) => (3, number_of(reduction)),
            Kind::AllGather => (4, 0),
        };
        hash::fold([number, kind << 32 | detail, self.dtype as u64, self.count as u64]) as u32
    }

    /// Rule 16.3: the fingerprint of a part, which has some of the call's elements, from `first`
    /// on. Ranks that cut the call in other places have other fingerprints.
    pub fn fingerprint_of_part(&self, number: u64, first: u64, elements: usize) -> u32 {
        let whole = self.fingerprint(number);
        match elements == self.count {
            true => whole,
            false => hash::fold([whole.into(), first, elements as u64]) as u32,
        }
    }
}

/// The protocol's number of a reduction.
fn number_of(Reduction { op, precision }: Reduction) -> u64 {
    let precision = match precision {
        Precision::Exact => 0,
        Precision::Bits16 => 4,
        Precision::Bits8 => 6,
    };
    precision + op as u64
}

/// As people write it (rule 22.12): `all_reduce(sum, f32, 1000)`, `broadcast(from 2, f16, 77)`,
/// `barrier()`, `reduce_scatter(avg, f32, 1000)`, `all_gather(bf16, 400)`.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, dtype, count } = self;
        match kind {
            Kind::AllReduce(op) => write!(f, "all_reduce({op}, {dtype}, {count})"),
            Kind::Broadcast { root } => write!(f, "broadcast(from {root}, {dtype}, {count})"),
            Kind::Barrier => f.write_str("barrier()"),
            Kind::ReduceScatter(op) => write!(f, "reduce_scatter({op}, {dtype}, {count})"),
            Kind::AllGather => write!(f, "all_gather({dtype}, {count})"),
        }
    }
}

/// A collective to run.
pub struct Submission {
    /// The call's number in the session, from 0. The submissions of a data path have increasing
    /// numbers.
    pub number: u64,
    /// The call, equal on all ranks.
    pub call: Call,
    /// How its elements travel, by [`Call::codec`].
    pub codec: Codec,
    /// Elements of the call before the buffer's first one.
    pub first: u64,
    /// The elements; some of the call's where other data paths have the rest.
    pub buffer: Box<dyn Buffer>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The examples of docs/spec.
    /// Rule 16.3, with the hash of rule 4.1 computed elsewhere.
    #[test]
    fn a_part_has_a_fingerprint_of_its_own() {
        let sum = Call { kind: Kind::AllReduce(Reduction::SUM), dtype: DType::F32, count: 1000 };
        assert_eq!(sum.fingerprint_of_part(0, 0, 1000), 0x513B_1A32, "the whole call");
        assert_eq!(sum.fingerprint_of_part(0, 352, 648), 0x2837_81E6);
        let others = [(0, 352), (0, 648), (352, 352), (648, 352)];
        for (first, elements) in others {
            assert_ne!(sum.fingerprint_of_part(0, first, elements), 0x2837_81E6);
        }
    }

    #[test]
    fn fingerprints_are_those_of_the_specification() {
        let sum = Call { kind: Kind::AllReduce(Reduction::SUM), dtype: DType::F32, count: 1000 };
        let barrier = Call { kind: Kind::Barrier, dtype: DType::I32, count: 1 };
        let broadcast = Call { kind: Kind::Broadcast { root: 2 }, dtype: DType::F16, count: 77 };
        let found = [sum.fingerprint(0), barrier.fingerprint(1), broadcast.fingerprint(7)];
        assert_eq!(found, [0x513B_1A32, 0xEA50_409A, 0xD60C_7E2D]);
    }

    /// The numbers of rule 4.2.
    #[test]
    fn operations_have_the_numbers_of_the_specification() {
        assert_eq!(Reduction::ALL.map(number_of), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn any_difference_changes_the_fingerprint() {
        let kinds = [
            Kind::AllReduce(Reduction::SUM),
            Kind::AllReduce(Reduction::MAX),
            Kind::Broadcast { root: 0 },
            Kind::Broadcast { root: 1 },
            Kind::Barrier,
        ];
        let mut seen = BTreeMap::new();
        for kind in kinds {
            for dtype in DType::ALL {
                for count in [0, 1, 2, 1 << 20] {
                    for number in [0, 1, 2, u64::MAX] {
                        let call = Call { kind, dtype, count };
                        assert_eq!(call.fingerprint(number), call.fingerprint(number));
                        if let Some(other) = seen.insert(call.fingerprint(number), (call, number)) {
                            panic!("{call:?}, number {number} has the fingerprint of {other:?}");
                        }
                    }
                }
            }
        }
    }
}
