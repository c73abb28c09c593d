"""Rules around rules: every pair works, or is refused with a sentence that names the way out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import build, full, model, of_noise, requests, results

from dllm import UserError
from dllm.parts import (
    ETE,
    Adas,
    Canvas,
    Confidence,
    Credit,
    Fixed,
    FreeDave,
    Frontier,
    FullLength,
    NoCache,
    Oracle,
    Parts,
    Prior,
    Prophet,
    Request,
    Result,
    Sampler,
    Scout,
    Selection,
    Setting,
    State,
    Static,
    Step,
    View,
    Wrapper,
    choices,
    composed,
    name_of,
    refuse_clashes,
)
from dllm.parts import build_part as build_part
from tests.samplers.game import PROMPT, Game, positions

WRAPPERS: dict[str, Callable[[Sampler], Sampler]] = {
    "credit": Credit,
    "prophet": Prophet,
    "freedave": FreeDave,
    "prior": Prior,
    "frontier": Frontier,
    "adas": lambda inner: Adas(inner, 10.0),
    "scout": Scout,
}
OFF: dict[str, Callable[[Sampler], Sampler]] = {
    "credit": lambda inner: Credit(inner, alpha=0.0),
    "prophet": lambda inner: Prophet(inner, thresholds=[float("inf")] * 3),
    "freedave": lambda inner: FreeDave(inner, 1),
    "prior": lambda inner: Prior(inner, sigma=float("inf")),
    "frontier": lambda inner: Frontier(inner, None),
    "adas": lambda inner: Adas(inner, 0.0),
    "scout": lambda inner: Scout(inner, 1),
}
# Dream cannot have wino; rules of noise decide a whole block. Refused below all the same.
INNER = [name for name in choices("sampler") if name not in {"wino", *of_noise()}]
MODELS = ("tiny-llada", "tiny-dream")


def around(wrapper: str, inner: str, kinds: dict[str, Any] | None = None) -> Sampler | None:
    """The pair, or None where it is refused."""
    try:
        return (kinds or WRAPPERS)[wrapper](build("sampler", inner))
    except UserError:
        return None


PAIRS = [(wrapper, inner) for wrapper in WRAPPERS for inner in INNER if around(wrapper, inner) is not None]


def chosen() -> list[tuple[str, str, str]]:
    """A quarter of the pairs that work, on both kinds of model in turn; ``make laws``: all of them on both."""
    if full():
        return [(*pair, name) for pair in PAIRS for name in MODELS]
    some = random.Random(14).sample(PAIRS, len(PAIRS) // 4)
    return [(*pair, MODELS[number % 2]) for number, pair in enumerate(sorted(some))]


def decode(name: str, sampler: Sampler, batch: list[Request]) -> list[Result]:
    return results(model(name), Parts(sampler, Fixed(5), NoCache(), FullLength()), batch)


def short() -> list[Request]:
    """Two rows of 10 and 9 masks."""
    return [
        Request.answer(row.tokens[: row.answer_start], 10 - number, 60, number)
        for number, row in enumerate(requests()[:2])
    ]


def facts(results: list[Result]) -> list[tuple[list[int], list[int], int]]:
    return [(row.canvas, row.turns, row.nfe) for row in results]


@pytest.mark.daily(12)
@pytest.mark.parametrize(("wrapper", "inner", "name"), chosen())
def test_a_pair_is_its_inner_rule_when_switched_off_and_fills_each_row_as_if_alone(
    wrapper: str, inner: str, name: str
) -> None:
    rule, off, plain = around(wrapper, inner), around(wrapper, inner, OFF), build("sampler", inner)
    assert rule is not None and off is not None
    assert facts(decode(name, off, short())) == facts(decode(name, plain, short()))
    together = decode(name, rule, short())
    alone = [decode(name, rule, [replace(row, param_index=number)])[0] for number, row in enumerate(short())]
    assert facts(together) == facts(alone)
    assert all(60 not in row.canvas and len(row.canvas) == 10 - number for number, row in enumerate(together))


def test_most_pairs_work() -> None:
    """Written down, so that none is lost in silence. A new rule needs no entry."""
    names = {wrapper: [inner for at, inner in PAIRS if at == wrapper] for wrapper in WRAPPERS}
    revocable = {"joint_threshold", "rcr", "remdm", "saber"}
    assert revocable <= set(INNER)
    assert set(names["prophet"]) == set(INNER) - revocable - {"dmax", "flash_verify", "linear_spec", "remix"}
    assert set(names["freedave"]) >= {
        "adas", "confidence", "d3llm", "dawn", "dparallel", "dream", "dus", "easing", "eb", "entropy_distance",
        "factor", "frechet", "frontier", "learn2pd", "localleap", "oracle", "order", "pc", "prior", "spaced",
        "static",
    }  # fmt: skip
    assert names["scout"] == names["freedave"]
    assert set(names["credit"]) >= {
        "adas", "bacd", "confidence", "dawn", "dus", "easing", "factor", "frechet", "frontier", "groups",
        "learn2pd", "localleap", "oracle", "order", "pc", "prior", "spaced", "static",
    }  # fmt: skip
    assert set(names["prior"]) >= {"pc", "static"}
    assert set(names["adas"]) >= {
        "confidence",
        "d3llm",
        "dparallel",
        "dream",
        "easing",
        "eb",
        "factor",
        "frechet",
        "static",
    }
    assert set(names["frontier"]) == set(INNER) - {
        "dmax",
        "dus",
        "flash_verify",
        "freedave",
        "linear_spec",
        "order",
        "prophet",
        "remix",
        "scout",
    }


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_pair_that_cannot_work_says_why_and_what_would(wrapper: str) -> None:
    refused = 0
    for inner in choices("sampler"):
        if around(wrapper, inner) is None:
            refused += 1
            words = rf"^sampler={wrapper} .*inner={inner}\b.* Use .*(static|confidence|by itself)"
            with pytest.raises(UserError, match=words):
                WRAPPERS[wrapper](build("sampler", inner))
    assert refused >= 4


THREE: dict[str, Sampler] = {
    "prophet-freedave-static": Prophet(FreeDave(Static(), 3), thresholds=(2.0, 2.0, 2.0)),
    "prophet-freedave-oracle": Prophet(FreeDave(build("sampler", "oracle"))),
    "prophet-credit-bacd": Prophet(Credit(build("sampler", "bacd"))),
    "prophet-prophet-ete": Prophet(Prophet(ETE(), region="offset", start=4)),
}


@pytest.mark.parametrize("sampler", THREE.values(), ids=THREE)
def test_three_deep_a_row_decodes_as_if_alone(sampler: Sampler) -> None:
    for name in MODELS:
        together = decode(name, sampler, short())
        alone = [decode(name, sampler, [replace(row, param_index=number)])[0] for number, row in enumerate(short())]
        assert facts(together) == facts(alone) and all(60 not in row.canvas for row in together)


def test_every_rule_can_be_named_as_an_inner_one() -> None:
    assert choices("sampler/inner") == choices("sampler")
    for wrapper, inner, words in (
        ("prophet", "freedave", None),
        ("credit", "wino", "inner=wino cannot use them"),
        ("prophet", "flash_verify", "takes two for each"),
        ("scout", "flash_verify", "scout"),
        ("prophet", "remix", "inner=remix also says what the next one is given"),
        ("prophet", "oracle", "needs sampler.inner.reference"),
    ):
        config = composed([f"sampler={wrapper}", f"sampler/inner={inner}"])["sampler"]
        if words is None:
            assert name_of(build_part("sampler", config).inner) == inner
        else:
            with pytest.raises(UserError, match=words):
                build_part("sampler", config)


def test_a_row_that_is_sure_needs_no_drafts() -> None:
    game = Game(Prophet(FreeDave(Static(), 3)), 5, rows=2)
    step = game.sampler.propose(game.view(0.5, gap=[[9.0] * 5, [1.0] * 5]), game.state)
    assert step.owner.row.tolist() == [0, 1, 1, 1]
    assert positions(step.commit) == [[0, 1, 2, 3, 4], [0], [0, 1], [0, 1, 2]]
    assert step.stop.tolist() == [True, False]


def test_a_row_that_is_sure_writes_the_likeliest_token_where_it_would_have_explored() -> None:
    game = Game(Prophet(ETE(explore_mass=0.5)), 3)
    logits = torch.tensor([[[0.1, 0.9, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 3.0]]])
    p = logits.double().softmax(-1)
    step = game.sampler.propose(
        game.view(p.amax(-1), p.argmax(-1), gap=9.0, first=p.amax(-1), logits=logits, entropy=[1.0, 0.5, 0.1]),
        game.state,
    )
    assert step.owner.is_single
    assert step.tokens[0, PROMPT:].tolist() == [1, 1, 2] and positions(step.commit) == [[0, 1, 2]]


def test_drafts_carry_the_inner_rules_tokens() -> None:
    game = Game(FreeDave(Oracle([[1, 2, 3, 4]]), 2), 4)
    step = game.sampler.propose(game.view([0.1, 0.9, 0.5, 0.7], token=7), game.state)
    assert positions(step.commit) == [[1], [1, 3]]
    assert step.tokens[:, PROMPT:].tolist() == [[7, 2, 7, 4], [7, 2, 7, 4]]


def forcing(game: Game, view: View) -> View:
    """Row 0 is forced by the cache's plan to commit its first position; the others act."""
    only = torch.zeros_like(view.open)
    only[0, PROMPT] = True
    return game.view_of(view.scores, only)


