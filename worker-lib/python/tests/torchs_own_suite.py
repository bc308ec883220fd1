"""Torch's own tests of `torch.distributed`, which it brings along, on four ranks of this host.

    torchs_own_suite.py BACKEND [TEST...]

All of them, or those that are named: for each a line `pass`, `fail` or `skip` and its name, then
what failed. BACKEND is gloo or switchml. Many of the tests are for backends that they know by name,
so ours has Gloo's here, and all that Gloo can do is asked of it.

Torch's own runner starts an interpreter for each rank of each test, which takes nearly all of the
time. Here ranks are forks of this process, which has imported torch.
"""

import os
import sys
import tempfile
import unittest

RANKS = 4

backend, chosen = sys.argv[1], sys.argv[2:]
folder = tempfile.mkdtemp()
# Torch's module reads them when it is imported.
os.environ.update(
    BACKEND="gloo", WORLD_SIZE=str(RANKS), TEMP_DIR=folder, INIT_METHOD=f"file://{folder}/store"
)
# Some tests destroy a group as soon as they have made it. A rank that Gloo still connects then
# finds the other gone. With this, ranks wait for each other after each group that they make.
os.environ["TORCH_DIST_INIT_BARRIER"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402


def with_gpus(count, allow_cpu=False):
    is_short = torch.cuda.device_count() < count and not allow_cpu
    return unittest.skipIf(is_short, f"needs {count} GPUs")


# Torch's own look in all processes, after these have met.
common_distributed.skip_if_lt_x_gpu = with_gpus
common_distributed.skip_if_no_gpu = with_gpus(RANKS)
from torch.testing._internal.distributed import distributed_test  # noqa: E402

# How long ranks wait for each other outside the tested calls: 10 s are too few on a busy machine.
distributed_test.Barrier.sync.__func__.__defaults__ = (None, 300)

BASES = (distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase)


def with_our_backend(function):
    def call(*arguments, backend=None, **options):
        arguments = ["switchml" if argument == "gloo" else argument for argument in arguments]
        if backend is not None:
            options["backend"] = "switchml" if backend == "gloo" else backend
        return function(*arguments, **options)

    return call


def be_gloo():
    """Has the tests take our backend for Gloo: when they name it, ask its name, or look for its
    calls in a profile."""
    for name in ("init_process_group", "new_group"):
        setattr(dist, name, with_our_backend(getattr(dist, name)))
    get_backend = dist.get_backend
    dist.get_backend = lambda *group: get_backend(*group).replace("switchml", "gloo")
    events = distributed_test.get_profiling_event

    def our_events(name, *rest):
        """Ours, or Gloo's for calls that it makes for this backend.

        The tests want all to be asynchronous, as Gloo's are. Ours are unless the maker of the call
        waits for it; profiles.py tests which.
        """
        ours = events(name.replace("gloo:", "switchml:"), *rest)
        for event in ours:
            event.is_async = True
        return ours or events(name, *rest)

    distributed_test.get_profiling_event = our_events


class Suite(*BASES):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def call_dist_op(self, *arguments, tensor_shapes=None, **options):
        """Without shapes: torch takes none for events of Python's that end on another thread."""
        if backend == "gloo":
            options["tensor_shapes"] = tensor_shapes
        return super().call_dist_op(*arguments, **options)


class Result(unittest.TestResult):
    def say(self, word, test, text=""):
        print(word, test.id().rsplit(".", 1)[1], text, sep=" ", flush=True)

    def addSuccess(self, test):
        self.say("pass", test)

    def addSkip(self, test, reason):
        self.say("skip", test, reason)

    def addFailure(self, test, error):
        self.say("fail", test, self._exc_info_to_string(error, test))

    addError = addFailure


if __name__ == "__main__":
    if backend == "switchml":
        import switchml.torch  # noqa: F401

        be_gloo()
    names = chosen or unittest.TestLoader().getTestCaseNames(Suite)
    unittest.TestSuite(Suite(name) for name in names).run(Result())
