//! Lends the elements of a call to the drivers, in parts: the one place where a borrow may cross
//! threads.

#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::numerics::{DType, Element};
use switchml_worker_core::shards;
use switchml_worker_core::stats::CallStats;

use crate::handle::Whole;
use crate::prefetch::prefetch;

/// A contiguous part of a call's elements. No two parts have bytes in common.
struct Part {
    shard: usize,
    start: *mut u8,
    len: usize,
    /// Memory of the same length for what the elements lose, if the caller wants that.
    residual: Option<*mut u8>,
    /// The owner of the elements, unless a caller owns them and waits until all parts are gone.
    /// Dropped before `whole`.
    owner: Option<Arc<dyn Any + Send + Sync>>,
    whole: Arc<Whole>,
}

// SAFETY: the pointers are the only ones in use to their bytes while this value exists (see
// `parts`), and bytes have no thread.
unsafe impl Send for Part {}

impl Buffer for Part {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `parts` had the exclusive borrow that `start` and `len` came from, of elements
        // that outlive this value.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    fn residual_mut(&mut self) -> Option<(&[u8], &mut [u8])> {
        let start = self.residual?;
        // SAFETY: as above, and for as many bytes, none of which are the elements'.
        let residual = unsafe { std::slice::from_raw_parts_mut(start, self.len) };
        Some((self.bytes(), residual))
    }

    fn prefetch(&self, bytes: Range<usize>) {
        prefetch(&self.bytes()[bytes]);
    }

    fn finish(self: Box<Self>, stats: CallStats) {
        let Self { shard, owner, whole, .. } = *self;
        drop(owner);
        // The last part lets the waiting caller continue. The pointers are not used after that.
        whole.finish_part(shard, &stats);
    }
}

/// Waits until all parts are gone, also when the lender unwinds.
struct Borrow(Receiver<CallStats>);

impl Borrow {
    /// Returns what the last part sends in `finish`, once all parts are finished; or `None` once
    /// all parts, and the sender with them, are gone. Leaked parts keep this thread waiting for
    /// ever, which is sound.
    fn end(&self) -> Option<CallStats> {
        self.0.recv().ok()
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        // After a first `end` there is no sender left, or there will be none as soon as the last
        // part's thread continues.
        self.end();
    }
}

/// Lends `bytes`, in these parts, to the buffers that `submit` takes. Returns once all
/// buffers are gone: the call's statistics if all were finished and none dropped.
///
/// # Panics
/// When `bytes` has fewer bytes than the lengths add up to.
pub(crate) fn lend(
    bytes: &mut [u8],
    cut: &[shards::Part],
    whole: impl FnOnce(mpsc::Sender<CallStats>) -> Whole,
    submit: impl FnOnce(Vec<Box<dyn Buffer>>),
) -> Option<CallStats> {
    let (answer, answers) = mpsc::channel();
    let whole = Arc::new(whole(answer));
    // Created before the parts: they must be gone when this function returns or unwinds.
    let borrow = Borrow(answers);
    submit(parts(bytes, None, cut, None, whole));
    borrow.end()
}

/// A tensor that a call keeps while it is in flight: a vector, or elements that belong to another
/// language.
///
/// # Safety
///
/// [`Tensor::bytes`] is whole initialised elements of [`Tensor::dtype`], always the same memory,
/// also after the tensor has moved. It lives as long as the tensor, and nobody else reads or writes
/// it until the call is over. The same holds for [`Tensor::residual`], which is separate memory.
pub unsafe trait Tensor: Send + Sync + 'static {
    /// Type of the elements.
    fn dtype(&self) -> DType;
    /// The elements, in native byte order.
    fn bytes(&mut self) -> *mut [u8];
    /// Memory of the same length as the elements, to which an all-reduce writes what they lose in
    /// fewer bits ([`Codec::residual`](switchml_worker_core::numerics::Codec::residual)), if the
    /// caller wants that.
    fn residual(&mut self) -> Option<*mut [u8]> {
        None
    }
}

// SAFETY: a vector's elements stay where they are when it moves, and its owner has exclusive
// access.
unsafe impl<T: Element> Tensor for Vec<T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn bytes(&mut self) -> *mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}

/// Gives `tensor`, in these parts, to buffers. The returned [`Arc`] is the only one left
/// once all buffers are gone; the tensor can be taken out of it then.
///
/// # Panics
/// When the tensor has fewer bytes than the lengths add up to, or the residual has another length.
pub(crate) fn give<T: Tensor>(
    mut tensor: T,
    cut: &[shards::Part],
    whole: Whole,
) -> (Vec<Box<dyn Buffer>>, Arc<T>) {
    let whole = Arc::new(whole);
    let (bytes, residual) = (tensor.bytes(), tensor.residual());
    let tensor = Arc::new(tensor);
    let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&tensor) as _;
    // SAFETY: the elements and the residual live as long as `owner`, which each part keeps, and
    // nobody else accesses them, not even through the `Arc` before it is the only one left.
    let (bytes, residual) = unsafe { (&mut *bytes, residual.map(|residual| &mut *residual)) };
    let buffers = parts(bytes, residual, cut, Some(owner), whole);
    (buffers, tensor)
}

