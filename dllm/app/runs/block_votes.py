"""``task.vote``: one question under several block lengths, and a vote of their answers (HEX, arXiv 2510.05040)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllm.contract.canvas import Request
from dllm.decisions.reading import ReadCanvas, ReadQuery, read_canvases
from dllm.errors import UserError, in_choices
from dllm.models.bundle import Model
from dllm.models.config import ModelConfig
from dllm.record.results import ResultRow
from dllm.tasks.base import Item, Task

VOTE_RULES = ("frequency", "frequency_likeliest", "likeliest")
FIXED_BLOCKS = "dllm.blocks.fixed.Fixed"


@dataclass(frozen=True)
class Ballot:
    """What one member of a vote says."""

    answer: Hashable | None  # by the task's extraction; None: it gave none
    likelihood: float  # mean log-probability in nats of all its tokens on the canvas of masks


def elected(ballots: Sequence[Ballot], rule: str) -> int | None:
    """The index of the first ballot for the answer that wins; None: no ballot has one.

    Under ``frequency`` the most ballots win, of equals the first to occur; under ``frequency_likeliest`` of equals the
    one with the likeliest ballot; under ``likeliest`` the likeliest ballot of all.
    """
    given = [number for number, ballot in enumerate(ballots) if ballot.answer is not None]
    if not given:
        return None
    counts = Counter(ballots[number].answer for number in given)
    best = dict[Hashable, float]()
    for number in given:
        answer, likelihood = ballots[number].answer, ballots[number].likelihood
        best[answer] = max(best.get(answer, likelihood), likelihood)
    worth = {
        "frequency": lambda answer: (counts[answer],),
        "frequency_likeliest": lambda answer: (counts[answer], best[answer]),
        "likeliest": lambda answer: (best[answer],),
    }[rule]
    return max(given, key=lambda number: (worth(ballots[number].answer), -number))


def block_lengths(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The block lengths that vote; one None where nothing does. Raises UserError for what cannot."""
    lengths = config["task"].get("vote")
    if lengths is None:
        return (None,)
    whole = isinstance(lengths, list) and all(isinstance(one, int) and one >= 1 for one in lengths)
    if not whole or len(set(lengths)) < max(2, len(lengths)):
        raise UserError(
            f"task.vote={lengths} must be two or more different block lengths, such as task.vote=[4,8,16]; null "
            "decodes each question once."
        )
    in_choices("task.vote_rule", config["task"]["vote_rule"], VOTE_RULES)
    if config["samples"] != 1:
        raise UserError(
            f"samples={config['samples']}: under task.vote every block length gives a sample. Set samples=1."
        )
    if config["blocks"]["_target_"] != FIXED_BLOCKS:
        raise UserError(
            f"task.vote={lengths} sets blocks.block_length, which blocks=fixed alone has. Use blocks=fixed."
        )
    if config["model"]["tp"] != 1:
        raise UserError(
            f"model.tp={config['model']['tp']}: task.vote asks one process how likely answers are. Set model.tp=1."
        )
    return tuple(lengths)


def check_vote(config: Mapping[str, Any], task: Task, items: Sequence[Item], model: ModelConfig) -> None:
    """Raise UserError for a task whose answers cannot be compared, and for a model of one block length."""
    lengths, name = config["task"]["vote"], config["task"]["name"]
    if model.attention.block is not None:
        raise UserError(f"task.vote={lengths}: this model was trained at one block length. Set task.vote=null.")
    if any(item.choices for item in items) or not task.extracts:
        raise UserError(
            f"task.vote={lengths} compares answers, and task={name} with these settings extracts none. Set "
            "task.vote=null."
        )


@dataclass(frozen=True)
class Vote:
    """The vote of an evaluation."""

    task: Task  # which extracts answers
    model: Model  # which says how likely they are
    lengths: Sequence[int]  # of the members' blocks
    rule: str  # one of ``VOTE_RULES``

    def note(self, item: Item, request: Request, rows: Sequence[ResultRow]) -> None:
        """Note in all members of a question what they say, what is elected, and its score."""
        members = sorted(rows, key=lambda row: int(row["sample"]))
        answers = [self.task.extract(item, row["text"]) for row in members]
        likelihoods = first_likelihoods(self.model, request, [row["canvas"] for row in members])
        winner = elected([Ballot(*one) for one in zip(answers, likelihoods, strict=True)], self.rule)
        score = 0.0 if winner is None else members[winner]["scores"]["score"]
        chosen = None if winner is None else answers[winner]
        for row, length, answer, likelihood in zip(members, self.lengths, answers, likelihoods, strict=True):
            row["vote"] = {"block_length": length, "answer": answer, "likelihood": likelihood, "elected": chosen}
            row["scores"] = {**row["scores"], "vote": score}


def first_likelihoods(model: Model, request: Request, answers: Sequence[Sequence[int]]) -> list[float]:
    """The mean log-probability in nats of each answer's tokens, all of them, on the request's canvas of masks: one
    forward."""
    start, tokens = request.answer_start, tuple(request.tokens)
    masked = frozenset(at for at, hidden in enumerate(request.masked) if hidden)
    canvas = ReadCanvas(tokens, masked, start)
    queries = [ReadQuery(canvas, tuple((start + at, (token,)) for at, token in enumerate(ids))) for ids in answers]
    found = read_canvases(model, queries)
    return [sum(one for (one,) in reading.log_p) / len(reading.log_p) for reading in found]
