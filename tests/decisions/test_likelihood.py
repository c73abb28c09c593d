"""Likelihood estimates against enumeration: every mask, every order, every text of a tiny model."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations, product
from math import comb, exp, log
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dllm.parts import (
    METHODS,
    ContextCausal,
    Estimator,
    Ids,
    Likelihood,
    Model,
    NoCacheMemory,
    UserError,
    Visible,
    by_coin,
    by_count,
    load,
    load_model,
    read_model_config,
)
from tests.support.harness import DATA

PROMPT, TARGET = [51, 25, 3], [7, 30, 12, 7]


@pytest.fixture(scope="module", params=["tiny-llada", "tiny-dream"])
def model(request: pytest.FixtureRequest) -> Model:
    return load(DATA / "models" / request.param, dtype="float64", mask_id=60)


def log_p(model: Model, tokens: list[int], position: int) -> Tensor:
    """Log-probabilities [V] at a position of a canvas, straight from the network."""
    with torch.inference_mode():
        hidden = model.transformer.encode(torch.tensor([tokens]))[0]
        return model.transformer.head(hidden[position - model.config.prediction_shift]).double().log_softmax(-1)


def masked_sum(model: Model, masked: tuple[int, ...], tail: list[int], prompt: list[int] = PROMPT) -> float:
    """Sum of the log-probabilities of the masked target tokens, with just these masked."""
    canvas = [*prompt, *[model.ids.mask if at in masked else token for at, token in enumerate(TARGET)], *tail]
    return sum(log_p(model, canvas, len(prompt) + at)[TARGET[at]].item() for at in masked)


def in_order(model: Model, order: tuple[int, ...], tail: list[int]) -> float:
    """The chain rule in one order of the target's tokens."""
    total, hidden = 0.0, set(order)
    for at in order:
        canvas = [*PROMPT, *[model.ids.mask if i in hidden else token for i, token in enumerate(TARGET)], *tail]
        total += log_p(model, canvas, len(PROMPT) + at)[TARGET[at]].item()
        hidden.remove(at)
    return total


def expected(model: Model, tail: list[int]) -> float:
    """The bound by its definition: a uniform count, a uniform subset of that size, weighed L / count."""
    length = len(TARGET)
    return sum(
        masked_sum(model, subset, tail) * length / count / comb(length, count) / length
        for count in range(1, length + 1)
        for subset in combinations(range(length), count)
    )


def test_the_bound_is_the_mean_over_all_orders_of_the_chain(model: Model) -> None:
    """Two derivations of the truth that the estimators below are held against."""
    orders = list(permutations(range(len(TARGET))))
    assert expected(model, []) == pytest.approx(sum(in_order(model, order, []) for order in orders) / len(orders))


