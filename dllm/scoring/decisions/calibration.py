"""How far probabilities are from frequencies, and one temperature per model and type of question that mends it.

Guo et al. 2017, arXiv 1706.04599: scores are divided by a number that is fitted on labelled items. Their order, and so
accuracy, stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import fsum, log
from pathlib import Path

from dllm.common.errors import UserError, in_choices, in_range
from dllm.scoring.decisions.estimators import softmax
from dllm.scoring.decisions.questions import QUESTION_TYPES

LOW, HIGH = 0.5, 10.0  # temperatures; a fit of items without an error runs to 0, and does not carry over
MIN_ERRORS = 20
BINS = 10


@dataclass(frozen=True)
class LabelledScores:
    """Scores of one question's alternatives, and the place of the right one."""

    scores: Sequence[float]  # log-probability of each alternative
    truth: int  # place of the right one


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature, and what it rests on."""

    temperature: float  # by which scores are divided
    items: int  # it was fitted on that many
    nll_before: float  # mean of -log p of the right one, in nats
    nll_after: float  # mean of -log p of the right one, at this temperature


@dataclass(frozen=True)
class Quality:
    """How good probabilities are, measured against truth."""

    items: int  # how many have a truth
    accuracy: float  # share whose top alternative is the right one
    nll: float  # mean of -log p of the right one
    brier: float  # mean of the squared distance of the probabilities to the truth
    # mean distance of the top probability to how often it is right, over ten bins of equal width, weighed by their
    # items
    ece: float


def quality(items: Sequence[LabelledScores], temperature: float = 1.0) -> Quality:
    """The quality of labelled items under a temperature."""
    probabilities = [softmax(item.scores, temperature) for item in items]
    pairs = list(zip(probabilities, (item.truth for item in items), strict=True))
    tops = [(max(p), p.index(max(p)) == truth) for p, truth in pairs]
    bins = [[pair for pair in tops if min(int(pair[0] * BINS), BINS - 1) == number] for number in range(BINS)]
    apart = fsum(abs(fsum(p for p, _ in pair) - sum(right for _, right in pair)) for pair in bins)
    brier = fsum((p - (at == truth)) ** 2 for line, truth in pairs for at, p in enumerate(line))
    count = len(items)
    right = sum(hit for _, hit in tops)
    return Quality(count, right / count, nll(items, temperature), brier / count, apart / count)


def nll(items: Sequence[LabelledScores], temperature: float) -> float:
    """Mean negative log-probability of the right alternatives."""
    return -fsum(log(max(softmax(item.scores, temperature)[item.truth], 1e-300)) for item in items) / len(items)


def best_temperature(items: Sequence[LabelledScores]) -> float:
    """The temperature in [LOW, HIGH] with the least NLL: convex in 1 / T, so thirds of that interval are dropped."""
    low, high = 1 / HIGH, 1 / LOW
    while high - low > 1e-4:
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if nll(items, 1 / left) < nll(items, 1 / right) else (left, high)
    return 2 / (low + high)


def fit_temperature(kind: str, items: Sequence[LabelledScores]) -> TemperatureFit:
    """A temperature for a type of question. Raises UserError for items with fewer than 20 errors."""
    errors = sum(max(range(len(item.scores)), key=item.scores.__getitem__) != item.truth for item in items)
    if errors < MIN_ERRORS:
        raise UserError(
            f"{len(items)} labelled answers to questions of type {kind} hold {errors} errors, and a temperature needs "
            f"at least {MIN_ERRORS}. Give more items, or drop calibrate."
        )
    temperature = best_temperature(items)
    return TemperatureFit(temperature, len(items), nll(items, 1.0), nll(items, temperature))


def write_calibration(file: Path, model: str, fits: Mapping[str, TemperatureFit]) -> None:
    """Keep temperatures, by type of question."""
    content = {"model": model, "types": {kind: asdict(fit) for kind, fit in fits.items()}}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_calibration(file: str | Path, model: str) -> dict[str, float]:
    """Temperatures by type of question. Raises UserError for a file that holds none, or another model's."""
    try:
        content = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
        owner = content["model"]
        temperatures = {kind: float(entry["temperature"]) for kind, entry in content["types"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"calibration={str(file)!r} is not a file of task=decide calibrate=true. Name one.") from None
    if owner != model:
        raise UserError(f"calibration={str(file)!r} was fitted for {owner}, and this model is {model}. Fit it again.")
    for kind, temperature in temperatures.items():
        in_choices(f"calibration={str(file)!r}, type", kind, QUESTION_TYPES)
        in_range(f"calibration={str(file)!r}, temperature of {kind}", temperature, LOW, HIGH)
    return temperatures
