"""What torch's profiler is told of calls in the network."""

import torch

from ._threads import NAME


class Span:
    """A call in the profiler's trace, from here until its end, whichever thread that is on.

    Shapes are those of torch's own event around it, such as `c10d::allreduce_`: torch takes none
    for events that may end on another thread.
    """

    def __init__(self, name: str) -> None:
        self._end: torch.futures.Future[None] | None = None
        if not torch.autograd._profiler_enabled():
            return
        self._end = torch.futures.Future()
        with torch.autograd.profiler.record_function(f"{NAME}:{name}") as record:
            # This is the only way in torch for Python to end an event on another thread.
            record._call_end_callbacks_on_future(self._end)

    def end(self) -> None:
        """The call is over."""
        if self._end is not None:
            self._end.set_result(None)
