"""Decisions as a conversation with the reader: canvases out, readings in, until every question is answered."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import torch

from dllm.common.coerce import coerce
from dllm.decisions.canvases import (
    SLOT_MODES,
    DecisionState,
    Laid,
    TooManyCanvases,
    default_pieces,
    laid_alone,
    laid_joint,
    layout_of,
    of_question,
)
from dllm.decisions.estimators import ESTIMATORS, Plan, SlotScores
from dllm.decisions.questions import QUESTION_TYPES, Question
from dllm.decisions.reading import Reading, ReadQuery
from dllm.decisions.results import Decisions, SlotDecision
from dllm.errors import TooLong, UserError, in_choices, in_range
from dllm.models.config import ModelConfig
from dllm.models.ids import Ids as SpecialIds
from dllm.prompts import Prompts

# Groups of queries, one for each question that is read by itself: a server in exact mode reads each apart.
Deciding = Generator[list[list[ReadQuery]], list[list[Reading]], Decisions]
ORDERS = ("surest",)
MAX_FREE = 256
LEAST, MOST = 1e-3, 1e3  # temperatures


@dataclass(frozen=True)
class DecisionOptions:
    """How questions are read. Raises UserError for what no reading has."""

    estimator: str = "local"  # see ``dllm.decisions.estimators``
    joint: bool = False  # all slots on one canvas, read in one forward
    order: str | None = None  # of a joint canvas: ``surest`` commits the surest slot and reads on (None: all at once)
    slot: str = "auto"  # open, closed or auto, see ``layout_of``
    free: int = 0  # masks after the template
    temperature: float | None = None  # divides the scores (None: that of the calibration, else 1)
    neutral: str | None = None  # a text in place of the state, whose scores are subtracted (None: nothing is)
    template: Sequence[str] | None = None  # of a joint canvas: texts and names of questions (None: a line for each)
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
        if self.order is not None:
            in_choices("order", self.order, ORDERS)
        for name in ("order", "template"):
            if getattr(self, name) is not None and not self.joint:
                raise UserError(f"{name} goes with joint=true, which lays all questions on one canvas. Add it.")
        if self.neutral is not None and not self.neutral.strip():
            raise UserError("neutral is empty. Give it a text without content, such as N/A.")


def deciding(
    prompts: Prompts, ids: SpecialIds, state: DecisionState, questions: Mapping[str, Question],
    options: DecisionOptions, most: int | None = None,
) -> Deciding:  # fmt: skip
    """Yields the queries to read, takes their readings, and returns the decisions. most: canvases that may be read at
    once (None: any number). Raises UserError, before anything is read, for questions that cannot be laid on a canvas of
    this model, and TooManyCanvases before these are made."""
    if not questions:
        raise UserError("there is no question. Ask at least one.")
    work = _Work(prompts, ids, options, most)
    for one in work.states(state):
        prompts.encode(one)  # refuses what is not a prompt before questions are put after it
    if not options.joint:
        plans = {}
        for name, question in questions.items():
            with of_question(name):
                plans[name] = work.plan(name, *[laid_alone(prompts, one, question) for one in work.states(state)])
        found = yield [plan.queries for _, plan in plans.values()]
        told = {
            name: work.decision(questions[name], laid, plan.finish(work.counted(one)))
            for (name, (laid, plan)), one in zip(plans.items(), found, strict=True)
        }
        return work.result(told)
    pieces = default_pieces(questions) if options.template is None else list(options.template)
    answers, decided = dict[str, SlotDecision](), dict[str, tuple[int, ...]]()
    while len(answers) < len(questions):
        left = [name for name in questions if name not in answers]
        work.canvases = 0
        laid_out = [laid_joint(prompts, one, questions, pieces, decided) for one in work.states(state)]
        plans = {}
        for name in left:
            with of_question(name):
                plans[name] = work.plan("", *[laid[name] for laid in laid_out])
        (readings,) = yield [[query for _, plan in plans.values() for query in plan.queries]]
        each = iter(work.counted(readings))
        now = {
            name: work.decision(
                questions[name], laid, plan.finish([next(each) for _ in plan.queries]), tuple(answers)
            ) for name, (laid, plan) in plans.items()
        }  # fmt: skip
        surest = max(now, key=lambda name: max(now[name].probabilities.values()))
        for name in left if options.order is None else [surest]:
            answers[name] = now[name]
            decided[name] = now[name].tokens[now[name].best]
    return work.result({name: answers[name] for name in questions})


class _Work:
    """What one request adds up while it is read."""

    def __init__(self, prompts: Prompts, ids: SpecialIds, options: DecisionOptions, most: int | None) -> None:
        self.prompts, self.ids, self.options, self.most = prompts, ids, options, most
        self.canvases = 0  # that were laid for the coming read, at least
        self.forwards = self.rows = self.query_tokens = self.cached_tokens = 0
        self.lengths: dict[str, int] = {}  # columns of every canvas

    def states(self, state: DecisionState) -> list[DecisionState]:
        """The state, and the neutral text if there is one."""
        return [state] if self.options.neutral is None else [state, self.options.neutral]

    def plan(self, canvas: str, laid: Laid, neutral: Laid | None = None) -> tuple[Laid, Plan]:
        """The plan of one question, with that of the neutral text. canvas: its name, by which its tokens count once."""
        plan = self._read(canvas, laid)
        if neutral is None:
            return laid, plan
        other = self._read(f"neutral {canvas}", replace(neutral, alternatives=laid.alternatives))

        def finish(found: Sequence[Reading]) -> SlotScores:
            own, prior = plan.finish(found[: len(plan.queries)]), other.finish(found[len(plan.queries) :])
            pairs = zip(own.scores, prior.scores, strict=True)
            return replace(own, scores=tuple(score - before for score, before in pairs))

        return laid, Plan([*plan.queries, *other.queries], finish)

    def _read(self, canvas: str, laid: Laid) -> Plan:
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

    def counted(self, readings: Sequence[Reading]) -> Sequence[Reading]:
        """The readings, whose costs are added up."""
        for name in ("forwards", "rows", "query_tokens", "cached_tokens"):
            setattr(self, name, getattr(self, name) + sum(getattr(one, name) for one in readings))
        return readings

    def decision(self, question: Question, laid: Laid, scores: SlotScores, given: tuple[str, ...] = ()) -> SlotDecision:
        fitted, asked = self.options.calibration.get(question.type), self.options.temperature
        temperature = asked if asked is not None else 1.0 if fitted is None else fitted
        return SlotDecision(
            question, scores, laid.alternatives, temperature, asked is None and fitted is not None, given
        )

    def result(self, answers: Mapping[str, SlotDecision]) -> Decisions:
        costs = (sum(self.lengths.values()), self.forwards, self.rows, self.query_tokens, self.cached_tokens)
        return Decisions(answers, self.prompts.name, *costs)


_WAY_OUT = "Use estimator=local with slot=open, at the end of the answer, one question to a canvas."


def sees_behind(config: ModelConfig) -> bool:
    """Whether a mask sees all given text after it."""
    return config.attention.block is None


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
        for column, _ in query.wanted:
            alone = predicted is not None and not bool(predicted[row, column])
            early = kind.block is not None and bool(pieces[row, column] > pieces[row, first])
            if alone or early:
                raise UserError(
                    f"this model is {kind.is_called}: it decodes one block at a time, and does not predict a position "
                    f"while text that comes first is masked. {_WAY_OUT}"
                )
            given = range(column + 1, len(query.canvas.tokens))
            reach = order.reach[row, sources[row, column]]
            if any(at not in query.canvas.masked and bool(order.rank[row, at] > reach) for at in given):
                raise UserError(
                    f"this model is {kind.is_called}: it decodes one block at a time, and a position does not see the "
                    f"text after its block. {_WAY_OUT}"
                )
