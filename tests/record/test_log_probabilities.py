"""Own and drawn log-probabilities of commits, against closed forms, frequencies of draws, and the network alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dllm import Decoder, Result, load, part
from dllm.loop import proposals
from dllm.parts import Canvas, Choice, Ids, Model, Proposer, Request, Sampling

VOCAB, COLUMNS = 7, 20_000
IDS = Ids(mask=6, eos=5, stops=())
ASKED = frozenset({"own", "drawn"})
FOLDER = Path(__file__).parents[1] / "data" / "models" / "tiny-llada"


def closed_form(logits: Tensor, sampling: Sampling, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities [V] under the model alone and under what is drawn from, by the definitions in a loop over ids
    sorted by probability."""
    banned = [IDS.mask] * sampling.suppress_mask + [IDS.eos] * sampling.forbid_eos
    own = logits.clone()
    own[banned] = -torch.inf
    own, hot = own.log_softmax(0), (own / temperature).softmax(0).tolist()
    order, kept, mass = sorted(range(VOCAB), key=lambda token: -hot[token]), list[int](), 0.0
    for token in order:
        if kept and mass > (1.0 if sampling.top_p is None else sampling.top_p):
            break
        kept.append(token)
        mass += hot[token]
    kept = [token for token in kept[: sampling.top_k] if hot[token] > 0]
    total = sum(hot[token] for token in kept)
    drawn = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
    drawn[kept] = torch.tensor([hot[token] / total for token in kept], dtype=torch.float64).log()
    return own, drawn


