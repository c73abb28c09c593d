"""What ``dllm tune`` is asked: the promise, the cost, the budget, the reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, get_type_hints

from dllm.app.command_line.commands import is_option
from dllm.common.coerce import coerce
from dllm.common.errors import UserError

COSTS = ("seconds", "forwards", "computed_tokens")
TIME_UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class TuneOptions:
    """The options of its own, as ``NAME=VALUE``; all other words are settings of a decode."""

    max_loss: float = 0.01  # mean loss that a setting may have: of the score, or the share of other texts
    alpha: float = 0.05  # how often the promise may fail
    cost: str = (
        "seconds"  # what is to be small, per item: seconds (of CPU where a CPU decodes), forwards, computed_tokens
    )
    budget: str | None = None  # time that it may take: 90s, 20m, 2h; None: until it is done
    items: int | None = None  # of the task or the file, drawn by the seed; None: all
    reference: str | None = None  # settings that quality is compared with; None: one token a forward, no cache

    @property
    def seconds(self) -> float | None:
        """The budget."""
        if self.budget is None:
            return None
        number = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", self.budget)
        if number is None or float(number[1]) == 0:
            raise UserError(f"budget={self.budget} must be a time such as 90s, 20m or 2h. For fewer items set items=N.")
        return float(number[1]) * TIME_UNITS[number[2]]

    def check(self) -> None:
        """Raise UserError for a value out of range."""
        for name in ("max_loss", "alpha"):
            if not 0 < (value := getattr(self, name)) < 1:
                why = ": no number of items proves that nothing is lost" if value == 0 and name == "max_loss" else ""
                raise UserError(f"{name}={value:g} must lie between 0 and 1{why}. Set {name}=0.05.")
        if self.cost not in COSTS:
            raise UserError(f"cost={self.cost} must be one of {', '.join(COSTS)}. Choose one.")
        if self.items is not None and self.items < 1:
            raise UserError(f"items={self.items} must be at least 1.")
        _ = self.seconds


class Checked(Protocol):
    """Options of a command, as a dataclass."""

    def check(self) -> None:
        """Raise UserError for a value out of range."""


OptionsType = TypeVar("OptionsType", bound=Checked)


def split(words: Sequence[str], options_kind: type[OptionsType]) -> tuple[OptionsType, list[str]]:
    """The options among the words, and the other words. Raises UserError for a value of the wrong kind."""
    kinds, values, rest = get_type_hints(options_kind), dict[str, Any](), list[str]()
    for word in words:
        if is_option(word, kinds):
            name, _, text = word.partition("=")
            values[name] = coerce(name, _value(text, kinds[name]), kinds[name])
        else:
            rest.append(word)
    options = options_kind(**values)
    options.check()
    return options, rest


def _value(text: str, kind: Any) -> Any:
    """A word's value as YAML would read it."""
    if text == "null":
        return None
    for convert in (int, float) if kind in (float, int, int | None) else ():
        try:
            return convert(text)
        except ValueError:
            continue
    return text.strip("'\"")
