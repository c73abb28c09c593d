"""``task.vote``: which answer is elected, and members that decode as each does alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from dllm import UserError
from dllm.app.command_line.options import checked_settings
from dllm.app.runs.block_votes import VOTE_RULES, Ballot, elected
from dllm.app.runs.evaluation import Evaluation
from dllm.compose.parts import composed, plain_config
from dllm.tasks.standard.jsonl import JsonLines


@pytest.mark.parametrize("rule", VOTE_RULES)
def test_elections_agree_with_counting_by_hand(rule: str) -> None:
    """All ballots of four members who know two answers or none, of unlike and like likelihoods."""
    for answers in product(("a", "b", None), repeat=4):
        for likelihoods in ((-3.0, -1.0, -2.0, -4.0), (-1.0, -1.0, -1.0, -1.0)):
            ballots = [Ballot(*one) for one in zip(answers, likelihoods, strict=True)]
            cast = [(one.answer, one.likelihood) for one in ballots if one.answer is not None]
            winner = elected(ballots, rule)
            if not cast:
                assert winner is None
                continue
            assert winner is not None
            rates = {}
            for answer in dict.fromkeys(name for name, _ in cast):  # in the order in which they occur
                count = sum(name == answer for name, _ in cast)
                best = max(value for name, value in cast if name == answer)
                rates[answer] = {"frequency": (count,), "frequency_likeliest": (count, best), "likeliest": (best,)}[
                    rule
                ]
            most = max(rates.values())
            assert answers[winner] == next(name for name, rate in rates.items() if rate == most)
            assert winner == answers.index(answers[winner])


def config(*words: str) -> dict[str, Any]:
    chosen = ["task=parallelbench", "task.tasks=[waiting_line/sort]", "task.count=2", "gen_length=16"]
    return checked_settings(plain_config(composed([*chosen, *words])))


def test_members_decode_as_they_do_alone_and_say_what_they_voted_for() -> None:
    evaluation = Evaluation.of(config("task.vote=[4,16]", "task.vote_rule=likeliest"))
    rows = [row for row, _ in evaluation.rows(evaluation.batches)]
    assert sorted((row["id"], row["sample"]) for row in rows) == sorted(evaluation.keys) and len(rows) == 4
    for member, length in enumerate((4, 16)):
        alone = Evaluation.of(config(f"blocks.block_length={length}"))
        texts = {row["id"]: row["text"] for row, _ in alone.rows(alone.batches)}
        assert texts == {row["id"]: row["text"] for row in rows if row["sample"] == member}
    network = evaluation.model.transformer
    for row in rows:
        members = [other for other in rows if other["id"] == row["id"]]
        likeliest = max(members, key=lambda one: (one["vote"]["likelihood"], -one["sample"]))
        assert row["vote"]["elected"] == likeliest["text"].strip() and row["vote"]["answer"] == row["text"].strip()
        assert row["vote"]["block_length"] == (4, 16)[row["sample"]]
        assert row["scores"]["vote"] == likeliest["scores"]["score"]
        start, canvas = len(row["prompt_tokens"]), torch.tensor(row["canvas"])
        tokens = torch.tensor([*row["prompt_tokens"], *[evaluation.model.ids.placeholder] * len(canvas)])
        with torch.inference_mode():
            logits = network.logits(network.encode(tokens[None]))[0, start:].double()
        mean = logits.log_softmax(-1).gather(1, canvas[:, None]).mean()
        assert row["vote"]["likelihood"] == pytest.approx(float(mean), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task.vote=[8]"], "task.vote=.8. must be two or more different block lengths"),
        (["task.vote=[8,8]"], "must be two or more different"),
        (["task.vote=[8,0]"], "must be two or more different"),
        (["task.vote=[4,8]", "task.vote_rule=most"], "task.vote_rule='most' must be one of"),
        (["task.vote=[4,8]", "samples=2"], "samples=2: under task.vote"),
        (["task.vote=[4,8]", "blocks=whole"], "Use blocks=fixed"),
        (["task.vote=[4,8]", "model=mini-nbdiff"], "trained at one block length"),
    ],
)
def test_what_cannot_vote_is_refused_before_weights_are_read(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Evaluation.of(config(*words))


def test_answers_are_what_the_match_compares(tmp_path: Any) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    found = {match: JsonLines(str(file), match) for match in ("exact", "number", "contains")}
    item = found["exact"].items()[0]
    assert found["exact"].extract(item, " 4\n") == "4" and found["exact"].extract(item, " ") is None
    assert found["number"].extract(item, "so 1,004.5") == 1004.5 and found["number"].extract(item, "four") is None
    assert not found["contains"].extracts
