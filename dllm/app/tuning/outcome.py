"""What a tuning leaves: a table, a picture of the front, a page, ``tuned.yaml``, and a paragraph in plain words."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dllm.app.runs.destinations import writing
from dllm.app.tuning.decoded import DecodedLosses
from dllm.app.tuning.space import SettingWords
from dllm.common.atomic_write import write_whole
from dllm.common.terminal import say
from dllm.compose.tuned import tuned_text
from dllm.record.measures import wilson
from dllm.scoring.promise import CertifiedChoice, Promise, mean_loss
from dllm.view.report.page_pieces import ReportTable

TUNED_HEADS = ("setting", "what became of it", "items", "loss %", "95 %", "{}", "x reference", "p")
PRINTED = (0, 1, 3, 5, 7)  # columns for a terminal
REFERENCE = " (reference)"
COST_UNITS = {
    "seconds": "seconds an item",
    "forwards": "forwards an item",
    "computed_tokens": "computed tokens an item",
}


@dataclass(frozen=True)
class Tuned:
    """What a run of ``tune`` leaves."""

    folder: Path  # with tuned.yaml, table.csv, front.png and index.html
    settings: SettingWords  # the chosen ones, as NAME=VALUE; the reference's where none is certified
    certified: bool  # whether a setting other than the reference is promised
    report: str  # the paragraph in plain words


@dataclass(frozen=True)
class TuneOutcome:
    """A choice, with what it was made from."""

    table: DecodedLosses  # losses and costs
    choice: CertifiedChoice  # what was chosen, and how
    promise: Promise  # what is promised
    late: bool  # the time was up before the search ended
    origin: Mapping[str, Any]  # what goes into ``tuned.yaml`` beside the settings

    @property
    def chosen(self) -> int:
        """The setting that is taken: the reference where none is certified."""
        return self.choice.chosen or 0

    @property
    def certified(self) -> bool:
        return self.chosen != 0

    def write(self, folder: Path) -> Tuned:
        """Write all files, and print the table with the paragraph."""
        report, table = self.report(), self.report_table()
        with writing(folder):
            write_whole(folder / "tuned.yaml", tuned_text(self.table.settings[self.chosen], self.origin))
            write_whole(folder / "table.csv", table.csv())
            write_whole(folder / "index.html", page(report, table, self.picture(folder / "front.png")))
        Console().print(tested_table(table))
        say(report)
        say(f"Setting: {folder / 'tuned.yaml'}\nPage: {folder / 'index.html'}")
        return Tuned(folder, self.table.settings[self.chosen], self.certified, report)

    def report_table(self) -> ReportTable:
        """A line for each setting: those that got furthest first."""
        p = {test.setting: test.p for test in self.choice.tested}
        rows = [self._line(k, p.get(k)) for k in sorted(range(len(self.table.settings)), key=self._rank)]
        heads = [head.format(COST_UNITS[self.table.cost]) for head in TUNED_HEADS]
        bright = frozenset(number for number, row in enumerate(rows) if row[1].startswith("taken"))
        return ReportTable(heads, rows, 2, bright)

    def _rank(self, k: int) -> tuple[int, float, int]:
        order = [test.setting for test in self.choice.tested]
        stages = (order, list(self.choice.order), list(self.choice.kept), list(self.table.rows))
        stage = next((number for number, stage in enumerate(stages) if k in stage), len(stages))
        return stage + (k in self.table.out), -order.index(k) if k in order else 0.0, k

    def _line(self, k: int, p: float | None) -> list[str]:
        losses = self.table.losses(k, 0, self.table.items) if k in self.table.rows else []
        label = self.table.label(k) + (REFERENCE if k == 0 else "")
        if not losses:
            return [label, self.fate(k), *[""] * 6]
        low, high = interval(losses, self.promise.binary) if k else (0.0, 0.0)
        cost, base = self.table.costs_beside_reference(k)
        p_text = "" if p is None or k == 0 else f"{p:.2g}"
        loss, ends = f"{100 * mean_loss(losses):.2f}", f"{100 * low:.1f} to {100 * high:.1f}"
        ratio = f"{base / cost:.2f}" if cost else ""
        return [label, self.fate(k), str(len(losses)), loss, ends, f"{cost:.4g}", ratio, p_text]

    def fate(self, k: int) -> str:
        """What became of a setting, in words."""
        if k in self.table.out:
            return f"left out: {self.table.out[k]}"
        tested = {test.setting: test.p for test in self.choice.tested}
        mark = "taken" if k == self.chosen else ""
        if k in tested:
            why = "certified" if tested[k] <= self.promise.alpha else "not certified"
            return ", ".join(filter(None, (mark, why)))
        if mark:
            return "taken: nothing faster is certified"
        if k in self.choice.order:
            return "not tested: one before it failed" if not self.late else "not tested: the time was up"
        if k in self.choice.kept:
            return "another is safer and costs less" if not self.late else "the time was up"
        return "dropped in the search"

    def report(self) -> str:
        """What was promised, of which prompts, and what was not."""
        promise, table = self.promise, self.table
        share, sure = f"{100 * promise.allowed:g} %", f"{100 * (1 - promise.alpha):g} %"
        loss = (
            f"at most {share} of its answers are other texts"
            if promise.binary
            else f"its score is at most {share} lower"
        )
        unit = COST_UNITS[table.cost].removesuffix(" an item").replace("_", " ")
        if self.certified:
            tested = next(test for test in self.choice.tested if test.setting == self.chosen)
            cost, base = table.costs_beside_reference(self.chosen)
            sentence = (
                f"Taken: {table.label(self.chosen)}. It takes {cost:.4g} {unit} an item, and the reference, "
                f"{table.label(0)}, {base:.4g}. Promised with {sure} confidence: on prompts like these {loss} than the "
                f"reference's. Measured on {len(tested.losses)} items that served no search: "
                f"{100 * mean_loss(tested.losses):.2f} %."
            )
        else:
            sentence = f"Nothing is certified, so the reference is taken: {table.label(0)}. {self.items_advice()}"
        cut = " The time was up before all settings were tested." if self.late or self.table.cut else ""
        speed = " Seconds are of this machine." if table.cost == "seconds" else ""
        return f"{sentence}{cut} Not promised: other prompts, other models, other lengths of answers.{speed}"

    def items_advice(self) -> str:
        """How many more items would do."""
        failed = next((test for test in self.choice.tested if test.p > self.promise.alpha), None)
        if failed is None:
            return "No setting that costs less was left to test."
        name, loss = self.table.label(failed.setting), 100 * mean_loss(failed.losses)
        count = self.promise.items_needed(failed.losses)
        if count is None:
            return f"The safest setting, {name}, loses {loss:.2f} % on the confirming items: more of them would not do."
        total = count + count // 2
        return f"If {name} keeps losing {loss:.2f} %, {count} confirming items would do: about {total} in all."

    def picture(self, file: Path) -> Path | None:
        """The front: loss against cost. None without matplotlib."""
        if find_spec("matplotlib") is None:
            return None
        from dllm.view.report.front_picture import draw_front

        points = []
        for k in self.table.rows:
            losses = self.table.losses(k, 0, self.table.items)
            if k not in self.table.out and losses:
                cost, _ = self.table.costs_beside_reference(k)
                points.append((k, mean_loss(losses), interval(losses, self.promise.binary) if k else (0.0, 0.0), cost))
        if not any(k == self.chosen for k, *_ in points):
            return None
        draw_front(file, points, self.choice, self.chosen, self.promise.allowed, COST_UNITS[self.table.cost])
        return file


def tested_table(table: ReportTable) -> Table:
    """For a terminal: the settings that were tested and the reference, in the columns that matter."""
    out = Table(box=None, header_style="bold")
    for number, at in enumerate(PRINTED):
        head = "cost" if at == TUNED_HEADS.index("{}") else table.heads[at]  # its unit is in the paragraph
        out.add_column(head, justify="left" if number < 2 else "right", no_wrap=number > 1)
    for number, row in enumerate(table.rows):
        if "certified" in row[1] or row[1].startswith("taken") or row[0].endswith(REFERENCE):
            cells = [row[at].partition(":")[0] for at in PRINTED]
            out.add_row(*map(Text, cells), style="bold" if number in table.bright else "")
    return out


def interval(losses: list[float], binary: bool) -> tuple[float, float]:
    """The 95 % interval of a mean loss: Wilson's where losses are 0 or 1, else normal, within [-1, 1]."""
    if binary:
        return wilson(sum(losses), len(losses))
    centre, count = mean_loss(losses), len(losses)
    half = 1.96 * sqrt(mean_loss([(loss - centre) ** 2 for loss in losses]) / max(1, count - 1))
    return max(-1.0, centre - half), min(1.0, centre + half)


def page(report: str, table: ReportTable, picture: Path | None) -> str:
    """One page that needs no other file."""
    image = ""
    if picture is not None:
        data = b64encode(picture.read_bytes()).decode()
        image = f'<img alt="Loss against cost of each setting" src="data:image/png;base64,{data}">'
    style = (
        ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;"
        "padding:0 1rem}.t{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}td,th{padding:.25rem .6rem;"
        "border-bottom:1px solid #8884;text-align:left}.n{text-align:right;white-space:nowrap}.bright{font-weight:700}"
        "img{max-width:100%;background:#fff}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>dllm tune</title><style>{style}</style><h1>The fastest setting that is good enough</h1>"
        f"<p>{escape(report)}</p>{image}<div class=t>{table.html()}</div></html>\n"
    )