def test_exact_ar_is_the_chain_from_left_to_right(model: Model) -> None:
    for rows in (1, 3, 8):
        found = Likelihood(model, Estimator("exact_ar", rows=rows))(PROMPT, TARGET)
        assert found.value == pytest.approx(in_order(model, (0, 1, 2, 3), []), rel=1e-12)
        assert found.forwards == -(-len(TARGET) // rows) and found.query_tokens == len(TARGET) * (3 + 4)


@pytest.mark.daily(5)
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("method", ["mc_count", "mc_bernoulli"])
def test_monte_carlo_converges_to_the_enumerated_expectation(model: Model, method: str, rows: int) -> None:
    """The mean of independent estimates, within four of its standard errors."""
    tail = [model.ids.eos] if method == "mc_bernoulli" else []
    table = {
        subset: [masked_sum_each(model, subset, tail)[at] for at in range(len(TARGET))]
        for count in range(1, len(TARGET) + 1)
        for subset in combinations(range(len(TARGET)), count)
    }
    draw, values = METHODS[method], []
    for seed in range(1500):
        estimator = Estimator(method, samples=rows, rows=rows, seed=seed, eps=1e-6)
        ((masked, weight),) = draw(estimator, len(TARGET), torch.Generator().manual_seed(seed))
        values.append(
            sum(
                float(weight[row, at]) * table[tuple(masked[row].nonzero()[:, 0].tolist())][at]
                for row in range(rows)
                for at in masked[row].nonzero()[:, 0].tolist()
            )
        )
    sample = torch.tensor(values, dtype=torch.float64)
    assert abs(sample.mean().item() - expected(model, tail)) < 4 * sample.std().item() / len(values) ** 0.5


def masked_sum_each(model: Model, masked: tuple[int, ...], tail: list[int]) -> list[float]:
    canvas = [*PROMPT, *[model.ids.mask if at in masked else token for at, token in enumerate(TARGET)], *tail]
    with torch.inference_mode():
        hidden = model.transformer.encode(torch.tensor([canvas]))[0]
        at = torch.arange(len(TARGET)) + len(PROMPT) - model.config.prediction_shift
        logits = model.transformer.head(hidden[at]).double().log_softmax(-1)
    return logits[torch.arange(len(TARGET)), TARGET].tolist()


@pytest.mark.parametrize("method", ["mc_count", "mc_bernoulli"])
def test_an_estimate_is_the_weighed_sum_of_its_draws(model: Model, method: str) -> None:
    """The estimator's own path through the network gives what its masks say, forward by forward."""
    estimator = Estimator(method, samples=12, rows=4)
    tail = [model.ids.eos] if method == "mc_bernoulli" else []
    value, distinct = 0.0, set()
    for masked, weight in estimator.draws(len(TARGET)):
        for row in range(len(masked)):
            distinct.add(tuple(masked[row].tolist()))
            each = masked_sum_each(model, tuple(masked[row].nonzero()[:, 0].tolist()), tail)
            value += sum(float(w) * p for w, p in zip(weight[row], each, strict=True))
    found = Likelihood(model, estimator)(PROMPT, TARGET)
    assert found.value == pytest.approx(value, rel=1e-6)
    distinct.discard((False,) * len(TARGET))
    assert len(distinct) < 12, "equal canvases are computed once"
    assert found.forwards == -(-len(distinct) // 4) and found.query_tokens == len(distinct) * (7 + len(tail))


def test_counts_of_a_batch_are_spread_evenly() -> None:
    """8 rows over 4 tokens: every count twice, wherever the first one fell; to-even rounding would not give that."""
    for seed in range(20):
        ((masked, weight),) = by_count(Estimator(samples=8, rows=8), 4, torch.Generator().manual_seed(seed))
        assert sorted(masked.sum(1).tolist()) == [1, 1, 2, 2, 3, 3, 4, 4]
        assert torch.equal(weight != 0, masked)


def test_coins_are_never_weighed_more_than_the_least_chance_allows() -> None:
    for seed in range(50):
        for masked, weight in by_coin(Estimator("mc_bernoulli", samples=8, rows=4, eps=0.25), 6, generator(seed)):
            assert weight[masked].max() <= 1 / 0.25 / 8 + 1e-9 and torch.all(weight[masked] >= 1 / 8 - 1e-9)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("method", METHODS)
def test_one_token_is_exact_and_all_of_them_sum_to_one(model: Model, method: str) -> None:
    likelihood = Likelihood(model, Estimator(method, samples=1, rows=1))
    found = likelihood.compare(PROMPT, [[token] for token in range(64)])
    assert sum(exp(one.value) for one in found) == pytest.approx(1)
    tail = [model.ids.eos] if method == "mc_bernoulli" else []
    truth = log_p(model, [*PROMPT, model.ids.mask, *tail], len(PROMPT))
    assert [one.value for one in found] == pytest.approx(truth.tolist())
    assert sum(one.forwards for one in found) == 1
    assert likelihood(PROMPT, [9]).value == pytest.approx(truth[9].item())


def test_exact_ar_of_all_texts_of_two_tokens_sums_to_one(model: Model) -> None:
    likelihood = Likelihood(model, Estimator("exact_ar"))
    firsts = range(0, 64, 16)
    for first in firsts:  # p(first) times the sum over seconds is p(first)
        total = sum(exp(likelihood(PROMPT, [first, second]).value) for second in range(64))
        canvas = [*PROMPT, model.ids.mask, model.ids.mask]
        assert log(total) == pytest.approx(log_p(model, canvas, len(PROMPT))[first].item())


def test_guidance_mixes_with_a_masked_prompt(model: Model) -> None:
    mask = model.ids.mask
    with torch.inference_mode():
        hidden = model.transformer.encode(torch.tensor([[*PROMPT, mask], [mask] * 4]))
        conditional, free = model.transformer.head(hidden[:, 3 - model.config.prediction_shift])
    truth = (free + 1.5 * (conditional - free)).log_softmax(-1)[9].item()
    found = Likelihood(model, Estimator(guidance=0.5))(PROMPT, [9])
    assert found.value == pytest.approx(truth) and found.query_tokens == 8


class Largest(TorchDispatchMode):
    """The most rows of logits, tensors [n, V], that any operation makes; the head's matrix, turned, is none."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.rows = vocabulary, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and not made._is_view() and made.shape[1:] == (self.vocabulary,):
                self.rows = max(self.rows, len(made))
        return result


@pytest.mark.parametrize("guidance", [0.0, 0.5])
def test_few_rows_of_logits_exist_at_a_time(monkeypatch: pytest.MonkeyPatch, guidance: float) -> None:
    """8 rows of 40 targets: whole they would be 320 rows; of an 8B model and 1,000 targets, 4 GB."""
    model = load(DATA / "models" / "llada_mha_untied", dtype="float64")
    estimator, prompt, target = Estimator(samples=16, rows=8, guidance=guidance), [3, 4], [5, 6, 7, 8] * 10
    assert model.config.vocab not in (model.config.width, len(target))
    whole = Likelihood(model, estimator)(prompt, target)
    monkeypatch.setattr("dllm.scoring.decisions.reading.HEAD_ROWS", 7)
    with Largest(model.config.vocab) as largest:
        assert Likelihood(model, estimator)(prompt, target).value == pytest.approx(whole.value, rel=1e-12)
    assert 0 < largest.rows <= 7


def test_estimates_repeat_and_do_not_depend_on_company(model: Model) -> None:
    likelihood = Likelihood(model, Estimator(samples=8, rows=4))
    other = [4, 5, 6, 9, 11]
    alone = likelihood(PROMPT, TARGET)
    assert likelihood.compare(PROMPT, [other, TARGET])[1] == alone == likelihood(PROMPT, TARGET)
    assert Likelihood(model, Estimator(samples=8, rows=4, seed=2))(PROMPT, TARGET).value != alone.value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "mc_cuont"}, "Did you mean 'mc_count'"),
        ({"samples": 10, "rows": 4}, "multiple of mc_batch=4"),
        ({"samples": 0}, "mc_num=0"),
        ({"guidance": -1.0}, "guidance"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Estimator(**options)  # type: ignore[arg-type]


def test_what_is_too_long_or_empty_is_refused(model: Model) -> None:
    likelihood = Likelihood(model, Estimator())
    with pytest.raises(UserError, match="limit of 256"):
        likelihood([3] * 250, [4] * 6)
    with pytest.raises(UserError, match="at least one token"):
        likelihood(PROMPT, [])


def test_all_methods_agree_where_tokens_are_independent(tiny: Path) -> None:
    """A model whose output ignores its input has one likelihood: the product. Chain and bounds must all give it."""
    model = load(tiny, dtype="float64")
    with torch.no_grad():
        for layer in model.transformer.layers:
            layer.attn.o.weight.zero_()  # type: ignore[union-attr]
            layer.mlp.down.weight.zero_()  # type: ignore[union-attr]
    truth = sum(log_p(model, [3, 60], 1)[token].item() for token in TARGET)
    assert Likelihood(model, Estimator("exact_ar"))(PROMPT, TARGET).value == pytest.approx(truth)
    draws = Estimator("mc_count", samples=64, rows=4)
    weights = torch.stack([weight.sum(0) for _, weight in draws.draws(4)]).sum(0).tolist()
    chances = [log_p(model, [3, 60], 1)[token].item() for token in TARGET]
    assert Likelihood(model, draws)(PROMPT, TARGET).value == pytest.approx(
        sum(weight * chance for weight, chance in zip(weights, chances, strict=True)), rel=1e-6
    )


def test_tables_of_masks_are_complete() -> None:
    """mc_count reaches every non-empty subset of a target of four: nothing is left out of the expectation."""
    seen = {
        tuple(row.nonzero()[:, 0].tolist())
        for masked, _ in by_count(Estimator(samples=4000, rows=8), 4, generator(0))
        for row in masked
    }
    assert seen == {tuple(i for i in range(4) if bits[i]) for bits in product((0, 1), repeat=4) if any(bits)}


@pytest.mark.parametrize("name", ["tiny-wedlm", "tiny-nbdiff"])
def test_the_chain_of_a_causal_model_takes_causal_forwards_alone(name: str) -> None:
    """WeDLM: the mask of a token behind what is before it. NBDiff with blocks of one column: the autoregressive model
    itself. Both under a triangle by position."""
    config = replace(read_model_config(DATA / "models" / name), mask_id=60)
    if isinstance(config.attention, ContextCausal):
        config = replace(config, attention=ContextCausal(1))
    network = load_model(DATA / "models" / name, dtype=torch.float64, config=config)
    model, expected = Model(network, config, None, Ids(60, 61, ()), name, DATA), 0.0
    for at, token in enumerate(TARGET):
        tokens = torch.tensor([[*PROMPT, *TARGET[:at], *[60] * (name == "tiny-wedlm")]])
        triangle = NoCacheMemory(Visible(torch.ones(1, tokens.shape[1], tokens.shape[1]).tril().bool()))
        with torch.inference_mode():
            hidden = network(tokens, torch.arange(tokens.shape[1])[None], triangle)[0][0, -1]
            expected += float(network.head(hidden).log_softmax(-1)[token])
    assert Likelihood(model, Estimator("exact_ar", rows=3))(PROMPT, TARGET).value == pytest.approx(expected, rel=1e-12)
    with pytest.raises(UserError, match="guidance=0.5 needs a prompt of masks"):
        Likelihood(model, Estimator("exact_ar", guidance=0.5))(PROMPT, TARGET)
    if name == "tiny-nbdiff":
        with pytest.raises(UserError, match="likelihood=mc_count masks tokens anywhere.*Use likelihood=exact_ar"):
            Likelihood(model, Estimator())(PROMPT, TARGET)
