"""A generator that yields canvases to read, receives their readings and returns the decisions."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch

from dllm.common.coerce import coerce
from dllm.common.errors import TooLong, UserError, in_choices, in_range
from dllm.models.config import ModelConfig
from dllm.models.text.ids import Ids as SpecialIds
from dllm.prompts import Prompts
from dllm.scoring.decisions.canvases import (
    SLOT_MODES,
    DecisionState,
    Laid,
    TooManyCanvases,
    Unanswerable,
    laid_alone,
    layout_of,
)
from dllm.scoring.decisions.estimators import ESTIMATORS, Plan, SlotScores
from dllm.scoring.decisions.questions import QUESTION_TYPES, Question
from dllm.scoring.decisions.reading import Reading, ReadQuery
from dllm.scoring.decisions.results import Decisions, SlotDecision

# Groups of queries, one for each question that is read by itself: a server in exact mode reads each apart.
Deciding = Generator[list[list[ReadQuery]], list[list[Reading]], Decisions]
MAX_FREE = 256
LEAST, MOST = 1e-3, 1e3  # temperatures


@dataclass(frozen=True)
class DecisionOptions:
    """How questions are read. Raises UserError for what no reading has."""

    estimator: str = "local"  # see ``dllm.scoring.decisions.estimators``
    slot: str = "auto"  # open, closed or auto, see ``layout_of``
    free: int = 0  # masks after the template
    temperature: float | None = None  # divides the scores (None: that of the calibration, else 1)
    calibration: Mapping[str, float] = field(default_factory=dict)  # fitted temperatures by type of question

    def __post_init__(self) -> None:
        for entry in fields(self):
            object.__setattr__(self, entry.name, coerce(entry.name, getattr(self, entry.name), entry.type))
        in_choices("estimator", self.estimator, ESTIMATORS)
        in_choices("slot", self.slot, SLOT_MODES)
        in_range("free", self.free, 0, MAX_FREE)
        in_range("temperature", self.temperature, LEAST, MOST)
        for kind, temperature in self.calibration.items():
            in_choices("calibration's type of question", kind, QUESTION_TYPES)
            in_range(f"calibration of {kind}", coerce(f"calibration of {kind}", temperature, "float"), LEAST, MOST)


def deciding(
    prompts: Prompts,
    ids: SpecialIds,
    state: DecisionState,
    questions: Mapping[str, Question],
    options: DecisionOptions,
    most: int | None = None,
) -> Deciding:
    """Yields the queries to read, takes their readings, and returns the decisions. most: canvases that may be read at
    once (None: any number). Raises UserError, before anything is read, for questions that cannot be laid on a canvas of
    this model, and TooManyCanvases before these are made."""
    if not questions:
        raise UserError("there is no question. Ask at least one.")
    work = _Work(prompts, ids, options, most)
    prompts.encode(state)  # refuses what is not a prompt before questions are put after it
    plans: dict[str, tuple[Laid, Plan]] = {}
    for name, question in questions.items():
        try:
            laid = laid_alone(prompts, state, question)
            plans[name] = laid, work.plan(name, laid)
        except (TooLong, TooManyCanvases):  # of all questions
            raise
        except UserError as error:
            raise Unanswerable(name, str(error)) from None
    readings = yield [plan.queries for _, plan in plans.values()]
    return work.result(
        {
            name: work.decision(questions[name], laid, plan.finish(work.add_costs(reads)))
            for (name, (laid, plan)), reads in zip(plans.items(), readings, strict=True)
        }
    )


class _Work:
    """What one request adds up while it is read."""

    def __init__(self, prompts: Prompts, ids: SpecialIds, options: DecisionOptions, most: int | None) -> None:
        self.prompts, self.ids, self.options, self.most = prompts, ids, options, most
        self.canvases = 0  # that were laid for the coming read, at least
        self.forwards = self.rows = self.query_tokens = self.cached_tokens = 0
        self.lengths: dict[str, int] = {}  # columns of every canvas

    def plan(self, canvas: str, laid: Laid) -> Plan:
        """The plan of one question. canvas: its name, by which its tokens count once."""
        options, config, ids = self.options, self.prompts.config, self.ids
        sees = sees_behind(config)
        layout = layout_of(laid, ids.placeholder, ids.eos, options.estimator, options.slot, options.free, sees)
        if (length := layout.columns) > config.max_length:
            raise TooLong(
                f"the prompt and the template take {length} tokens, more than the model's limit of {config.max_length}."
                " Shorten the prompt."
            )
        if self.most is not None:
            self.canvases += layout.canvases - 1  # a canvas without an answer may be another question's, too
            if self.canvases >= self.most:
                raise TooManyCanvases(self.most)
        plan = layout.plan()
        refuse_unknown_canvases(config, plan.queries)
        self.lengths[canvas] = max(length, self.lengths.get(canvas, 0))
        return plan

    def add_costs(self, readings: Sequence[Reading]) -> Sequence[Reading]:
        """The readings, whose costs are added up."""
        for name in ("forwards", "rows", "query_tokens", "cached_tokens"):
            setattr(self, name, getattr(self, name) + sum(getattr(reading, name) for reading in readings))
        return readings

    def decision(self, question: Question, laid: Laid, scores: SlotScores) -> SlotDecision:
        default, override = self.options.calibration.get(question.type), self.options.temperature
        temperature = override if override is not None else 1.0 if default is None else default
        return SlotDecision(question, scores, laid.alternatives, temperature, override is None and default is not None)

    def result(self, answers: Mapping[str, SlotDecision]) -> Decisions:
        costs = (sum(self.lengths.values()), self.forwards, self.rows, self.query_tokens, self.cached_tokens)
        return Decisions(answers, self.prompts.name, *costs)


_WAY_OUT = "Use estimator=local with slot=open, at the end of the answer, one question to a canvas."


def sees_behind(config: ModelConfig) -> bool:
    """Whether a mask sees all given text after it."""
    return config.attention.block is None and not config.attention.next_token


def refuse_unknown_canvases(config: ModelConfig, queries: Sequence[ReadQuery]) -> None:
    """Raise UserError for canvases that the model's attention was not made for: a slot that it does not predict while
    text before it is masked, or text after the slot that it does not see."""
    kind, canvases = config.attention, [query.canvas for query in queries]
    if kind.name == "full":
        return
    length = max(len(canvas.tokens) for canvas in canvases)
    masked = torch.tensor([[at in canvas.masked for at in range(length)] for canvas in canvases])
    start = torch.tensor([canvas.start for canvas in canvases])
    order = kind.order(masked, start)
    if order is None:
        return
    predicted, sources = kind.predicted(masked, start), config.sources(masked, start)
    pieces = kind.pieces(masked, start)
    for row, query in enumerate(queries):
        first = min(query.canvas.masked)
        for column, _ in query.targets:
            alone = predicted is not None and not bool(predicted[row, column])
            early = kind.block is not None and bool(pieces[row, column] > pieces[row, first])
            if alone or early:
                raise UserError(
                    f"this model is {kind.is_called}: it decodes one block at a time, and does not predict a position "
                    f"while text that comes first is masked. {_WAY_OUT}"
                )
            behind = range(column + 1, len(query.canvas.tokens))
            reach = order.reach[row, sources[row, column]]
            if any(at not in query.canvas.masked and bool(order.rank[row, at] > reach) for at in behind):
                raise UserError(
                    f"this model is {kind.is_called}: it decodes one block at a time, and a position does not see the "
                    f"text after its block. {_WAY_OUT}"
                )
