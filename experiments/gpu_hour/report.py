"""OUT/report.md: targets, tests, times, peers, memory, what failed, and how long all took beside its estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dllm.view.report.page_pieces import ReportTable, text
from experiments.gpu_hour.cells import PLAIN, TEXT
from experiments.gpu_hour.store import Outcome
from experiments.gpu_hour.targets import Figures, decodes, measured_cells, verdicts
from experiments.gpu_hour.work import Part

Parts = Mapping[str, Mapping[str, Any]]  # by name: identity and cells
NOT_MEASURED = ("failed", "too_large", "refused", "begun")


def write_report(found: Parts, plan: Mapping[str, Part], folder: Path) -> None:
    """Write the report and its pictures (where matplotlib is installed) into the folder."""
    pictures = drawn(cells_of(found), folder)
    title = "# The GPU hour\n"
    whole = [title, *body(found, {name: name for name in pictures}), *times(cells_of(found), plan)]
    (folder / "report.md").write_text("\n".join(whole))


def drawn(cells: Mapping[str, Mapping[str, Outcome]], folder: Path) -> list[str]:
    """Draw what can be drawn. Returns the names of the pictures."""
    if not any("figures" in one for found in (decodes(cells), cells.get("kernels", {})) for one in found.values()):
        return []
    try:
        from experiments.gpu_hour.plots import draw
    except ImportError:  # matplotlib is not installed: the tables are enough
        return []
    return draw(cells, folder)


def cells_of(found: Parts) -> dict[str, dict[str, Outcome]]:
    return {name: part["cells"] for name, part in found.items()}


def body(found: Parts, pictures: Mapping[str, str]) -> list[str]:
    """Everything but title and durations, as Markdown. pictures: their paths by name."""
    cells = cells_of(found)
    out = [
        header(found),
        "## Targets\n",
        targets(cells, device_of(found)),
        *tests(cells.get("checks", {}) | cells.get("tests", {})),
    ]
    steps = decodes(cells)
    for model in dict.fromkeys(one["model"] for one in measured_cells(steps)):
        out += [f"## Turns of {model}\n", *turns(steps, model)]
    out += [f"![{name}]({path})\n" for name, path in pictures.items()]
    out += [*equal_texts(cells.get("texts", {})), *peers(cells.get("peers", {})), *streams(cells.get("streams", {}))]
    return [*out, *kernels(cells.get("kernels", {})), *profiles(cells.get("profile", {})), *missing(cells)]


def device_of(found: Parts) -> str:
    return next((str(part["identity"]["device"]) for part in found.values()), "")


def header(found: Parts) -> str:
    """Where the numbers come from."""
    if not found:
        return "Nothing was measured yet.\n"
    one = next(iter(found.values()))["identity"]
    names = ("torch", "triton", "torchao", "cuda", "python")
    versions = ", ".join(f"{name} {one[name]}" for name in names if one[name])
    commit = f"commit {one['commit'][:10]}, " if one["commit"] else ""
    said = f"Measured on {one['device']}; {versions}; {commit}code {one['code']}."
    rates = cells_of(found).get("machine", {}).get("rates", {}).get("figures")
    if rates:
        peak = f" (data sheet: {rates['peak'] / 1e12:.2f})" if rates["peak"] else ""
        said += (
            f" A large copy reaches {rates['bytes'] / 1e12:.2f} TB/s{peak}, a large product "
            f"{rates['flops'] / 1e12:.0f} TFLOP/s."
        )
        said += f" **Our kernels did not run: {rates['obstacle']}**" if rates["obstacle"] else ""
    return said + (" **A dry run: its times mean nothing.**\n" if one["dry"] else "\n")


def targets(cells: Mapping[str, Mapping[str, Outcome]], device: str) -> str:
    rows = [[one.target, one.found, one.word] for one in verdicts(cells, device)]
    return ReportTable(["target", "found", ""], rows, words=3).markdown()


def tests(cells: Mapping[str, Outcome]) -> Iterable[str]:
    """Counts of the tests, and their failures."""
    if not cells:
        return
    rows = []
    for name, one in cells.items():
        counts, notes = one.get("figures", {}), one.get("figures", {}).get("notes", {})
        words = one.get("failed") or "; ".join(f"{note} ({count})" for note, count in notes.items())
        rows.append([name, str(counts.get("passed", "")), str(counts.get("skipped", 0) or ""), words.replace("|", "/")])
    yield "## Tests on the device\n"
    yield ReportTable(["tests", "passed", "skipped", "said"], rows, words=1).markdown()


HEADS = ["cache", "runtime", "batch", "forwards/s", "tokens/s", "text tokens/s", "p50 ms", "of the weights' floor",
         "replayed", "drifted", "in layer", "GB"]  # fmt: skip


def turns(steps: Mapping[str, Outcome], model: str) -> Iterable[str]:
    """One table of a model: all settings, by cache and batch."""
    every = measured_cells(steps, model=model)
    order = sorted(every, key=lambda one: (one["cache"], one["weights"], one["batch"], one["runtime"]))
    yield ReportTable(HEADS, [row(one) for one in order], words=2).without_empty().markdown()
    if model == TEXT:
        yield (
            "mini-llada in LLaDA-8B's shape, `sampler=confidence`: the first decode of prompts whose shapes were "
            "decoded before. Text tokens are those up to the end. Replayed: turns that found their recording. "
            "Drifted: turns of a row that computed all columns from a layer on.\n"
        )
    if len({one["weights"] for one in every}) > 1:
        yield "The floors of narrow weights are those of bfloat16: more than 100 % is what narrow weights gain.\n"


def row(one: Figures) -> list[str]:
    cache = one["cache"] if one["weights"] in PLAIN else f"{one['cache']}, {one['weights']}"
    return [
        cache,
        runtime_of(one),
        str(one["batch"]),
        text(one["forwards_per_s"]),
        text(one["tokens_per_s"]),
        text(one["useful_per_s"]),
        text(one["p50_ms"], 2),
        percent(one["share_weights"]),
        percent(one.get("hits")),
        percent(one.get("drifted")),
        text(one.get("drift_layer")),
        text(one["peak_gb"]),
    ]


def runtime_of(one: Figures) -> str:
    return str(one["runtime"]) if one["runtime"] == "eager" else f"{one['runtime']}, lag {one['lag']}"


def equal_texts(cells: Mapping[str, Outcome]) -> Iterable[str]:
    """How many texts the inflated model shares with the small one."""
    for one in cells.values():
        if found := one.get("figures", {}).get("texts"):
            yield f"{one['figures']['equal']} of {found} texts are those of mini-llada itself in the same numbers.\n"


def peers(cells: Mapping[str, Outcome]) -> Iterable[str]:
    """Fast-dLLM beside ours."""
    rows = [
        [
            one["cache"],
            "0.9" if one["rule"] == "threshold" else "one token",
            text(one["ours_per_s"]),
            text(one["theirs_per_s"]),
            text(one["ratio"], 2),
            text(one["ours_forwards"]),
            text(one["theirs_forwards"]),
            f"{one['equal']} of {one['prompts']}",
        ]
        for one in measured_cells(cells)
    ]
    if rows:
        heads = [
            "cache",
            "threshold",
            "ours, tokens/s",
            "Fast-dLLM, tokens/s",
            "ratio",
            "our forwards",
            "their forwards",
            "same answers",
        ]
        yield "## Beside Fast-dLLM, the same tensors and prompts\n"
        yield ReportTable(heads, rows, words=2).markdown()


def streams(cells: Mapping[str, Outcome]) -> Iterable[str]:
    """The server's scheduler."""
    rows = [
        [
            str(one["batch"]),
            text(one["tokens_per_s"]),
            text(one["requests_per_s"], 2),
            text(one["p50_s"], 2),
            text(one["p95_s"], 2),
        ]
        for one in measured_cells(cells)
    ]
    if rows:
        yield "## Streams of the server's scheduler\n"
        heads = ["streams", "text tokens/s", "requests/s", "p50 s", "p95 s"]
        yield ReportTable(heads, rows, words=0).markdown()


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def kernels(cells: Mapping[str, Outcome]) -> Iterable[str]:
    """Times of every operation by plain PyTorch and by our kernel, and what share of the ceiling ours reaches."""
    rows = [
        [
            name,
            shape,
            *(text(ways[way]["p50_us"], 1) if way in ways else "" for way in ("torch", "triton")),
            percent(ways["triton"]["share"]) if "triton" in ways else "",
        ]
        for name, one in cells.items()
        for shape, ways in one.get("figures", {}).items()
    ]
    if rows:
        yield "## Kernels\n"
        yield ReportTable(["operation", "shape", "torch us", "triton us", "of the ceiling"], rows, words=2).markdown()


