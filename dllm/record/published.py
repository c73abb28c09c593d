"""What a paper reports, beside what a run of ours found (``experiment=published/METHOD``).

The file of such an experiment holds the figures as data, under ``published``: where they are from, and rows of them.
``settings`` of a row is what a user types after the experiment to decode with that row's settings; of the first row it
is empty. A figure that the source does not give has no key.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dllm.common.errors import COMMAND_LINE
from dllm.compose.config_choices import choices
from dllm.compose.naming import CHOICES
from dllm.compose.parts import composed, plain_config
from dllm.record.frame import typed_settings

FIGURES = ("score", "tokens_per_second", "tpf", "nfe", "speedup")
# Settings that say where and how a run is computed: they make no other run of it than the published one.
WHERE = frozenset(("model.path", "model.device", "seed", "runtime", "lag", "kernels", "allow_code", "task.allow_code"))
NARROWEST = 2048  # width of the narrowest model in these tables, LLaDA2-mini; the demo models have 128


@dataclass(frozen=True)
class PaperRow:
    source: str  # paper and table
    settings: str = ""  # what leads to it, as users type it
    score: float | None = None  # percent
    tokens_per_second: float | None = None  # as printed; None: the table has none
    tpf: float | None = None  # tokens per forward
    nfe: float | None = None  # forwards of a sample
    speedup: float | None = None  # times one token per step. None: not reported
    hardware: str = ""  # on which the paper measured
    counted: str = ""  # which tokens the speed counts
    benchmark: str = ""  # whose questions were asked, if not our task's
    note: str = ""  # what else a reader must know of the row
    unlike: tuple[str, ...] = ()  # why the run beside it may not be compared, in words; empty: it may

    @property
    def has_figures(self) -> bool:
        return any(getattr(self, name) is not None for name in FIGURES)

    def sentences(self) -> list[str]:
        """Where the figures are from, and whether the run may be compared with them."""
        words = [self.source, self.hardware, self.counted and f"tokens/s count {self.counted}"]
        if self.speedup is not None:
            words.append(f"{self.speedup:g} times as fast as one token per step")
        lines = [f"published: {'; '.join(filter(None, words))}.", self.note and f"{self.note}."]
        if self.unlike and self.has_figures:
            lines.append(f"Not comparable: {'; '.join(self.unlike)}.")
        elif self.has_figures:
            lines.append("The settings are the published ones.")
        return [line for line in lines if line]


def rows_of_table(table: Mapping[str, Any]) -> list[PaperRow]:
    """The rows of a file's table. Where a source gives no figures there is one row, without any."""
    shared = {key: value for key, value in table.items() if key not in ("experiment", "rows")}
    return [_row({**shared, **row}) for row in table["rows"] or [{}]]


def _row(entries: Mapping[str, Any]) -> PaperRow:
    """unlike of a file is one sentence: why no run of ours can be compared. benchmark: another than the task's."""
    reasons = [entries.get("unlike"), (name := entries.get("benchmark")) and f"their questions are those of {name}"]
    return PaperRow(**{**entries, "unlike": tuple(filter(None, reasons))})


def beside(config: Mapping[str, Any], width: int | None, architecture: str | None = None) -> PaperRow | None:
    """The published row whose settings are nearest to a run's; None where the run names no paper.

    width, architecture: of the network that decoded; None where they are not known. They tell a demo model, and a
    checkpoint of another kind, that replaces the published one.
    """
    table = config.get("published")
    if not table:
        return None
    rows, name = rows_of_table(table), str(table["experiment"])
    if name not in choices("experiment"):
        return replace(rows[0], unlike=(f"this version of dllm has no experiment={name}",))
    ours, reasons = comparable_settings(config), []
    if width is not None and width < NARROWEST:
        reasons = [f"a demo model, {width} wide, not {NARROWEST} or more"]
    expected = config["model"].get("expects", config["model"].get("architecture"))  # None: older version, or any
    if architecture and expected and architecture != expected:
        reasons.append(f"a checkpoint of {architecture} under model={config['model']['name']}, which is of {expected}")
    apart = [differences(ours, settings_of_row(name, row.settings)) for row in rows]
    nearest = min(range(len(rows)), key=lambda number: len(apart[number]))
    return replace(rows[nearest], unlike=(*rows[nearest].unlike, *reasons, *apart[nearest]))


@lru_cache
def settings_of_row(experiment: str, settings: str) -> Mapping[str, Any]:
    """The settings of a row, by the names that users type."""
    return comparable_settings(plain_config(composed([f"experiment={experiment}", *shlex.split(settings)])))


def comparable_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in which a run must agree with a published one."""
    # Grids became runs of their own; two names for one part do not differ.
    mine = {key: value for key, value in config.items() if key not in ("grids", CHOICES)}
    return {key: value for key, value in typed_settings(mine) if key not in WHERE}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What differs, in words. Where parts, tasks or models differ, their options are not listed. An option that
    one side lacks belongs to another part, or to another version of dllm."""
    both = [key for key in {**theirs, **ours} if "." not in key or (key in ours and key in theirs)]
    keys = [key for key in both if ours.get(key) != theirs.get(key)]
    names = {key for key in keys if "." not in key}
    keys = [key for key in keys if key.replace("/", ".").partition(".")[0] not in names - {key}]
    text = COMMAND_LINE.value
    return [f"{key}={text(ours.get(key))}, not {text(theirs.get(key))}" for key in keys]
