"""Methods: cells that differ only in numbers, and the names of methods and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from hydra.utils import get_class

from dllm.compose.parts import choice_of
from experiments.report.cells import Cell

WORD_OPTIONS = ("score", "positions", "alg")  # options whose words make another method
DEFAULT_WORDS = ("low_confidence", "entropy")  # of static and dream


@dataclass(frozen=True)
class Method:
    """Cells that differ in numbers only, ordered by useful tokens per forward."""

    model: str
    name: str
    cells: list[Cell]

    @property
    def differing(self) -> list[str]:
        """The names of the numbers in which the cells differ: one for a curve, more for a grid."""
        found = [numbers(cell.config) for cell in self.cells]
        keys = dict.fromkeys(key for mine in found for key in mine)
        return [key for key in keys if len({str(mine.get(key)) for mine in found}) > 1]

    def setting(self, cell: Cell) -> str:
        """The numbers in which the method's cells differ, or else the sampler's numbers that are not defaults."""
        mine = numbers(cell.config)
        shown = {key: mine[key] for key in self.differing if key in mine} or unusual(cell.config["sampler"])
        return ", ".join(f"{short(key)}={number(value)}" for key, value in shown.items()) or "defaults"

    def only(self, kept: Callable[[Cell], bool]) -> Method:
        """The method with the cells that pass."""
        return Method(self.model, self.name, [cell for cell in self.cells if kept(cell)])

    @property
    def is_reference(self) -> bool:
        """Whether this is the oracle, which knows the answer and is no method to choose."""
        return all("lossless" in cell.rows[0] for cell in self.cells)


def number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def short(key: str) -> str:
    return key.removeprefix("sampler.").replace("_", " ")


def numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The numeric options of sampler, blocks and cache, with dotted names."""
    out: dict[str, Any] = {}
    for group in ("sampler", "blocks", "cache"):
        out |= numbers_of(config[group], f"{group}.")
    return {**out, **({"gen_length": config["gen_length"]} if config["gen_length"] else {})}


def numbers_of(part: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in part.items():
        if isinstance(value, Mapping):
            out |= numbers_of(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[prefix + key] = value
    return out


def unusual(part: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The numbers of a part that are not its class's defaults."""
    defaults = signature(get_class(str(part["_target_"]))).parameters
    out: dict[str, Any] = {}
    for key, value in numbers_of({key: value for key, value in part.items() if key != "inner"}, "").items():
        out |= {} if key in defaults and defaults[key].default == value else {prefix + key: value}
    return {**(unusual(part["inner"], "inner ") if "inner" in part else {}), **out}


def words(part: Mapping[str, Any]) -> str:
    """A part's name with its options in words: ``static random``, ``prophet(localleap)``."""
    name = str(part["_target_"]).split(".")[-2]
    inner = f"({words(part['inner'])})" if "inner" in part else ""
    given = [value for key, value in part.items() if key in WORD_OPTIONS and value not in DEFAULT_WORDS]
    return " ".join([name + inner, *(value.replace("_", " ") for value in given)])


def methods(cells: Sequence[Cell]) -> list[Method]:
    """One for each model and way of decoding. Names contain blocks, cache and constraint where cells differ in them."""
    constraints = {constraint_name(cell) for cell in cells}
    blocks, caches = ({words(cell.config[group]) for cell in cells} for group in ("blocks", "cache"))
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        name = words(cell.config["sampler"])
        more = [words(cell.config[group]) for group, kinds in (("blocks", blocks), ("cache", caches)) if len(kinds) > 1]
        more += [constraint_name(cell)] if len(constraints) > 1 else []
        plain = [word for word in more if word not in ("none", "whole")]
        found.setdefault((cell.model, " + ".join([name, *plain])), []).append(cell)
    return [
        Method(model, name, sorted(group, key=lambda cell: (cell.measures.tpf, cell.folder.name)))
        for (model, name), group in sorted(found.items())
    ]


def constraint_name(cell: Cell) -> str:
    """The choice of a cell's constraint."""
    return choice_of("constraint", cell.config.get("constraint") or {})


def baseline(found: Sequence[Method]) -> Cell | None:
    """The cell of one token per forward, the most confident first."""
    cells = (cell for method in found for cell in method.cells)
    return next((cell for cell in cells if is_baseline(cell)), None)


def is_baseline(cell: Cell) -> bool:
    sampler = cell.config["sampler"]
    plain_cache = str(cell.config["cache"]["_target_"]).endswith(".NoCache")
    one = sampler.get("per_step", 1) == 1 and sampler.get("steps") is None
    free, static = constraint_name(cell) == "none", str(sampler["_target_"]).endswith(".Static")
    return free and static and one and plain_cache and sampler["score"] == "low_confidence"


def by_model(cells: Sequence[Cell]) -> dict[str, list[Method]]:
    out: dict[str, list[Method]] = {}
    for method in methods(cells):
        out.setdefault(method.model, []).append(method)
    return out
