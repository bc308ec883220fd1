//! The elements of a call in the hands of the data path.

use std::ops::Range;

use crate::stats::CallStats;

/// A call's elements, or some of them, while the collective is in flight.
pub trait Buffer: Send {
    /// The elements, in native byte order.
    fn bytes(&self) -> &[u8];
    /// The same, to be overwritten with the result.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// The elements, and as many bytes for what they lose in fewer bits (`Codec::residual`), if
    /// that is wanted.
    fn residual_mut(&mut self) -> Option<(&[u8], &mut [u8])> {
        None
    }
    /// Has the processor fetch bytes that are soon to be read into its cache, where that can be
    /// asked for. Only a hint.
    fn prefetch(&self, _bytes: Range<usize>) {}
    /// Gives them back with the result, and tells what that took. A buffer that is dropped instead
    /// has failed.
    fn finish(self: Box<Self>, stats: CallStats);
}