@pytest.mark.parametrize("rule", ["credit", "oracle"])
def test_what_a_cache_forces_is_the_models_own_token_whatever_the_neighbours_do(rule: str) -> None:
    """Credit carries an old favourite, the oracle knows the answer: neither is asked in a row that is forced."""
    sampler = Credit(Confidence(0.99), beta=1.0, alpha=4.0) if rule == "credit" else Oracle([[5, 5]] * 2)
    game = Game(sampler, 2, rows=2)
    first = torch.tensor([[[0.0, 1.0], [0.0, 9.0]]]).expand(2, -1, -1)
    p = first.softmax(-1)
    game.play(p.amax(-1), p.argmax(-1), logits=first)
    then = torch.tensor([[[0.1, 0.0], [0.0, 9.0]]]).expand(2, -1, -1)
    p = then.softmax(-1)
    view = forcing(game, game.view(p.amax(-1), p.argmax(-1), logits=then))
    assert view.active.tolist() == [False, True]
    step = game.sampler.propose(view, game.state)
    tokens = step.tokens
    assert positions(step.commit)[0] == [0] and int(tokens[0, PROMPT]) == 0
    assert int(tokens[1, PROMPT]) == (1 if rule == "credit" else 5)


def test_a_rule_that_branches_sees_no_row_that_is_forced() -> None:
    """It would offer alike candidates, each of them a forward's work."""
    game = Game(ETE(explore_mass=0.1), 3, rows=2)
    logits = torch.zeros(2, 3, 4)
    view = game.view(0.25, 0, first=0.25, entropy=1.0, logits=logits)
    step = game.sampler.propose(forcing(game, view), game.state)
    assert step.owner.row.tolist() == [0, 1, 1, 1]