/// Cuts `bytes` and `residual` into buffers. The caller ensures that the bytes
/// outlive the buffers, and that nobody else accesses them meanwhile.
fn parts(
    mut bytes: &mut [u8],
    mut residual: Option<&mut [u8]>,
    cut: &[shards::Part],
    owner: Option<Arc<dyn Any + Send + Sync>>,
    whole: Arc<Whole>,
) -> Vec<Box<dyn Buffer>> {
    assert!(residual.as_ref().is_none_or(|residual| residual.len() == bytes.len()));
    let mut buffers: Vec<Box<dyn Buffer>> = Vec::with_capacity(cut.len());
    for &shards::Part { shard, len } in cut {
        let (part, rest) = bytes.split_at_mut(len);
        bytes = rest;
        let (start, len) = (part.as_mut_ptr(), part.len());
        let residual = residual.as_mut().map(|all| {
            let (part, rest) = std::mem::take(all).split_at_mut(len);
            *all = rest;
            part.as_mut_ptr()
        });
        let (owner, whole) = (owner.clone(), Arc::clone(&whole));
        buffers.push(Box::new(Part { shard, start, len, residual, owner, whole }));
    }
    buffers
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::driver::Shared;
    use switchml_worker_core::stats::Recorder;

    /// Makes a [`Whole`] of `parts` parts.
    fn whole(parts: usize) -> impl FnOnce(mpsc::Sender<CallStats>) -> Whole {
        let shared = Shared::new(Vec::new(), "", 0, Duration::ZERO);
        move |answer| Whole::new(0, parts, Arc::new(shared), answer)
    }

    /// Parts of these lengths, each for a shard of its own.
    fn cut(lengths: &[usize]) -> Vec<shards::Part> {
        let part = |(shard, len): (usize, &usize)| shards::Part { shard, len: *len };
        lengths.iter().enumerate().map(part).collect()
    }

    #[test]
    fn the_lender_waits_for_all_parts_and_sees_what_was_written() {
        let mut bytes = *b"lent out";
        let finished = lend(&mut bytes, &cut(&[4, 4]), whole(2), |buffers| {
            for (mut buffer, pause) in buffers.into_iter().zip([0, 20]) {
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(pause));
                    buffer.bytes_mut().make_ascii_uppercase();
                    let stats = Recorder::new(buffer.bytes().len()).finish();
                    buffer.finish(stats);
                });
            }
        });
        let finished = finished.map(|stats| (stats.calls, stats.bytes));
        assert_eq!((finished, &bytes), (Some((1, 8)), b"LENT OUT"));
    }

    #[test]
    fn dropped_tasks_end_the_borrow() {
        assert_eq!(lend(&mut [0], &cut(&[1]), whole(1), drop), None);
        let one_is_finished = |mut buffers: Vec<Box<dyn Buffer>>| {
            let kept = buffers.pop().unwrap();
            buffers.pop().unwrap().finish(Recorder::new(1).finish());
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                drop(kept);
            });
        };
        assert_eq!(lend(&mut [0; 2], &cut(&[1, 1]), whole(2), one_is_finished), None);
    }

    #[test]
    fn a_tensor_is_whole_again_when_its_tasks_are_gone() {
        let (answer, answers) = mpsc::channel();
        let (buffers, tensor) = give(vec![1i32, 2, 3], &cut(&[4, 8]), whole(2)(answer));
        for mut buffer in buffers {
            assert!(Arc::strong_count(&tensor) > 1);
            buffer.bytes_mut()[0] += 10;
            buffer.finish(Recorder::new(4).finish());
        }
        assert_eq!(answers.recv().map(|stats| stats.bytes), Ok(8));
        assert_eq!(Arc::into_inner(tensor), Some(vec![11, 12, 3]));
    }

    /// Elements and their residuals.
    struct Pair(Vec<i32>, Vec<i32>);

    // SAFETY: as of a vector.
    unsafe impl Tensor for Pair {
        fn dtype(&self) -> DType {
            DType::I32
        }

        fn bytes(&mut self) -> *mut [u8] {
            bytemuck::cast_slice_mut(&mut self.0)
        }

        fn residual(&mut self) -> Option<*mut [u8]> {
            Some(bytemuck::cast_slice_mut(&mut self.1))
        }
    }

    #[test]
    fn each_part_has_the_residual_of_its_elements() {
        let (answer, answers) = mpsc::channel();
        let pair = Pair(vec![1, 2, 3, 4], vec![0; 4]);
        let (buffers, pair) = give(pair, &cut(&[4, 8, 4]), whole(3)(answer));
        for mut buffer in buffers {
            let (elements, residual) = buffer.residual_mut().unwrap();
            residual.copy_from_slice(elements);
            buffer.bytes_mut().fill(0);
            buffer.finish(Recorder::new(4).finish());
        }
        assert!(answers.recv().is_ok());
        let Pair(elements, residual) = Arc::into_inner(pair).unwrap();
        assert_eq!((elements, residual), (vec![0; 4], vec![1, 2, 3, 4]));
    }
}
