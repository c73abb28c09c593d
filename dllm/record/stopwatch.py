"""The time of a decode: by the clock of the device that does the work, without the pauses of observers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


def host_load() -> float:
    """Processes that had or wanted a core, per core, mean of the last minute; 0 where the system does not say."""
    return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2) if hasattr(os, "getloadavg") else 0.0


class Clock(Protocol):
    """``mark`` marks the moment at which all work launched so far is done, without waiting. ``between`` gives the
    seconds from one mark to a later one, and waits until that is reached."""

    def mark(self) -> Any: ...

    def between(self, begin: Any, end: Any) -> float: ...


class HostClock:
    """The clock of a CPU, whose operations are done when their calls return."""

    def mark(self) -> float:
        return time.perf_counter()

    def between(self, begin: float, end: float) -> float:
        return end - begin


class DeviceClock:
    """The clock of a GPU, which works asynchronously: a mark is an event in its queue of work.

    By the host's clock, the first to wait for the GPU would be charged with its work: an observer that reads a tensor
    would count the forward under way as its pause. An event in the queue comes after that forward, whoever waits.
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
    """Seconds since ``start`` without pauses, by the device's clock and by the CPU time of the decoding thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or HostClock()
        self.start()

    @staticmethod
    def on(device: torch.device) -> Stopwatch:
        """For work on this device."""
        return Stopwatch(HostClock() if device.type == "cpu" else DeviceClock(device))

    def start(self) -> None:
        """Begin anew."""
        self.began = self.lapped = self.clock.mark()
        self.pauses: list[tuple[Any, Any]] = []  # not yet added to ``waited``, since reading them may mean to wait
        self.waited = self.waited_cpu = 0.0
        self.began_cpu = time.thread_time()
        self.stopped: tuple[Any, float] | None = None  # the mark and CPU time at which a pause began; None outside one

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time inside is not counted, whether or not it waits for the device."""
        self.stopped = began, cpu = self.clock.mark(), time.thread_time()
        try:
            yield
        finally:
            self.lapped, self.stopped = self.clock.mark(), None
            self.pauses.append((began, self.lapped))
            self.waited_cpu += time.thread_time() - cpu

    def seconds(self) -> float:
        """So far; in a pause, when it began. Waits for the device."""
        self.waited += sum(self.clock.between(begin, end) for begin, end in self.pauses)
        self.pauses = []
        now = self.clock.mark() if self.stopped is None else self.stopped[0]
        return self.clock.between(self.began, now) - self.waited

    def cpu_seconds(self) -> float:
        """CPU time of this thread so far; in a pause, when it began."""
        now = time.thread_time() if self.stopped is None else self.stopped[1]
        return max(0.0, now - self.began_cpu - self.waited_cpu)  # another thread that goes on has a clock of its own

    def lap(self) -> float:
        """Seconds since the last pause ended, or since the start. Waits for the device."""
        return self.clock.between(self.lapped, self.clock.mark() if self.stopped is None else self.stopped[0])