def test_names_of_state_never_meet() -> None:
    canvas, blocks = Canvas.of(short(), 61), Fixed(8)
    nested = Static(), Prophet(Static()), Prophet(Prophet(Static()))
    names = [set(sampler.start(canvas, blocks)) for sampler in nested]
    assert "inner.inner.steps" in names[2] and "inner.masks" in names[2] and "masks" in names[2]
    assert names[2] - names[1] == {f"inner.{name}" for name in names[1]} - names[1]
    assert all(value.shape[0] == 2 for value in Prophet(Credit(Confidence())).start(canvas, blocks).values())


def test_a_wrapper_that_decides_where_nobody_asks_is_no_class() -> None:
    with pytest.raises(UserError, match="^Lost wraps a rule, so its step is never called: write propose instead.$"):

        class Lost(Wrapper):
            def step(self, view: View, state: State) -> Step:
                return view.step(view.open)


def test_a_combination_of_parts_knows_what_is_inside() -> None:
    """Whatever a cache, a schedule or a runtime refuses in the inner rule, it refuses in the pair."""
    pair = Prophet(FreeDave(Static()))
    assert (
        pair.traits.branches and not pair.traits.plans_ahead and Prophet(build("sampler", "order")).traits.plans_ahead
    )
    assert Prophet(ETE()).traits.lookahead == 1 and Prophet(build("sampler", "dream")).traits.tempered
    tccf = build("blocks", "tccf")
    with pytest.raises(UserError, match="sampler=prophet cannot draft over it"):
        chosen = Selection(Setting(model("tiny-llada").config, tccf, 16), pair)
        refuse_clashes(chosen, ("blocks", tccf, tccf.clashes))
