"""Questions on canvases: wordings, boundaries, batches, joint canvases, refusals."""

from __future__ import annotations

import re
from math import log
from random import Random
from typing import Any

import pytest

from dllm import Decoder, UserError, load
from dllm.parts import (
    ESTIMATORS,
    AlternativesTrie,
    Decisions,
    Estimator,
    LabelledScores,
    Likelihood,
    Order,
    PrefilledPrompt,
    Slot,
    SlotDecision,
    SlotScores,
    canvases,
    plan_by,
    quality,
    question_of,
    softmax,
)
from dllm.scoring.decisions import Choice, Predicate, Score

STATE = 'Sort the list:\n["Kai", "Emma", "Hugo"]'
FIRST = Choice(["Kai", "Emma", "Hugo"], template='["{slot}", "')
SPELT = Choice(["Kai", "Emma", "Wilhelmina", "Wilhelm"], template='["{slot}", "')
ROW = "Rows as JSON:\nBush, 72, Cairo\nIvan, 92, Lima"


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(load("mini-llada"))


def test_a_decision_is_likely_and_open_about_its_mass(decoder: Decoder) -> None:
    found = decoder.decide(STATE, first=FIRST)
    answer = found["first"]
    assert answer.choice == "Emma" and answer.probabilities["Emma"] > 0.99 and found.forwards == found.rows == 1
    assert answer.mass is not None and answer.confidence == answer.probabilities["Emma"] * answer.mass
    told = found.to_json()["answers"][0]
    assert told["choice"] == "Emma" and told["diffusion"]["argmax_is_label"] and not told["diffusion"]["calibrated"]


def test_a_question_that_the_model_knows_nothing_of_has_a_note(decoder: Decoder) -> None:
    town = Choice(["Cairo", "Lima"], template='[{"name": "Bush", "age": 72, "town": "{slot}')
    noise, sense = (decoder.decide(ROW, asked=one)["asked"] for one in (Predicate("Is the sky blue?"), town))
    assert noise.mass is not None and noise.note is not None and f"a mass of {noise.mass:.2g} together" in noise.note
    assert str(noise).endswith(noise.note) and noise.to_json(None)["diffusion"]["note"] == noise.note
    assert sense.note is None and "note" not in sense.to_json(None)["diffusion"] and "Note" not in str(sense)


def test_a_notebook_shows_every_alternative_with_its_share() -> None:
    question = Choice(["<Lima>", "Cairo"])
    scores = SlotScores((0.0, -1.0), (-0.3, -1.3), (0.5, 0.5), (True, False))
    found = Decisions({"town & land": SlotDecision(question, scores, ((1,), (2,)))}, "m", 1, 1, 1, 1)
    shown = found._repr_html_()
    assert "town &amp; land" in shown and "50% on the alternatives" in shown
    assert re.findall(r"font-weight:(\w+)\">(.*?)</td><td>(.*?)</td>", shown) == [
        ("bold", "&lt;Lima&gt;", "73.1%"),
        ("normal", "Cairo", "26.9%"),  # 1 / (1 + 1 / e)
    ]


def test_one_token_is_what_likelihood_compares(decoder: Decoder) -> None:
    prompts = decoder.prompts
    open_question = Choice(["Kai", "Emma", "Hugo"], template='["{slot}')
    head = prompts.encode(PrefilledPrompt(STATE, '["'))
    targets = [prompts.encode(PrefilledPrompt(STATE, f'["{name}'))[len(head) :] for name in ("Kai", "Emma", "Hugo")]
    truth = softmax([one.value for one in Likelihood(decoder.model, Estimator()).compare(head, targets)])
    found = decoder.decide(STATE, first=open_question)["first"].probabilities
    assert list(found.values()) == pytest.approx(truth, abs=1e-12)


def test_many_alternatives_and_a_question_behind_an_answer(decoder: Decoder) -> None:
    for count in (26, 255):
        found = decoder.decide(STATE, q=Choice([f"{n}" for n in range(count)], template='["{slot}", "'))["q"]
        assert sum(found.probabilities.values()) == pytest.approx(1, abs=1e-12) and len(found.probabilities) == count
    told = [{"role": "user", "content": STATE}, {"role": "assistant", "content": "No."}]
    question = Predicate("Is that rude?")
    behind = decoder.decide([*told, {"role": "user", "content": question.asked()}], q=Predicate())["q"]
    assert decoder.decide(told, q=question)["q"].scores == behind.scores


def test_a_question_alone_is_the_question_among_others(decoder: Decoder) -> None:
    alone = decoder.decide(STATE, spelt=SPELT)["spelt"]
    among = decoder.decide(STATE + "\n", a=Predicate("Is it long?"), first=FIRST, spelt=SPELT, again=SPELT)
    others = decoder.decide_many([ROW, STATE], {"spelt": SPELT})[1]["spelt"]
    assert among["spelt"].scores == among["again"].scores
    for one in (among["spelt"], others):
        assert list(one.probabilities.values()) == pytest.approx(list(alone.probabilities.values()), abs=3e-6)
    turned = decoder.decide(STATE, spelt=Choice(SPELT.values[::-1], template=SPELT.template))["spelt"]
    assert turned.probabilities == pytest.approx(alone.probabilities, abs=3e-6)


