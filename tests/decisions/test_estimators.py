"""Estimators against their formulas by brute force, and against decoding under a constraint to the alternatives."""

from __future__ import annotations

from math import exp, fsum, log, prod
from pathlib import Path
from random import Random

import pytest
import torch

from dllm import Decoder
from dllm.parts import Choice as Among
from dllm.parts import (
    Estimator,
    Laid,
    Likelihood,
    Model,
    Order,
    Slot,
    SlotScores,
    final_commits,
    layout_of,
    load,
    plan_by,
    read_canvases,
    softmax,
)
from tests.support.harness import DATA, full
from tests.support.tiny import MODELS as MODELS_FOLDER
from tests.support.tiny import make_written

HEAD, TAIL = (51, 25, 3, 17), (9, 40)
MODELS = ("tiny-llada", "tiny-dream")


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return load(DATA / "models" / request.param, dtype="float64", mask_id=60)


def log_p(model: Model, cells: tuple[int | None, ...], at: int) -> list[float]:
    """Log-probabilities [V] at a column, straight from the network."""
    tokens = torch.tensor([[60 if cell is None else cell for cell in cells]])
    with torch.inference_mode():
        hidden = model.transformer.encode(tokens)[0]
        row = max(at - model.config.prediction_shift, 0)
        values: list[float] = model.transformer.head(hidden[row]).double().log_softmax(-1).tolist()
    return values


def scores(model: Model, slot: Slot, estimator: str) -> SlotScores:
    plan = plan_by(slot, estimator)
    return plan.finish(read_canvases(model, plan.queries))


def drawn(seed: int) -> tuple[tuple[int, ...], ...]:
    """Alternatives that share beginnings, closed by the token 9, so that one may be the beginning of another."""
    rng = Random(seed)
    found = {tuple(rng.choice((4, 5, 6)) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 7))}
    return tuple((*one, 9) for one in sorted(found))


def chain(model: Model, slot: Slot, one: tuple[int, ...], among: bool) -> float:
    """The chain rule by hand; among: every step over the tokens that some alternative has there."""
    total = 0.0
    for at, token in enumerate(one):
        cells = (*slot.head, *one[:at], *[None] * (slot.width - at), *slot.tail)
        values = log_p(model, cells, len(slot.head) + at)
        goes_on = {other[at] for other in slot.alternatives if other[:at] == one[:at] and len(other) > at}
        total += values[token] - (log(fsum(exp(values[c]) for c in goes_on)) if among else 0.0)
    return total


@pytest.mark.parametrize("seed", range(4))
def test_local_and_chain_are_their_formulas_and_local_sums_to_one(model: Model, seed: int) -> None:
    alternatives = drawn(seed)
    slot = Slot(HEAD, alternatives, (), len(HEAD), 60, max(map(len, alternatives)))
    local, chained = scores(model, slot, "local"), scores(model, slot, "chain")
    assert list(local.scores) == pytest.approx([chain(model, slot, one, True) for one in alternatives], abs=1e-10)
    assert list(chained.scores) == pytest.approx([chain(model, slot, one, False) for one in alternatives], abs=1e-10)
    assert fsum(map(exp, local.scores)) == pytest.approx(1, abs=1e-12)
    assert chained.mass[0] == pytest.approx(fsum(map(exp, chained.scores)), abs=1e-12)


def test_one_alternative_is_certain(model: Model) -> None:
    assert scores(model, Slot(HEAD, ((4, 5, 6),), TAIL, 4, 60, 3), "local").scores == (0.0,)


def test_marginal_and_pseudo_are_their_formulas(model: Model) -> None:
    alternatives = ((4, 5), (5, 5), (6, 7))
    slot = Slot(HEAD, alternatives, TAIL, len(HEAD), 60, 2)
    open_ = (*HEAD, None, None, *TAIL)
    first, second = (log_p(model, open_, len(HEAD) + at) for at in (0, 1))
    assert list(scores(model, slot, "marginal").scores) == pytest.approx(
        [first[a] + second[b] for a, b in alternatives]
    )
    rest = [
        log_p(model, (*HEAD, None, b, *TAIL), len(HEAD))[a] + log_p(model, (*HEAD, a, None, *TAIL), len(HEAD) + 1)[b]
        for a, b in alternatives
    ]
    assert list(scores(model, slot, "pseudo").scores) == pytest.approx(rest)


