"""The time of a decode by the clock of its device, without the pauses in which observers work."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


def machine_load() -> float:
    """Running and waiting processes per core, mean of the last minute. 0 where the system does not count them."""
    try:
        return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
    except (AttributeError, OSError):  # Windows has no such function, and some containers no such number
        return 0.0


class Clock(Protocol):
    """mark: the moment at which all work asked for so far will be done. It does not wait for that moment. between: the
    seconds from one mark to a later one. It waits until the later one is reached."""

    def mark(self) -> Any: ...

    def between(self, begin: Any, end: Any) -> float: ...


class HostClock:
    """The clock of a CPU: its operations are done when their calls return."""

    def mark(self) -> float:
        return time.perf_counter()

    def between(self, begin: float, end: float) -> float:
        return end - begin


class DeviceClock:
    """The clock of a GPU, whose operations run after their calls return. Its marks are events in the GPU's queue.

    The host's clock would charge the GPU's work to the first that waits for it: an observer that reads a tensor would
    count the forward under way as its pause. An event comes after the forward, no matter who waits.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.Event:
        event = torch.Event(self.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.device))
        return event

    def between(self, begin: torch.Event, end: torch.Event) -> float:
        end.synchronize()
        return begin.elapsed_time(end) / 1000


class Stopwatch:
    """Seconds since ``start`` without pauses, and the CPU seconds of the thread that decodes."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or HostClock()
        self.start()

    @staticmethod
    def on(device: torch.device) -> Stopwatch:
        """A stopwatch for work on this device."""
        return Stopwatch(HostClock() if device.type == "cpu" else DeviceClock(device))

    def start(self) -> None:
        """Set to 0."""
        self.began = self.lapped = self.clock.mark()
        self.pauses: list[tuple[Any, Any]] = []  # not yet added to ``waited``, since asking for their length may wait
        self.waited = self.waited_cpu = 0.0
        self.began_cpu = time.thread_time()
        self.stopped: tuple[Any, float] | None = None  # during a pause, its begin on both clocks

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count what happens inside, whether or not it waits for the device."""
        self.stopped = began, cpu = self.clock.mark(), time.thread_time()
        try:
            yield
        finally:
            self.lapped, self.stopped = self.clock.mark(), None
            self.pauses.append((began, self.lapped))
            self.waited_cpu += time.thread_time() - cpu

    def seconds(self) -> float:
        """Seconds so far, or up to the pause under way. Waits for the device."""
        self.waited += sum(self.clock.between(begin, end) for begin, end in self.pauses)
        self.pauses = []
        now = self.clock.mark() if self.stopped is None else self.stopped[0]
        return self.clock.between(self.began, now) - self.waited

    def cpu_seconds(self) -> float:
        """CPU seconds of this thread so far, or up to the pause under way."""
        now = time.thread_time() if self.stopped is None else self.stopped[1]
        return max(0.0, now - self.began_cpu - self.waited_cpu)  # another thread may ask, whose clock differs

    def lap(self) -> float:
        """Seconds since the end of the last pause, or since the start. Waits for the device."""
        return self.clock.between(self.lapped, self.clock.mark() if self.stopped is None else self.stopped[0])
