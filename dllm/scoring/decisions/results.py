"""What a decision says, in Python and as JSON in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from dllm.record.trace import viewer
from dllm.scoring.decisions.estimators import SlotScores, softmax
from dllm.scoring.decisions.questions import Question, ScoreQuestion, Value, text_of

LITTLE = 0.01  # of the mass: mini-llada has 0.5 and more where a question makes sense to it, and 1e-4 where it does not


@dataclass(frozen=True)
class SlotDecision:
    """The answer to one question. Probabilities are those of the alternatives given that one of them is the answer."""

    question: Question  # what was asked
    scores: SlotScores  # log-probabilities of the alternatives, and the mass that they have together
    tokens: tuple[tuple[int, ...], ...]  # of each alternative, as the tokenizer writes it
    temperature: float = 1.0  # divides the scores
    calibrated: bool = False  # whether the temperature was fitted on labelled items

    def __str__(self) -> str:
        """What people ask for: the choice, the probabilities and the mass, and the note."""
        shares = ", ".join(f"{value} {share:.3g}" for value, share in self.probabilities.items())
        mass = "" if self.mass is None else f"; mass {self.mass:.2g}"
        note = "" if self.note is None else f" Note: {self.note}"
        return f"{self.choice} ({shares}{mass}){note}"

    @property
    def note(self) -> str | None:
        """Why the probabilities mean little; None where the alternatives have mass, or it is unknown."""
        if self.mass is None or self.mass >= LITTLE:
            return None
        return (
            f"the alternatives have a mass of {self.mass:.2g} together, so their probabilities are noise: the model "
            "would write something else here. Ask by a template or instructions that lead to one of them."
        )

    @property
    def probabilities(self) -> dict[Value, float]:
        """By value, in the order of the question."""
        return dict(zip(self.question.values, softmax(self.scores.scores, self.temperature), strict=True))

    @property
    def best(self) -> int:
        """The place of the likeliest alternative; the first of equal ones."""
        values = list(self.probabilities.values())
        return values.index(max(values))

    @property
    def choice(self) -> Value:
        """The likeliest alternative."""
        return self.question.values[self.best]

    @property
    def mass(self) -> float | None:
        """Probability that any alternative is there: of ``local`` along the chosen path, of ``pseudo`` unknown."""
        return self.scores.mass[self.best]

    @property
    def confidence(self) -> float:
        """The probability of the chosen one, times the mass."""
        return self.probabilities[self.choice] * (1.0 if self.mass is None else self.mass)

    @property
    def probability(self) -> float:
        """The first alternative's probability: for a predicate, that of yes."""
        return self.probabilities[self.question.values[0]]

    @property
    def score(self) -> float:
        """The expected index, counted from 0."""
        return fsum(index * p for index, p in enumerate(self.probabilities.values()))

    @property
    def value(self) -> float | None:
        """The expected level, where levels are numbers."""
        numbers = self.question.numbers if isinstance(self.question, ScoreQuestion) else None
        pairs = zip(numbers or (), self.probabilities.values(), strict=False)
        return None if numbers is None else fsum(number * p for number, p in pairs)

    def to_json(self, name: str | None) -> dict[str, Any]:
        """OpenAI's answer, and what only we tell under ``diffusion``. name: None for a question that has none."""
        reply: dict[str, Any] = {"type": self.question.type, "name": name}
        pairs = list(enumerate(self.probabilities.items()))
        if self.question.type == "predicate":
            reply |= {"probability": self.probability}
        elif self.question.type == "choice":
            reply |= {"choice": self.choice, "probabilities": [{"value": v, "probability": p} for _, (v, p) in pairs]}
        else:
            levels = [{"value": at, "label": text_of(v), "probability": p} for at, (v, p) in pairs]
            reply |= {"score": self.score, "probabilities": levels}
        more: dict[str, Any] = {
            "mass": self.mass,
            "argmax_is_label": self.scores.likeliest[self.best],
            "logprobs": list(self.scores.logprobs),
            "tokens": [list(ids) for ids in self.tokens],
            "temperature": self.temperature,
            "calibrated": self.calibrated,
        }
        optional = (("value", self.value), ("note", self.note))
        more |= {key: entry for key, entry in optional if entry is not None}
        return {**reply, "confidence": self.confidence, "diffusion": more}


@dataclass(frozen=True)
class Decisions(Mapping[str, SlotDecision]):
    """The answers by name, and what they took."""

    answers: Mapping[str, SlotDecision]  # by the question's name
    model: str  # its name
    input_tokens: int  # of prompts and templates, once per canvas
    forwards: int  # of the network
    rows: int  # canvases that were computed
    query_tokens: int  # their columns
    cached_tokens: int = 0  # columns that were not computed, since another canvas had them
    more: Mapping[str, Any] = field(default_factory=dict)  # what a server adds to the costs
    default_names: frozenset[str] = frozenset()  # keys of questions to which a request gave no name

    def __getitem__(self, name: str) -> SlotDecision:
        return self.answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def _repr_html_(self) -> str:
        """In a notebook: the probabilities of each question's alternatives, as bars."""
        page: str = viewer("notebook").decisions_html(self)
        return page

    def to_json(self) -> dict[str, Any]:
        """The reply of POST /v1/decisions."""
        slots, cost = len(self.answers), ("forwards", "rows", "query_tokens", "cached_tokens")
        cached_input = min(self.cached_tokens, self.input_tokens)  # several canvases of a question count once
        usage = {
            "input_tokens": self.input_tokens,
            "output_tokens": slots,
            "total_tokens": self.input_tokens + slots,
            "input_tokens_details": {"cached_tokens": cached_input, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        answers = [entry.to_json(None if name in self.default_names else name) for name, entry in self.answers.items()]
        costs = {**{name: getattr(self, name) for name in cost}, **self.more}
        return {"object": "decision", "model": self.model, "answers": answers, "usage": usage, "diffusion": costs}