def test_estimators_agree_on_one_token_and_with_likelihood(model: Model) -> None:
    tokens = (4, 9, 30, 12)
    slot = Slot(HEAD, tuple((token,) for token in tokens), (), len(HEAD), 60, 1)
    found = [softmax(scores(model, slot, one).scores) for one in ("local", "chain", "marginal", "pseudo")]
    compared = Likelihood(model, Estimator()).compare(HEAD, [[token] for token in tokens])
    truth = softmax([one.value for one in compared])
    for one in found:
        assert one == pytest.approx(truth, abs=1e-12)


def test_closed_slots_weigh_lengths_by_the_open_one(model: Model) -> None:
    laid = Laid(HEAD, ((4,), (5,), (4, 5), (6, 6)), TAIL, len(HEAD))
    parts = {}
    for mode in ("open", "closed"):
        plan = layout_of(laid, 60, 61, "local", mode, 0, sees_behind=True).plan()
        parts[mode] = softmax(plan.finish(read_canvases(model, plan.queries)).scores)
    first = softmax([log_p(model, (*HEAD, None, *TAIL), len(HEAD))[token] for token in (4, 5)])
    assert parts["closed"][:2] == pytest.approx([sum(parts["open"][:2]) * p for p in first], abs=1e-10)
    assert sum(parts["closed"]) == pytest.approx(1, abs=1e-12)


def test_rows_are_the_inner_nodes_and_equal_canvases_are_computed_once(model: Model) -> None:
    slot = Slot(HEAD, ((4, 5, 9), (4, 6, 9), (5, 9)), (), len(HEAD), 60, 3)
    plan = plan_by(slot, "local")
    found = read_canvases(model, [*plan.queries, *plan.queries])
    assert sum(one.rows for one in found) == 5 == len(plan.queries) and sum(one.forwards for one in found) == 1


def test_a_slot_in_the_first_column(model: Model) -> None:
    """Of Dream's models the first column predicts itself."""
    slot = Slot((), ((4,), (9,), (30,)), TAIL, 0, 60, 1)
    values = log_p(model, (None, *TAIL), 0)
    assert list(scores(model, slot, "local").logprobs) == pytest.approx([values[a] for a in (4, 9, 30)], abs=1e-10)


# Causal models decode in blocks, within which the answer lies here.
ALL_MODELS = {
    "tiny-llada": "whole",
    "tiny-dream": "whole",
    "tiny-nbdiff": "fixed",
    "tiny-wedlm": "whole",
    "tiny-a2d-bd3lm": "fixed",
    "tiny-diffcoder": "fixed",
    "tiny-fastdllm-v2": "fixed",
}


@pytest.mark.parametrize("name", ALL_MODELS if full() else [*ALL_MODELS][:4])
@pytest.mark.parametrize("texts", [("ab", "aba", "ba", "bb"), ("a", "b", "q", "7")], ids=["several", "one"])
def test_local_is_the_law_of_drawing_from_left_to_right_under_the_constraint(
    name: str, texts: tuple[str, ...], tmp_path: Path
) -> None:
    """Every text that ``sampler=order`` can draw under constraint=choice has the probability that the admissible tokens
    of its draws have at temperature 1, turn by turn. Draws at temperature 8 reach them all. Texts of one token: the
    distribution of the first proposal."""
    model = load(make_written(tmp_path / "m", source=MODELS_FOLDER / name))
    assert model.tokenizer is not None
    ends = (model.ids.eos,) if len({*map(len, texts)}) > 1 else ()
    ids = [(*model.tokenizer.encode(text), *ends) for text in texts]
    length = max(map(len, ids))
    slot = Slot((3, 5, 8), tuple(ids), (), 3, model.ids.placeholder, length)
    law = [exp(score) for score in scores(model, slot, "local").scores]
    among = Among(texts, confidence="admissible")
    decoder = Decoder(
        model,
        Order("left_to_right"),
        ALL_MODELS[name],
        eos="none",
        gen_length=length,
        batch_size=60,
        temperature=8.0,
        constraint=among,
    )
    reached = {
        result.text: prod(one.confidence for one in final_commits(result.traced()))
        for result in decoder([3, 5, 8], samples=60, trace=True)
    }
    assert set(reached) == set(texts) and sum(law) == pytest.approx(1, abs=1e-12)
    assert [reached[text] for text in texts] == pytest.approx(law, abs=3e-6)
