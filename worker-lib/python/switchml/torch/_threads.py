"""Threads that wait for calls, and threads that run what users attach to futures.

They are never the same ones.
"""

import atexit
import os
import queue
import threading
import time
from collections import deque
from typing import Callable

import torch

from .._error import Error

NAME = "switchml"

# What is told of an exception.
Failed = Callable[[Exception], None]


class _Lender:
    """Threads that wait for calls. All groups borrow them, because most have no call in flight."""

    # Idle threads that stay. A group with calls in flight takes two.
    IDLE = 4

    def __init__(self) -> None:
        self._begin()
        # A thread that returns from a wait needs the interpreter.
        atexit.register(self._close)
        # A fork has none of these threads.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # What idle threads wait at, with the thread.
        self._idle: list[tuple[queue.SimpleQueue[Callable[[], None] | None], threading.Thread]]
        self._idle = []
        self._closed = False

    def lend(self, run: Callable[[], None]) -> None:
        """Runs it on another thread."""
        with self._lock:
            if self._idle:
                self._idle.pop()[0].put(run)
                return
        given: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        given.put(run)
        threading.Thread(
            target=self._run, args=(given,), name=f"{NAME}-calls", daemon=True
        ).start()

    def _run(self, given: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
        while (run := given.get()) is not None:
            run()
            # Otherwise the name would keep a group until there is something else to do.
            del run
            with self._lock:
                if self._closed or len(self._idle) >= self.IDLE:
                    return
                self._idle.append((given, threading.current_thread()))

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for given, thread in idle:
            given.put(None)
            thread.join()


_LENDER = _Lender()


class _Watch:
    """Looks after functions that were left to those who wait for them, and who may never do so.

    A thread looks now and then while there are such functions. To wake it up for each would take
    longer than a small call. It looks less often while all who wait do so soon: each look takes the
    interpreter from the thread that computes.
    """

    # Seconds that a function is left alone, which is also the shortest time between looks; and the
    # longest.
    PAUSE = 0.001
    LONGEST_PAUSE = 0.008
    # Looks that find nothing before the thread ends.
    LOOKS = 50

    def __init__(self) -> None:
        self._begin()
        # A fork has not got the thread.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._new: set[CallThread] = set()
        self._is_there = False

    def add(self, thread: "CallThread") -> None:
        """A function was left with this thread."""
        if thread in self._new and self._is_there:
            return
        with self._lock:
            self._new.add(thread)
            if self._is_there:
                return
            self._is_there = True
        _LENDER.lend(self._run)

    def _run(self) -> None:
        idle, pause = 0, self.PAUSE
        while True:
            time.sleep(pause)
            with self._lock:
                threads, self._new = self._new, set()
            idle = 0 if threads else idle + 1
            pause = min(2 * pause, self.LONGEST_PAUSE)
            while threads:
                thread = threads.pop()
                if thread.take_over(time.monotonic() - self.PAUSE):
                    pause = self.PAUSE
                if thread.has_deferred():
                    with self._lock:
                        self._new.add(thread)
                # Otherwise the name would keep a group.
                del thread
            with self._lock:
                if idle >= self.LOOKS and not self._new:
                    self._is_there = False
                    return


class Deferred:
    """A function that runs on the thread that waits for it first."""

    def __init__(self, thread: "CallThread", run: Callable[[], object], failed: Failed) -> None:
        self._thread, self.run, self.failed = thread, run, failed
        self.since = time.monotonic()

    def run_here(self) -> None:
        """Runs it on the caller's thread, unless another one does."""
        self._thread.run_deferred(self)

    def hand_over(self) -> None:
        """Does not leave it to those who wait for it, nor what was left to them before."""
        self._thread.take_over(self.since)


class CallThread:
    """Runs functions in order on another thread. An exception goes to the function given with each.

    There is a thread as long as there are functions.
    """

    def __init__(self) -> None:
        self._todo: deque[tuple[Callable[[], object], Failed]] = deque()
        # Left to those who wait for them, in the order of calls.
        self._deferred: deque[Deferred] = deque()
        self._closed = False
        # Functions that were given and have not returned.
        self._open = 0
        # Whether a thread runs them, and what the end of that tells who waits for it.
        self._has_thread = False
        self._ended: threading.Event | None = None
        self._lock = threading.Lock()

    def add(self, run: Callable[[], object], failed: Failed) -> None:
        with self._lock:
            self._open_one()
            self._put(run, failed)

    def run_now(self, run: Callable[[], object], failed: Failed) -> None:
        """Runs it on the caller's thread, before all that waits for this one.

        If that is interrupted, as by Ctrl-C, this thread does it.
        """
        with self._lock:
            self._open_one()
        self._run_here(run, failed)

    def defer(self, run: Callable[[], object], failed: Failed) -> Deferred:
        """Leaves it to a thread that waits for it soon. If there is none, this one does it."""
        deferred = Deferred(self, run, failed)
        with self._lock:
            self._open_one()
            self._deferred.append(deferred)
        _WATCH.add(self)
        return deferred

    def run_deferred(self, deferred: Deferred) -> None:
        """Runs it on the caller's thread, unless it has been taken over."""
        with self._lock:
            if deferred not in self._deferred:
                return
            self._deferred.remove(deferred)
        self._run_here(deferred.run, deferred.failed)

    def take_over(self, until: float) -> bool:
        """Runs what was left to others by that time. Returns whether there was something."""
        with self._lock:
            before = len(self._deferred)
            while self._deferred and self._deferred[0].since <= until:
                deferred = self._deferred.popleft()
                self._put(deferred.run, deferred.failed)
            return len(self._deferred) < before

    def has_deferred(self) -> bool:
        """Whether something is left to those who wait for it."""
        return bool(self._deferred)

    def is_idle(self) -> bool:
        """Whether all that was given before is done."""
        return self._open == 0

    def is_idle_within(self, seconds: float) -> bool:
        """The same, once it is so or that time has passed."""
        # Only programs that end ask. A condition, as of `threading`, would slow down every call.
        limit = time.monotonic() + seconds
        while self._open > 0 and time.monotonic() < limit:
            time.sleep(0.001)
        return self._open == 0

    def close(self) -> None:
        """Returns when all is done that was given before."""
        self.take_over(time.monotonic())
        with self._lock:
            self._closed = True
            if not self._has_thread:
                return
            ended = self._ended = self._ended or threading.Event()
        ended.wait()

    def _run_here(self, run: Callable[[], object], failed: Failed) -> None:
        try:
            run()
        except Exception as error:
            failed(error)
        except BaseException:
            with self._lock:
                self._put(run, failed)
            raise
        self._over()

    def _open_one(self) -> None:
        if self._closed:
            raise Error("the process group is destroyed")
        self._open += 1

    def _put(self, run: Callable[[], object], failed: Failed) -> None:
        self._todo.append((run, failed))
        if not self._has_thread:
            self._has_thread = True
            _LENDER.lend(self._run)

    def _over(self) -> None:
        with self._lock:
            self._open -= 1

    def _next(self) -> tuple[Callable[[], object], Failed] | None:
        with self._lock:
            if self._todo:
                return self._todo.popleft()
            self._has_thread = False
            if self._ended is not None:
                self._ended.set()
            return None

    def _run(self) -> None:
        while (item := self._next()) is not None:
            run, failed = item
            try:
                # In this mode the function may write to any tensor.
                with torch.inference_mode():
                    run()
            except Exception as error:
                failed(error)
            self._over()
            # Otherwise the names would keep tensors until the next item comes.
            del item, run, failed


_WATCH = _Watch()


class CallbackThreads:
    """Runs callbacks in the order of calls: each starts when the one before it is over.

    A callback may wait for what a later one does, which nobody can know beforehand. So when one
    takes longer than PATIENCE, another thread goes on with the next.
    """

    # Seconds that a callback may take before the next one starts. Few take this long, and those
    # that wait for a call wait longer anyway.
    PATIENCE = 0.001
    # Idle threads: one takes the next callback, and one watches how long that takes.
    IDLE = 2

    def __init__(self) -> None:
        self._begin()
        # A thread that returns from a wait needs the interpreter. Groups are closed before this
        # runs, because they are registered later; closing them ends the waits of callbacks.
        atexit.register(self._close)
        # A fork has none of these threads.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._todo: deque[Callable[[], None]] = deque()
        # The callback that started last, while it runs, and when it started.
        self._current: Callable[[], None] | None = None
        self._started = 0.0
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def add(self, run: Callable[[], None]) -> None:
        """Runs it soon, on another thread."""
        with self._changed:
            self._todo.append(run)
            if not self._threads:
                self._start_thread()
            self._changed.notify()

    def run_here(self) -> bool:
        """Whether this is in a callback."""
        return threading.current_thread() in self._threads

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{NAME}-callbacks", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        while (run := self._next()) is not None:
            try:
                run()
            finally:
                with self._changed:
                    if self._current is run:
                        self._current = None
            # Otherwise the name would keep tensors until the next callback comes.
            del run

    def _next(self) -> Callable[[], None] | None:
        """The next callback, once it may start; None for a thread that is not needed any more."""
        with self._changed:
            self._idle += 1
            while not self._todo or (patience := self._patience()) > 0:
                if not self._todo and (self._closed or self._idle > self.IDLE):
                    self._idle -= 1
                    self._threads.discard(threading.current_thread())
                    return None
                self._changed.wait(patience if self._todo else None)
            self._idle -= 1
            self._current, self._started = self._todo.popleft(), time.monotonic()
            # A thread must watch how long the callback takes.
            if self._idle == 0:
                self._start_thread()
            elif self._todo:
                self._changed.notify()
            return self._current

    def _patience(self) -> float:
        """For how many seconds the next callback may not start yet."""
        return 0.0 if self._current is None else self._started + self.PATIENCE - time.monotonic()

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()


# One object serves all groups: a callback of one group may wait for a call of another.
CALLBACKS = CallbackThreads()
