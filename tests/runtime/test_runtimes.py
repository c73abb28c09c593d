"""runtime=compile and runtime=cudagraph: the same tokens, from a network that runs none of its Python again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import PROMPTS, Combination, forward_of, full, late, model, parts_of, requests
from recording import FakeGraph
from torch import Tensor

from dllm import Decoder, UserError, load, part
from dllm.parts import (
    Canvas,
    CompiledNetwork,
    Graphs,
    MoEConfig,
    Network,
    Parts,
    Places,
    RecordedForward,
    Request,
    Runtime,
    Sampling,
    Session,
    StaticMemory,
    denoise,
)

CACHES = ("none", "prefix", "dual", "window")
CUDA, CPU = torch.device("cuda"), torch.device("cpu")
FIXED = part("blocks", "fixed")


def answers(
    combination: Combination,
    network: Network | None = None,
    lag: int | None = 1,
    batch: Sequence[Request] | None = None,
    guidance: float = 0.0,
) -> dict[int, list[int]]:
    """Tokens by request, decoded in float32; rows finish at different turns."""
    net, parts = model(combination.model, torch.float32), parts_of(combination)
    forward = forward_of(net, parts, Sampling(tempered=parts.sampler.traits.tempered, guidance=guidance))
    forward = forward if network is None else replace(forward, network=network)
    canvas, out, sizes = Canvas.of(batch or requests(), net.config.pad_id or 0), {}, set()
    with torch.inference_mode():
        for turn in denoise(canvas, forward, parts, lag):
            sizes.add(len(turn.candidates.row_id))
            for row, name in enumerate(turn.candidates.row_id.tolist()):
                out[name] = turn.candidates.tokens[row].tolist()
    assert batch is not None or len(sizes) > 1, "rows should leave before the end"
    return out


def combinations() -> list[Combination]:
    return [
        Combination(sampler, "whole" if cache == "window" else "fixed", cache, eos, name)
        for cache in CACHES
        for name in ("tiny-llada", "tiny-dream")
        for sampler, eos in (("confidence", "fill_after_block"), ("static", "none"))
    ]


def graphs(name: str = "tiny-llada", most: int = 64) -> tuple[Graphs, list[str]]:
    log: list[str] = []
    return Graphs(model(name, torch.float32), lambda: FakeGraph(log), most), log


@pytest.mark.daily(5)
@pytest.mark.parametrize("combination", combinations(), ids=str)
def test_replays_decode_what_the_loop_decodes(combination: Combination) -> None:
    (network, log), lag = graphs(combination.model), late(combination.cache)
    expected = answers(combination, lag=lag)
    assert expected == answers(combination, lag=None)
    for _ in range(2):
        assert answers(combination, network, lag) == expected
    recorded, replayed = log.count("record"), log.count("replay")
    assert 2 * recorded < replayed
    assert answers(combination, network, lag) == expected
    assert log.count("record") <= recorded, "the third decode of the same shapes records nothing"


def test_a_part_of_a_batch_is_recorded_for_batches_of_its_size() -> None:
    """One row of two opens a block, then the third of three: the same shapes, on buffers that begin at one address."""
    combination, (network, _) = Combination("factor", "fixed", "dual"), graphs()
    for batch in 3 * [requests()[1:]] + 3 * [requests()]:
        assert answers(combination, network, 0, batch) == answers(combination, None, None, batch)
    assert any(name == "rows" for key in network.recorded for name, _ in key.shapes)


@pytest.mark.parametrize("name", ["dream_gqa", "llada_gqa_tied", "sdar_b4"])
def test_models_of_other_shapes(name: str) -> None:
    """Grouped heads, a tied head, block-causal attention (visible keys differ by query)."""
    combination = Combination("static", "whole", "none" if name == "sdar_b4" else "dual", model=name)
    network, log = graphs(name)
    expected = answers(combination)
    assert answers(combination, network) == expected
    assert "replay" in log


@pytest.mark.skipif(not full(), reason="16 s; runs under DLLM_LAWS=all")
def test_kernels_of_ours_are_recorded_too() -> None:
    combination = Combination("confidence", "fixed", "dual")
    network, log = graphs()
    expected = answers(combination, batch=requests()[1:])
    network.model.use_kernels(True)
    try:
        assert answers(combination, network, batch=requests()[1:]) == expected
    finally:
        network.model.use_kernels(False)
    launches = [call for one in network.recorded.values() for call in one.recording.calls if not call.results]
    assert any("Kernel._launch" in str(call.function) for call in launches)
    assert 2 * log.count("record") < log.count("replay")


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_guidance_is_recorded_with_both_halves(cache: str) -> None:
    network, log = graphs()
    combination = Combination("confidence", "fixed", cache)
    expected = answers(combination, guidance=1.5)
    assert answers(combination, network, guidance=1.5) == expected
    assert "replay" in log


def test_decodes_of_many_shapes_take_turns() -> None:
    """Other lengths and batches on the same ground; few recordings are kept, so some are made again."""
    network, log = graphs(most=3)
    combination = Combination("confidence", "fixed", "dual")
    batches = [requests()[:1], requests()[1:], [Request.answer(PROMPTS[0] * 3, 30, 60)], requests()[2:]]
    for batch in (*batches, *reversed(batches)):
        assert answers(combination, network, batch=batch) == answers(combination, batch=batch)
        assert len(network.recorded) <= 3
        assert len(network.pools.pools) == 1
    assert "release" in log
    held = {buffer.data_ptr() for pool in network.pools.pools for buffer in pool.flat}
    assert all(set(key.addresses) <= held for key in network.recorded), "nothing is recorded on memory given back"


def test_two_decodes_at_once_have_buffers_of_their_own() -> None:
    network, _ = graphs()
    combination, other = Combination("confidence", "fixed", "dual"), requests()[1:]
    net, parts = model(combination.model, torch.float32), parts_of(combination)
    forward = replace(forward_of(net, parts, Sampling()), network=network)
    running = [denoise(Canvas.of(batch, net.config.pad_id or 0), forward, parts, 1) for batch in (requests(), other)]
    out: list[dict[int, list[int]]] = [{}, {}]
    with torch.inference_mode():
        while running[0] is not None or running[1] is not None:
            for number, turns in enumerate(running):
                turn = None if turns is None else next(turns, None)
                if turn is None:
                    running[number] = None  # type: ignore[call-overload]
                    continue
                for row, name in enumerate(turn.candidates.row_id.tolist()):
                    out[number][name] = turn.candidates.tokens[row].tolist()
    assert out == [answers(combination, lag=0), answers(combination, lag=0, batch=other)]
    assert len(network.pools.pools) == 2
    answers(combination, network)
    assert len(network.pools.pools) == 1, "only one is kept while nobody uses it"


@pytest.mark.parametrize("stale", ["tokens", "columns", "visible"])
def test_the_stand_in_sees_what_was_not_copied(stale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = RecordedForward.__call__

    def forgetful(self: RecordedForward, inputs: dict[str, Tensor]) -> Tensor:
        return original(self, {name: value for name, value in inputs.items() if name != stale})

    combination, rolled = Combination("static", "fixed", "dual"), list(reversed(requests()))
    network, _ = graphs()
    assert answers(combination, network) == answers(combination)  # leaves its recordings, made for other rows
    monkeypatch.setattr(RecordedForward, "__call__", forgetful)
    assert answers(combination, network, batch=rolled) != answers(combination, batch=rolled)


def test_a_recording_must_not_ask() -> None:
    def asks() -> None:
        torch.ones(1).item()

    with pytest.raises(RuntimeError, match="not permitted while recording"):
        FakeGraph([]).record(asks)


def test_the_network_reads_nothing_of_a_session_but_its_access() -> None:
    """So nothing else can differ between two forwards that share a recording."""
    assert not issubclass(StaticMemory, Session)
    assert set(StaticMemory.__dataclass_fields__) == {"visible", "slots", "reach", "stores", "rows", "ranges"}
    # ``ranges`` says again what ``rows`` says; a recording leaves it out.


@pytest.mark.parametrize("cache", ["none", "prefix"] if full() else ["none"])
def test_compiled_layers_decode_what_the_loop_decodes(cache: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter: Any = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    combination = Combination("confidence", "fixed", cache, "none", "tiny-dream")
    network = CompiledNetwork(model("tiny-dream", torch.float32), counter)
    expected = answers(combination)
    assert answers(combination, network) == expected
    variants = counter.frame_count
    assert 1 <= variants <= 8, "one for all layers; a size that changes becomes a variable"
    assert answers(combination, network) == expected
    assert counter.frame_count == variants


@pytest.mark.skipif(not full(), reason="23 s; runs under DLLM_LAWS=all")
def test_compiled_by_inductor_the_answer_is_the_same() -> None:
    prompts: list[Any] = ['Sort the list:\n["Kai", "Emma", "Hugo"]', 'Copy the list:\n["Ann"]']
    options: dict[str, Any] = {"gen_length": 32, "batch_size": 2, "cache": "dual"}
    expected = [result.tokens for result in Decoder(load("mini-llada"), **options)(prompts)]
    decoder = Decoder(load("mini-llada", pack=False), runtime=Runtime("compile", 1), **options)
    assert [result.tokens for result in decoder(prompts)] == expected


def together(sampler: str) -> Parts:
    return Parts(part("sampler", sampler), FIXED, part("cache", "dual"), part("eos", "none"))


def test_what_cannot_be_recorded_is_refused() -> None:
    config, parts = model("tiny-llada").config, together("confidence")
    with pytest.raises(UserError, match="runtime=cudagraph records the work of a GPU, and the model is on cpu"):
        Runtime("cudagraph").check(parts, config, CPU)
    Runtime("cudagraph").check(parts, config, CUDA)
    Runtime("compile").check(parts, config, CPU)
    routed = replace(config, moe=MoEConfig(4, 2, 8, "softmax", (0,)))
    with pytest.raises(UserError, match="runtime=compile cannot follow a model with routed experts.*cudagraph"):
        Runtime("compile").check(parts, routed, CUDA)
    Runtime("cudagraph").check(parts, routed, CUDA)
    with pytest.raises(UserError, match="runtime=cudagraph runs routed experts with our kernel alone.*kernels=auto"):
        Runtime("cudagraph").network(model("llada_moe"))
    for name in ("compile", "cudagraph"):
        for sampler, reason in (("freedave", "several candidates"), ("wino", "extra queries")):
            with pytest.raises(
                UserError, match=f"runtime={name} .* sampler={sampler} has {reason}.*=eager or .*=static"
            ):
                Runtime(name).check(together(sampler), config, CUDA)
    Runtime("static").check(parts, routed, CPU)


def test_models_that_cannot_be_recorded_are_refused() -> None:
    packed = load("mini-llada")
    with pytest.raises(UserError, match="runtime=compile cannot compile packed weights: .*pack=False"):
        Decoder(packed, runtime="compile")
    spread = load("mini-dream", pack=False).transformer
    spread.places = Places([CPU, CPU], CPU, CPU)
    for name in ("compile", "cudagraph"):
        with pytest.raises(UserError, match=f"runtime={name} needs the model on one GPU, and this one is spread"):
            Runtime(name).network(spread)


def test_without_a_compiler_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before weights are read. On a GPU torch.compile needs Triton, and a GPU that Triton takes."""
    config, parts = model("tiny-llada").config, together("confidence")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    for name, nearest in (("compile", "static"), ("compile_cudagraph", "cudagraph")):
        with pytest.raises(UserError, match=rf"={name} compiles for .* 7\.0 .* has 6\.1\. Use runtime={nearest}\."):
            Runtime(name).check(parts, config, CUDA)
        with monkeypatch.context() as bare:
            bare.setattr("dllm.loop.runtime.runtime.find_spec", lambda name: None)
            with pytest.raises(UserError, match=f"={name} compiles with Triton, which is.* Use runtime={nearest}"):
                Runtime(name).check(parts, config, CUDA)
    Runtime("compile").check(parts, config, CPU)
    monkeypatch.setattr("dllm.loop.runtime.runtime.which", lambda name: None)
    with pytest.raises(UserError, match="runtime=compile needs a C\\+\\+ compiler.*use runtime=static"):
        Runtime("compile").check(parts, config, CPU)