OPTIONS: list[dict[str, Any]] = [
    {},
    {"tempered": True},
    {"top_p": 0.7},
    {"top_k": 3},
    {"top_p": 0.9, "top_k": 2, "tempered": True},
    {"forbid_eos": True},
    {"suppress_mask": False, "top_p": 0.8},
    {"eos_last": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_drawn_is_how_often_a_token_is_drawn_and_own_is_the_models(options: dict[str, Any], temperature: float) -> None:
    sampling = Sampling(temperature=temperature, **options)
    canvas = Canvas.of([Request.answer([], COLUMNS, 1, 5)], 0, temperature=temperature)
    one = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 1.5
    logits, columns = one.expand(1, COLUMNS, VOCAB).clone(), torch.arange(COLUMNS)[None]
    found = Proposer(sampling, IDS, ASKED)(logits, canvas, torch.tensor([1]), columns)
    own, drawn = closed_form(one, sampling, temperature)
    token = found["token"][0]
    torch.testing.assert_close(found["own"][0], own[token], rtol=0, atol=1e-12)
    torch.testing.assert_close(found["drawn"][0], drawn[token], rtol=0, atol=1e-12)
    often = torch.bincount(token, minlength=VOCAB) / COLUMNS
    spread = (drawn.exp() * (1 - drawn.exp()) / COLUMNS).sqrt()
    assert ((often - drawn.exp()).abs() <= 5 * spread + 1e-12).all()


def test_at_temperature_0_nothing_is_drawn_in_a_row_beside_one_that_draws() -> None:
    rows = [Request.answer([], 50, 1, 0), replace(Request.answer([], 50, 2, 0), temperature=1.5)]
    canvas = Canvas.of(rows, 0)
    logits = torch.randn(2, 50, VOCAB, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = Proposer(Sampling(temperature=1.5, top_k=4), IDS, ASKED)(
        logits,
        replace(canvas, temperature=torch.tensor([0.0, 1.5], dtype=torch.float64)),
        torch.ones(2).long(),
        torch.arange(50).expand(2, 50),
    )
    assert (found["drawn"][0] == 0).all() and (found["drawn"][1] < 0).all() and (found["own"] < 0).all()


class Counted(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(sampling: Sampling, wanted: frozenset[str]) -> int:
    canvas, logits = Canvas.of([Request.answer([], 8, 1, 5)], 0), torch.randn(1, 8, VOCAB)
    with Counted() as counted:
        Proposer(sampling, IDS, wanted)(logits, canvas, torch.tensor([1]), torch.arange(8)[None])
    return counted.count


def test_they_cost_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of argmaxes a logarithm and a blank of numbers that are there, and no look at a logit; else two passes."""
    argmax, draw = Sampling(), Sampling(temperature=1.0)
    assert operations(draw, ASKED) > operations(draw, frozenset())
    monkeypatch.setattr(proposals, "log_probability", None)  # raises where it is called
    assert operations(argmax, ASKED) - operations(argmax, frozenset()) == 2
    operations(draw, frozenset())


@pytest.fixture(scope="module")
def model() -> Model:
    return load(str(FOLDER), dtype="float64")


PROMPTS = [[3, 5, 9, 11], [7, 2], [30, 31, 32, 33, 34, 35]]
HOT: dict[str, Any] = {"temperature": 1.3, "top_p": 0.9}
WAYS: list[tuple[Any, str, dict[str, Any]]] = [
    ("confidence", "none", HOT),
    ("eb", "none", {"temperature": 0.6, "top_k": 5}),
    ("dream", "none", HOT),
    (part("sampler", "order", positions=list(range(16))), "none", {"temperature": 1.0, "forbid_eos": True}),
    ("wino", "none", {}),
    ("static", "none", {"guidance": 0.5, **HOT}),
]


def decoded(model: Model, sampler: Any, cache: str, options: dict[str, Any], batch: int) -> list[Result]:
    decoder = Decoder(
        model,
        sampler,
        "whole" if cache == "none" else "fixed",
        cache,
        "none",
        gen_length=16,
        batch_size=batch,
        **({} if cache == "none" else {}),
        **options,
    )
    return decoder(PROMPTS, seed=5, trace=True)


def canvas_logits(model: Model, canvas: list[int], start: int, guidance: float) -> Tensor:
    """Logits [L, V] of a canvas, by the network alone."""
    blank = [model.ids.placeholder] * start + canvas[start:]
    tokens = torch.tensor([canvas, blank])
    with torch.no_grad():
        cond, free = model.transformer.head(
            model.transformer.encode(tokens, None, tokens == torch.tensor(model.ids.mask), start)
        )
    return free + (guidance + 1) * (cond - free) if guidance else cond


def softmaxed(logits: Tensor, temperature: float, top_p: float | None, top_k: int | None) -> Tensor:
    """Log-probabilities [V] of what is drawn from."""
    hot = (logits / temperature).softmax(0)
    order = hot.argsort(descending=True)
    keep = order[: top_k or len(order)]
    if top_p is not None:
        before = hot[order].cumsum(0) - hot[order]
        keep = order[before <= top_p]
    out = torch.full_like(hot, -torch.inf)
    out[keep] = (hot[keep] / hot[keep].sum()).log()
    return out


NAMES = [f"{one[0] if isinstance(one[0], str) else type(one[0]).__name__}-{one[2]}" for one in WAYS]


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_every_commit_of_a_decode_says_both(model: Model, way: tuple[Any, str, dict[str, Any]]) -> None:
    sampler, cache, options = way
    temperature, mask = options.get("temperature", 0), model.ids.mask
    for result in decoded(model, sampler, cache, options, batch=3):
        trace = result.traced()
        last = {
            at: (turn, token)
            for turn, (record, kept) in enumerate(trace.path())
            for commits in record.written(kept)
            for at, token in zip(commits.positions, commits.tokens, strict=True)
        }
        canvases = list(trace.canvases())
        for at, (turn, token) in last.items():
            logits = canvas_logits(model, canvases[turn], trace.start, options.get("guidance", 0))[trace.start + at]
            logits[[mask, *(model.ids.ends if options.get("forbid_eos") else ())]] = -torch.inf
            assert result.commit_logprobs[at] == pytest.approx(float(logits.log_softmax(0)[token]), abs=1e-9)
            drawn = 0.0
            if temperature:
                asked = temperature, options.get("top_p"), options.get("top_k")
                drawn = float(softmaxed(logits, *asked)[token])
            assert result.drawn_logprobs[at] == pytest.approx(drawn, abs=1e-9)
        assert len(last) == 16


@pytest.mark.parametrize("cache", ["none", "dual", "prefix"])
def test_a_row_says_the_same_alone_and_in_a_batch(model: Model, cache: str) -> None:
    alone, together = (decoded(model, "confidence", cache, HOT, batch) for batch in (1, 3))
    for one, other in zip(alone, together, strict=True):
        assert one.canvas == other.canvas and min(p for p in one.drawn_logprobs if p is not None) < -0.1
        assert one.commit_logprobs == pytest.approx(other.commit_logprobs, abs=1e-9)
        assert one.drawn_logprobs == pytest.approx(other.drawn_logprobs, abs=1e-9)


def test_under_a_constraint_a_draw_is_among_what_it_allows() -> None:
    """The first token of a word is any piece that a word begins with; of these alone it is drawn, at the decode's
    temperature."""
    mini, words = load("mini-llada", dtype="float64"), ["yes", "no", "Kai"]
    assert mini.tokenizer is not None
    sampler = part("sampler", "order", positions=[0, 1, 2, 3])
    decoder = Decoder(mini, sampler, "whole", eos="none", gen_length=4, batch_size=32, temperature=2.0, top_k=4)
    results = decoder("Is it Kai?", samples=32, constraints=[Choice(words)], trace=True)
    trace = results[0].traced()
    own = canvas_logits(mini, trace.prompt, trace.start, 0)[trace.start]
    own[mini.ids.mask] = -torch.inf
    texts = [mini.tokenizer.decode([token]) for token in range(len(own))]
    begins = [token for token, text in enumerate(texts) if text and any(word.startswith(text) for word in words)]
    fitting = torch.full_like(own, -torch.inf)
    fitting[begins] = own[begins]
    drawn = softmaxed(fitting, 2.0, None, 4)
    assert len(begins) > 4 and len({one.canvas[0] for one in results}) > 1
    for one in results:
        assert one.commit_logprobs[0] == pytest.approx(float(own.log_softmax(0)[one.canvas[0]]), abs=1e-9)
        assert one.drawn_logprobs[0] == pytest.approx(float(drawn[one.canvas[0]]), abs=1e-9)


def test_frames_and_files_keep_both(model: Model, tmp_path: Path) -> None:
    result = decoded(model, "confidence", "none", HOT, 1)[0]
    frame = result.traced().to_frame()
    by_place = frame.drop_duplicates("position", keep="last").sort_values("position")
    assert by_place.own_logprob.tolist() == result.commit_logprobs
    assert by_place.drawn_logprob.tolist() == result.drawn_logprobs
    read = type(result.traced()).load(result.traced().save(tmp_path / "trace.json"))
    assert replace(result, trace=read).drawn_logprobs == result.drawn_logprobs
