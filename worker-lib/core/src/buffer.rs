//! The elements of a call in the hands of the data path.

use std::ops::Range;

use crate::stats::CallStats;

/// A call's elements, or some of them, while the collective is in flight.
pub trait Buffer: Send {
    /// The elements, in native byte order.
    fn bytes(&self) -> &[u8];
    /// The elements as writable bytes, to be overwritten with the result.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// The elements, and a buffer of the same size for what they lose in fewer bits
    /// (`Codec::residual`), if the caller wants that.
    fn residual_mut(&mut self) -> Option<(&[u8], &mut [u8])> {
        None
    }
    /// Asks the processor, where possible, to fetch bytes into its cache that will soon be read.
    /// Only a hint.
    fn prefetch(&self, _bytes: Range<usize>) {}
    /// Gives the elements back with the result, and the call's statistics. A buffer that is dropped
    /// instead belongs to a failed call.
    fn finish(self: Box<Self>, stats: CallStats);
}