def test_scores_and_predicates(decoder: Decoder) -> None:
    ages = Score([str(age) for age in range(60, 90)], template='[{"name": "Bush", "age": {slot}, ')
    found = decoder.decide(ROW, age=ages, is_long=Predicate("Is it long?"))
    probabilities = list(found["age"].probabilities.values())
    assert found["age"].score == pytest.approx(sum(at * p for at, p in enumerate(probabilities)))
    assert found["age"].value == pytest.approx(60 + found["age"].score) and abs(found["age"].value - 72) < 1
    assert found["is_long"].probability == found["is_long"].probabilities["yes"]
    assert "value" in found.to_json()["answers"][0]["diffusion"]


def test_the_temperature_divides_the_scores(decoder: Decoder) -> None:
    plain = decoder.decide(STATE, spelt=SPELT)["spelt"]
    warm = decoder.decide(STATE, spelt=SPELT, temperature=2.0)["spelt"]
    assert list(warm.probabilities.values()) == pytest.approx(softmax(plain.scores.scores, 2.0))


def test_a_space_before_the_slot_goes_where_the_tokenizer_puts_it(decoder: Decoder) -> None:
    found = decoder.decide(STATE, q=Predicate("Is it a list?"))["q"]
    assert decoder.model.tokenizer is not None
    assert [decoder.model.tokenizer.decode(ids).strip() for ids in found.tokens] == ["yes", "no"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Choice(["a"]), "takes 2 to 255 values, and has 1"),
        (lambda: Choice([str(n) for n in range(256)]), "has 256"),
        (lambda: Choice([str(n) for n in range(27)], labels="letters"), "2 to 26 values with labels=letters"),
        (lambda: Choice(["a", ""]), "must not be empty"),
        (lambda: Choice(["a", "a"]), "'a' is there twice"),
        (lambda: Choice(["a", "b"], template=""), "holds it 0 times"),
        (lambda: Choice(["a", "b"], template="{slot} or {slot}"), "holds it 2 times"),
        (lambda: Choice(["a", "b"], descriptions=["x"]), "1 descriptions for 2 values"),
        (lambda: Choice(["a", "b"], labels="words"), "labels='words' must be one of values, letters"),
        (lambda: Choice("Cairo"), "values='Cairo' must be a list of texts"),
        (lambda: Choice([1, 2]), "values must be texts, true or false, not 1"),  # type: ignore[list-item]
        (lambda: Score("12"), "levels='12' must be a list"),
        (lambda: Score([str(n) for n in range(257)]), "2 to 256 levels, and has 257"),
        (lambda: Choice(["a", "b"], template=["{slot}"]), "template=.* must be text or null"),  # type: ignore[arg-type]
        (lambda: Choice(["a", "b"], instructions=None), "instructions=None must be text"),  # type: ignore[arg-type]
    ],
)
def test_unsound_questions_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"estimator": "locl"}, "Did you mean 'local'"),
        ({"free": -1}, "free=-1"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"thershold": 0.5}, "thershold=0.5 must be a Predicate"),
        ({"temperature": "2"}, "temperature='2' must be a number"),
        ({"joint": True}, "joint=True must be a Predicate"),
        ({"questions": FIRST}, "must be a mapping from names"),
        ({"questions": {"first": SPELT}}, "two questions are called 'first'"),
        ({"calibration": {"choise": 2.0}}, "Did you mean 'choice'"),
        ({"calibration": {"choice": "warm"}}, "calibration of choice='warm' must be a number"),
        ({"calibration": "nowhere.json"}, "is not a file of task=decide"),
    ],
)
def test_unsound_options_are_refused(decoder: Decoder, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        decoder.decide(STATE, first=FIRST, **options)


def test_values_that_merge_with_the_text_beside_them_are_refused(decoder: Decoder) -> None:
    with pytest.raises(UserError, match="question 'q': 'mma' merges with the text before it"):
        decoder.decide(STATE, q=Choice(["mma", "xx"], template='["E{slot}'))
    with pytest.raises(UserError, match="no question"):
        decoder.decide(STATE)
    with pytest.raises(UserError, match="states must be a list"):
        decoder.decide_many(STATE, {"first": FIRST})
    with pytest.raises(UserError, match="states must be a list"):
        decoder.decide_many([5, 6, 7], {"first": FIRST})  # type: ignore[list-item]
    with pytest.raises(UserError, match="must give a role and a content"):
        decoder.decide([{"role": "user", "content": None}], q=Predicate("Is it long?"))
    with pytest.raises(UserError, match="more than the model's limit"):
        decoder.decide("Kai " * 5000, first=FIRST)


def test_a_model_of_one_block_at_a_time_reads_a_slot_at_the_end() -> None:
    decoder = Decoder(load("mini-nbdiff"), blocks="fixed")
    found = decoder.decide(STATE, spelt=SPELT)["spelt"]
    assert sum(found.probabilities.values()) == pytest.approx(1) and found.choice == "Emma"
    bare = Choice(SPELT.values, template="{slot}")
    assert sum(decoder.decide(STATE, spelt=bare)["spelt"].probabilities.values()) == pytest.approx(1)
    with pytest.raises(UserError, match="'spelt': .* does not predict a position while text that comes first"):
        decoder.decide(STATE, spelt=bare, estimator="marginal")
    with pytest.raises(UserError, match="does not see the text after its block"):
        decoder.decide(STATE, first=Choice(FIRST.values, template='["{slot}", "' + "Kai " * 40), slot="closed")


@pytest.mark.parametrize("name", ["mini-wedlm", "mini-ar"])
def test_causal_models_read_many_questions_about_one_prompt_once(name: str) -> None:
    rule = Order("left_to_right") if name == "mini-ar" else "confidence"
    decoder = Decoder(load(name), rule, blocks="fixed")
    towns = {
        f"{who} {age}": Choice(["Cairo", "Lima"], template=f'[{{"name": "{who}", "age": {age}, "town": "{{slot}}"')
        for who, age in (("Bush", 72), ("Ivan", 92), ("Bush", 92))
    }
    together = decoder.decide(ROW, towns)
    alone = [decoder.decide(ROW, {key: question}) for key, question in towns.items()]
    assert together["Bush 72"].choice == "Cairo"
    assert together.cached_tokens > together.query_tokens / 2 and all(one.cached_tokens == 0 for one in alone)
    assert together.query_tokens + together.cached_tokens == sum(one.query_tokens for one in alone)
    assert together.to_json()["usage"]["input_tokens_details"]["cached_tokens"] == together.cached_tokens
    for key, one in zip(towns, alone, strict=True):
        assert together[key].probabilities == pytest.approx(one[key].probabilities, abs=3e-6)


def drawn(seed: int) -> tuple[tuple[int, ...], ...]:
    dice = Random(seed)
    return tuple({tuple(dice.choices((4, 5), k=dice.randint(1, 5))) for _ in range(dice.randint(1, 12))})


@pytest.mark.parametrize("seed", range(30))
def test_nodes_are_beginnings_and_canvases_are_counted(seed: int) -> None:
    alternatives = drawn(seed)
    trie, begins = AlternativesTrie.of(alternatives), dict[tuple[int, ...], set[int]]()
    for one in alternatives:
        for at in range(len(one)):
            begins.setdefault(one[:at], set()).add(one[at])
    assert {
        alternatives[one][:at]: set(tokens) for (one, at), tokens in zip(trie.places, trie.onward, strict=True)
    } == begins
    for one, path in zip(alternatives, trie.paths, strict=True):
        assert [alternatives[trie.places[node][0]][: trie.places[node][1]] for node in path] == [
            one[:at] for at in range(len(one))
        ]
    slot = Slot((1, 2), alternatives, (3,), 2, 60, 6)
    for estimator in ESTIMATORS:
        assert canvases(slot, estimator) == len({query.canvas for query in plan_by(slot, estimator).queries})


def test_long_alternatives_take_no_square_of_memory() -> None:
    one = tuple(range(100_000))
    assert len(AlternativesTrie.of([one, (*one[:50_000], 7)]).places) == 100_000


@pytest.mark.parametrize("label", ["inf", "-Infinity", "nan", "1e400", "1_0", "0x1", "", "one", "١"])
def test_labels_that_are_no_finite_numbers_have_no_value(label: str) -> None:
    assert Score([label or "-", "1", "2"]).numbers is None
    assert Score(["-1.5", "+2", "3e2", ".5", "4."]).numbers == [-1.5, 2.0, 300.0, 0.5, 4.0]


def test_what_the_prompt_says_of_a_question() -> None:
    assert Choice(["x", "y"], "Which?", labels="letters").asked() == "Which?\nA: x\nB: y"
    assert Choice(["x", "y"], "", "It is {slot}", labels="letters").asked() == "A: x\nB: y"
    assert Choice(["x", "y"], "", "It is {slot}", ["big", ""]).asked() == "- x: big\n- y"
    assert Choice(["x", "y"], "Which?").asked() == "Which?\n- x\n- y"
    assert Choice(["x", "y"], "Which?", "It is {slot}").asked() == "Which?"
    assert Predicate().asked() == ""


def test_a_misspelt_field_of_a_question_is_refused() -> None:
    with pytest.raises(UserError, match="'lables' is not a field of a choice.* Did you mean 'labels'"):
        question_of({"type": "choice", "choices": ["a", "b"], "lables": "letters"})


def test_confidences_are_binned_apart() -> None:
    items = [LabelledScores([log(0.95), log(0.05)], 1), LabelledScores([log(0.55), log(0.45)], 0)]
    assert quality(items).ece == pytest.approx((0.95 + 0.45) / 2)