def profiles(cells: Mapping[str, Outcome]) -> Iterable[str]:
    """Where the time of a turn goes."""
    for one in cells.values():
        if "figures" not in one:
            continue
        found = one["figures"]
        yield f"## A turn of {found['cell']}\n"
        yield (
            f"{found['turn_ms']:.2f} ms a turn under the profiler; the device waits "
            f"{found['idle_ms']:.2f} ms; {found['launches']:.0f} launches.\n"
        )
        rows = [
            [f"`{line['name']}`".replace("|", "/"), text(line["ms"], 3), text(line["launches"])]
            for line in found["kernels"]
        ]
        yield ReportTable(["kernel", "ms a turn", "launches a turn"], rows, words=1).markdown()


def missing(cells: Mapping[str, Mapping[str, Outcome]]) -> Iterable[str]:
    """What was not measured, and why."""
    rows = [
        [part, name, kind.replace("_", " "), str(one[kind]).replace("|", "/").replace("\n", " ")]
        for part, found in cells.items()
        for name, one in found.items()
        for kind in NOT_MEASURED
        if kind in one
    ]
    if rows:
        yield "## Not measured\n"
        yield ReportTable(["part", "cell", "", "why"], rows, words=4).markdown()


def times(cells: Mapping[str, Mapping[str, Outcome]], plan: Mapping[str, Part]) -> Iterable[str]:
    """Seconds of each part: expected by arithmetic, and taken."""
    rows = []
    for name, part in plan.items():
        taken, done = cells.get(name, {}), len(part.tasks)
        spent = sum(one.get("seconds", 0.0) for one in taken.values())
        rows.append([name, str(done), f"{part.seconds:.0f}", str(len(taken)), text(spent, 0)])
    total = sum(part.seconds for part in plan.values())
    yield "## Seconds\n"
    yield ReportTable(["part", "cells", "expected s", "done", "taken s"], rows, words=1).markdown()
    yield f"Expected in all, for an H100 of 80 GB: {total:.0f} s, which is {total / 60:.0f} minutes.\n"
