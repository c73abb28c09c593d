"""The time of a decode: the same whoever watches, also where work ends after its call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from host_copies import Trap

from dllm import Decoder, load
from dllm.parts import Collector, DecisionCount, Forward, Model, Runtime, Stopwatch, Turn

FORWARD, LOOK = 1.0, 0.25  # seconds on the stand-in


@pytest.fixture(scope="module")
def model(tiny: Path) -> Model:
    return load(tiny)


@dataclass
class Device:
    """A GPU on paper: work is asked for in no time and done one after the other; only who waits has to wait. As a
    clock it is one whose marks stand in the queue of work."""

    host: float = 0.0
    busy: float = 0.0

    def work(self, seconds: float) -> None:
        self.busy = max(self.host, self.busy) + seconds

    def wait(self) -> None:
        self.host = max(self.host, self.busy)

    def mark(self) -> float:
        return max(self.host, self.busy)

    def between(self, begin: float, end: float) -> float:
        self.host = max(self.host, end)
        return end - begin


def decoder_of(model: Model, device: Device, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """Each forward takes ``FORWARD`` seconds after its call."""
    call = Forward.__call__

    def forward(self: Forward, *arguments: object) -> object:
        device.work(FORWARD)
        return call(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Forward, "__call__", forward)
    return Decoder(model, sampler="static", blocks="whole", eos="none", gen_length=4, batch_size=2)


def watchers(device: Device) -> dict[str, Callable[[Turn], None] | None]:
    def looks(turn: Turn) -> None:
        device.wait()
        device.host += LOOK

    def asks_later(turn: Turn) -> None:
        device.work(LOOK)

    def is_slow(turn: Turn) -> None:
        device.host += 20 * FORWARD

    return {"nobody": None, "looks": looks, "asks later": asks_later, "is slow": is_slow}


@pytest.mark.parametrize("trace", [False, True], ids=["", "trace"])
@pytest.mark.parametrize("watcher", ["nobody", "looks", "asks later", "is slow"])
def test_a_decode_takes_as_long_whoever_watches(
    model: Model, monkeypatch: pytest.MonkeyPatch, watcher: str, trace: bool
) -> None:
    device = Device()
    decoder = decoder_of(model, device, monkeypatch)
    requests = [decoder.request(prompt) for prompt in ("w1 w2", "w3", "w4")]
    for _, result in decoder.run(requests, trace, watchers(device)[watcher], Stopwatch(device)):
        device.wait()  # who takes the results
        device.host += 3.0
        assert result.latency == pytest.approx(FORWARD * result.nfe)
        if trace:
            assert [turn.seconds for turn in result.traced().turns] == pytest.approx([FORWARD] * result.nfe)


def test_a_pause_tells_the_time_at_which_it_began() -> None:
    device = Device()
    watch = Stopwatch(device)
    device.work(2.0)
    with watch.pause():
        device.host += 10.0
        assert watch.seconds() == watch.seconds() == watch.lap() == 2.0
    device.work(3.0)
    assert watch.seconds() == 5.0 and watch.lap() == 3.0
    watch.start()
    assert watch.seconds() == 0.0


def test_a_pause_counts_no_cpu_time_and_sleep_is_none() -> None:
    watch = Stopwatch.on(torch.device("cpu"))
    with watch.pause():
        spin(0.03)
    time.sleep(0.03)
    assert watch.seconds() > 0.029 and watch.cpu_seconds() < 0.02
    spin(0.03)
    assert 0.03 <= watch.cpu_seconds() <= watch.seconds()


def spin(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() < began + seconds:
        pass


def test_nothing_that_a_sweep_records_asks_the_device_until_a_row_ends(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    static = Runtime("static", 1)
    decoder = Decoder(model, blocks="whole", eos="none", gen_length=12, batch_size=2, runtime=static)
    requests = [decoder.request(prompt) for prompt in ("w1 w2", "w3")]
    collector, tally, trap, asked = Collector(requests, model.ids, str, (), trace=False), DecisionCount(), Trap(), []
    tolist = torch.Tensor.tolist  # reads memory, and dispatches nothing

    def noted(self: torch.Tensor) -> object:
        trap.note()
        return tolist(self)

    monkeypatch.setattr(torch.Tensor, "tolist", noted)
    for turn in decoder.runner.stream(requests, decoder.batch_size):
        trap.asked = []
        with trap:
            collector.observe(turn)
            tally(turn)
        asked.append((bool(turn.finished), set(trap.asked)))
    assert {names == set() for ended, names in asked if not ended} == {True}
    assert any(names for ended, names in asked if ended), "the trap notes who asks"
    assert sum(tally.columns(0)["commits"]) == 12
