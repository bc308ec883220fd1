"""A rank without torch: NumPy arrays, in place."""

import numpy as np

from switchml import Communicator, Error

with Communicator() as communicator:
    rank, ranks = communicator.rank, communicator.world_size
    for dtype in (np.float16, np.float32, np.float64, np.int32):
        for count in (0, 1, 100_003):
            array = (np.arange(count) % 20 + rank).astype(dtype)
            before = array.ctypes.data
            told = communicator.all_reduce(array)
            assert array.ctypes.data == before and told["bytes"] == array.nbytes
            assert (array == sum(np.arange(count) % 20 + other for other in range(ranks))).all(), (
                dtype
            )
    handles = [communicator.all_reduce_start(np.full(1000, i, np.float32), "max") for i in range(5)]
    assert all(handle.wait()["calls"] == 1 and handle.is_done() for handle in handles)
    array = np.full(5, rank, np.int32)
    communicator.broadcast(array, ranks - 1)
    assert (array == ranks - 1).all()
    # Only this rank's part is checked, in few bits, within the errors of all ranks.
    for precision, bound in (("exact", 0.0), (16, 2.0**-9), (8, 0.2)):
        values = np.arange(1000, dtype=np.float32) / 1000 + rank
        sums = np.arange(1000) / 1000 * ranks + sum(range(ranks))
        told = communicator.reduce_scatter(values, "sum", precision)
        part = slice(1000 * rank // ranks, 1000 * (rank + 1) // ranks)
        error = np.abs(values[part] - sums[part]).max()
        assert error <= ranks * (bound + 2.0**-20), (precision, error)
    communicator.barrier()
    for wrong, kind in (
        (np.zeros(3, np.int8), TypeError),
        (np.zeros((4, 4))[:, 1], ValueError),
        (b"1234", ValueError),
    ):
        try:
            communicator.all_reduce(wrong)
        except kind:
            pass
        else:
            raise SystemExit(f"{wrong!r} was taken")
    for op, precision, complaint in (
        ("product", "exact", 'unknown operator "product": sum, avg, max and min are allowed'),
        ("sum", 4, 'unknown precision "4": exact, 16 and 8 (bits an element) are allowed'),
    ):
        try:
            communicator.all_reduce(np.zeros(3), op, precision)
        except Error as error:
            assert str(error) == complaint, error
        else:
            raise SystemExit(f"{op} in {precision} was taken")
try:
    communicator.barrier()
except Error as error:
    assert str(error).startswith("the communicator is closed")
print("all arrays are right", flush=True)
