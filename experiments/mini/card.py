"""The card of a mini model from its figures: ``python -m experiments.mini.card FOLDER`` writes FOLDER/README.md.

Reads scores.json (what ``experiments.mini.evaluate`` found) and training.json, or, for OUT/checkpoint, which
``experiments.distill`` left, OUT/report.json. ``--again`` measures parts again and prints their tables instead, for
``experiments.reproduce``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from safetensors import safe_open

from dllm import load
from dllm.common.errors import UserError
from dllm.models.weights.checkpoint_path import locate
from dllm.models.weights.shipped import shipped_models
from dllm.models.weights.weights import read_model_config
from dllm.tasks.mini import tasks
from experiments.distill.decoding import LABELS
from experiments.mini.data import ALONE, MIXES, TURN, Mix
from experiments.mini.evaluate import COUNTS, LONG, SEED, Asked, Right, weights_digest
from experiments.mini.evaluate import PARTS as MEASURES
from experiments.mini.masks import BLOCK
from experiments.mini.recipe import recipe_of
from experiments.support import markdown
from experiments.support.markdown import percent
from experiments.support.scripts import refusing

DIFFUSION = "A masked diffusion language model"


def masked(mix: Mix) -> str:
    """What a masked model learnt from."""
    late = mix.later or mix
    since = f"From {100 * TURN:.0f} % of the run on, " if mix.later else ""
    further, once, alone, kept, frozen = (
        f"{100 * share:.0f} of 100" for share in (sum(late.further.values()), late.at_once, ALONE, mix.kept, mix.frozen)
    )
    blocks = (
        f"{frozen} rows are masked in a part of one block of 4 to 32\ntokens and after it, and "
        "what is outside the block does not see what is committed in it.\n"
    )
    return (
        f"Loss: cross entropy of masked answer positions. In {alone} rows\nthe prompt's positions do not see the "
        f"answer's, and in {kept} committed tokens do not see later ones, so that caches\nmay freeze them. "
        f"{blocks if mix.frozen else ''}{since}{further} requests that are not plain follow further wordings\n("
        + ", ".join(f"`{source}_wordings.txt`" for source in late.further)
        + " of `dllm/tasks/mini`, one in six of them is held back for measuring), and\n"
        f"{once} answers of tasks with one right answer are masked from the start of a block of {BLOCK} tokens on."
    )


CLOSING = (
    "Tasks with one right answer keep their score when many tokens are committed at once; tasks whose tokens depend on "
    f"each\nother ({', '.join(tasks.FREE)}) lose it."
)
OWN, NEXT = "the mask predicts its own position", "the output at position i - 1 predicts the token at i"


@dataclass(frozen=True)
class About:
    """What a card says of a model: what it is, its family, the family's layout, and what it learnt from."""

    kind: str
    family: str
    layout: str
    learnt: str = ""


ABOUT = {
    "mini-llada": About(DIFFUSION, "LLaDA", f"no biases, untied head, {OWN}", masked(MIXES["wide"])),
    "mini-dream": About(DIFFUSION, "Dream", f"biases on q, k and v, {NEXT}", masked(MIXES["adapted"])),
    "mini-llada-distilled": About(DIFFUSION, "LLaDA", f"no biases, untied head, {OWN}"),
    "mini-ar": About(
        "An autoregressive language model",
        "NBDiff",
        f"blocks of one column, no biases, {NEXT}",
        "Loss: cross entropy of each token of the answer.",
    ),
    "mini-wedlm": About(
        DIFFUSION,
        "WeDLM",
        f"causal, known tokens before masks, no biases and no norms of q and k, {OWN}",
        "Loss: cross entropy of masks in blocks of 16, over the\nshare of a block that is masked, and as much of the "
        "clean text's next tokens (arXiv 2512.22737).",
    ),
    "mini-nbdiff": About(
        DIFFUSION,
        "NBDiff",
        f"causal outside the block of 32 that is decoded, no biases, {NEXT}",
        "Loss: cross entropy of masks in blocks that\ngrow from 2 to 32 columns, and half as much of the clean text's "
        "next tokens (arXiv 2512.06776).",
    ),
}
PARTS = {
    "way": ("Ways to decode", "Those of `experiments.mini.decoders`."),
    "speed": (
        "Tokens a step",
        "In blocks of 32 tokens, which short answers are, the most confident positions first. In one "
        "block long\nanswers lose more: the ends of text after an answer look surest, and those that are committed "
        "too early cut it.",
    ),
    "wording": (
        "Wordings",
        "One token a step. As training asks all models (`plain`, `trained`), as it asks mini-llada and "
        "mini-dream besides (`more`, `many`), and as it asks none (`unseen`, of the same writers; `others`, of\n"
        "writers of whom training sees nothing; `strange` ones hold a word that no request of training has).",
    ),
    "names": (
        "Names",
        "One token a step. Known and new names are one token each, spelt and unseen ones three or four; new "
        "and unseen ones were never trained on. Canvases of 64 and 256 tokens, since spelt names are longer.",
    ),
    "size": ("Sizes", "One token a step; names of a list, letters of a square, people."),
    "canvas": ("Canvases", "sampler=confidence at 0.9, blocks of 32, by the length of the canvas in tokens."),
    "cache": ("Caches", "sampler=confidence at 0.9; caches that go by blocks with blocks of 8, 16 and 32."),
    "careful": ("Caches, one token a step", "Caches that go by blocks, in blocks of 32."),
    "savings": ("What caches save", "Answers of 128 tokens, one token a step, batch 1, one thread. Every tenth of"),
}


def cell(right: Sequence[float] | None) -> str:
    """Per cent right with the 95 % interval; a dash where nothing was measured."""
    return percent(right) if right else "-"


def mean_of(of: Right, names: Sequence[str]) -> str:
    """The mean over tasks, in per cent, with the 95 % interval from the tasks' own variances: each with two right and
    two wrong answers more (Agresti and Coull 1998), since twenty right answers of twenty prove no 100 %."""
    found = [of[name] for name in names if name in of]
    if not found:
        return "-"
    shares = [((sum(right) + 2) / (len(right) + 4), len(right) + 4) for right in found]
    error = sum(share * (1 - share) / count for share, count in shares) ** 0.5 / len(found)
    return f"{100 * fmean(map(fmean, found)):.1f} ±{196 * error:.1f}"


def table(right: Mapping[str, Right]) -> str:
    """A Markdown table: tasks down, settings across, the means of the short and of the long tasks last."""
    rows = [
        [task, *(cell(of.get(task)) for of in right.values())]
        for task in tasks.TASKS
        if any(task in of for of in right.values())
    ]
    lengths = (("short answers", tasks.SHORT_ANSWERS), ("long answers", tasks.LONG_ANSWERS))
    rows += [[f"mean, {name}", *(mean_of(of, of_these) for of in right.values())] for name, of_these in lengths]
    return markdown.table(["task", *right], rows)


def paired(of: Right, none: Right) -> tuple[float, list[str]]:
    """The mean loss against ``none`` in points, and the tasks whose 95 % interval of it is above 6 points."""
    losses, bad = [], []
    for task, right in none.items():
        differences = [before - after for before, after in zip(right, of[task], strict=True)]
        mean = fmean(differences)
        half = 1.96 * stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
        losses.append(100 * mean)
        bad += [task] if 100 * (mean - half) > 6 else []
    return fmean(losses), bad


def cache_table(right: Mapping[str, Right]) -> str:
    """A row for each cache and block length: both means, and what it loses against no cache in the same blocks."""
    lines = [
        "| cache, blocks | short answers | long answers | mean loss, points | tasks that surely lose over 6 |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for setting, of in right.items():
        none = right[f"none {setting.split()[1]}"]
        loss, bad = paired(of, none)
        means = " | ".join(mean_of(of, names) for names in (tasks.SHORT_ANSWERS, tasks.LONG_ANSWERS))
        lines.append(f"| {setting} | {means} | {loss:.1f} | {', '.join(bad) or '-'} |")
    return "\n".join(lines)


def savings_table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Query tokens and seconds of a sample, and the share that is left of both against no cache in the same blocks."""
    rows = []
    for setting, one in found.items():
        none = found[f"none {setting.split()[1]}"]
        shares = [f"{100 * one[key] / none[key]:.0f} %" for key in ("query_tokens", "seconds")]
        rows.append((setting, f"{one['query_tokens']:,.0f}", shares[0], f"{one['seconds']:.2f}", shares[1]))
    return markdown.table(("cache, blocks", "query tokens", "left", "seconds", "left"), rows)


def section(name: str, part: Mapping[str, Any]) -> str:
    title, said = PARTS[name]
    tables: dict[str, Callable[[Any], str]] = {"cache": cache_table, "careful": cache_table, "savings": savings_table}
    made = tables.get(name, table)(part["right"])
    items = f"{part['count']:,} held-out items" + (" of each size" if name == "size" else " a task")
    items += f" ({part['long']} where answers are long)" if part.get("long") else ""
    return f"### {title}\n\n{said} {items}, seed {part['seed']}.\n\n{made}\n"


def card(name: str, made: Mapping[str, Any], trained: str, scores: Mapping[str, Any]) -> str:
    """The text of README.md, from card.md. made: figures of the model; trained: how it was made."""
    about, parts = ABOUT[name], scores["parts"]
    return Path(__file__).with_name("card.md").read_text().format_map({
        **vars(about), **made, "name": name, "trained": trained, "task_count": len(tasks.TASKS),
        "parameters": f"{made['parameters'] / 1e6:.2f}", "megabytes": f"{made['bytes'] / 1e6:.1f}",
        "examples": examples(), "closing": "" if name == "mini-ar" else CLOSING,
        "sections": "\n".join(section(part, parts[part]) for part in PARTS if part in parts),
    })  # fmt: skip


def trained(training: Mapping[str, Any]) -> str:
    """How experiments.mini.train made a model, from card_training.md."""
    recipe = {"base": "", **training["recipe"]}
    name, first = recipe["model"], training.get("earlier")
    usual, spent = recipe_of(name).base, ""
    if first is not None and usual and first["recipe"] == asdict(recipe_of(usual)):  # as the command makes it
        recipe["base"] = usual
        spent = f", {first['cpu_minutes']:.0f} minutes that the command takes first if no `--base` is given"
    else:
        recipe["base"] = shipped_as(recipe["base"], training.get("base"))
    command = " ".join(["python -m experiments.mini.train", name, *options_of(recipe), f"--out runs/{name}"])
    base = f", base\n{recipe['base']} (weights {training['base']}{spent})" if recipe["base"] else ""
    figures = {
        "steps": f"{recipe['steps']:,}",
        **{key: f"{training[key]:.0f}" for key in ("cpu_minutes", "wall_minutes")},
        "commit": commit_of(training),
        "torch": training["versions"]["torch"],
        "command": command,
        "from_base": base,
        "learnt": ABOUT[name].learnt,
    }
    return Path(__file__).with_name("card_training.md").read_text().format_map({**recipe, **training, **figures})


def commit_of(training: Mapping[str, Any]) -> str:
    return f"{training['commit'] or 'unknown'}{' with changes' if training['dirty'] else ''}"


def shipped_as(base: str, weights: str | None) -> str:
    """The name under which the base comes along, if a shipped model of its folder's name has its ``weights``."""
    name = Path(base).name
    return name if name in shipped_models() and weights_digest(locate(name)) == weights else base


def distilled(report: Mapping[str, Any]) -> str:
    """How experiments.distill made a model, from card_distilled.md."""
    recipe, place = report["recipe"], report["environment"]
    rows = []
    for key, label in LABELS.items():
        if key in report["before"]:
            cells = (f"{mean:.2f} ±{half:.2f}" for mean, half in (report["before"][key], report["after"][key]))
            rows.append([label, *cells])
    command = f"python -m experiments.distill recipe=mini-llada-distilled model={recipe['model']}"
    figures = {
        "base": Path(recipe["model"]).name,
        "steps": f"{report['step']:,}",
        "examples": f"{report['examples']:,}",
        **{key: f"{report['log'][key]:.0f}" for key in ("cpu_minutes", "wall_minutes")},
        "starts": report["starts"],
        "torch": place["versions"]["torch"],
        "platform": place["platform"],
        "command": command,
        "threshold": f"{recipe['threshold']:g}",
        "measured": markdown.table(("", "before", "after"), rows),
        "held_out": recipe["held_out"] * len(tasks.TASKS),
    }
    return Path(__file__).with_name("card_distilled.md").read_text().format_map({**recipe, **figures})


def of_folder(folder: Path, scores: Mapping[str, Any]) -> str:
    """The card of a folder that training left, or of the checkpoint inside one that distillation left. Raises
    UserError where neither is found."""
    report = folder.parent / "report.json"
    if folder.name == "checkpoint" and report.is_file():
        size = (folder / "model.safetensors").stat().st_size
        with safe_open(folder / "model.safetensors", framework="pt") as stored:
            count = sum(prod(stored.get_slice(name).get_shape()) for name in stored.keys())  # noqa: SIM118
        config = read_model_config(folder)
        made = {"parameters": count, "bytes": size, "layers": config.layers, "width": config.width}
        return card("mini-llada-distilled", made, distilled(json.loads(report.read_text())), scores)
    training = read(folder / "training.json")
    return card(training["recipe"]["model"], {**training, **training["recipe"]}, trained(training), scores)


def examples() -> str:
    """A prompt of three tasks each, indented."""
    asked = [tasks.generate(task, 0, 1, wording="plain")[0].prompt for task in ("shuffle", "records", "latin_square")]
    return "\n\n".join("    " + prompt.replace("\n", "\n    ") for prompt in asked)


def options_of(recipe: Mapping[str, Any]) -> list[str]:
    """What the command needs besides the model: every entry that is not the recipe's default."""
    usual = asdict(recipe_of(recipe["model"]))
    return [f"--{key.replace('_', '-')} {recipe[key]}" for key in usual if recipe[key] != usual[key]]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder that training left; with --again also a shipped model")
    parser.add_argument("--again", nargs="+", choices=list(PARTS), help="measure these again and print their tables")
    parser.add_argument(
        "--items",
        nargs=2,
        type=int,
        metavar=("SHORT", "LONG"),
        help="with --again: items of a task, and of one with long answers, instead of the card's",
    )
    given = parser.parse_args(arguments)
    folder: Path = given.folder
    if given.again:
        torch.set_num_threads(1)
        model = load(folder)
        for name in given.again:
            count, long = given.items or (COUNTS[name], LONG.get(name, 0))
            asked = Asked(model, count, SEED, long)
            figures = {"count": asked.count, "long": asked.long, "seed": asked.seed}
            print(section(name, {**figures, "right": MEASURES[name](asked)}))
        return 0
    scores = read(folder / "scores.json")
    if scores["weights"] != weights_digest(folder):
        raise UserError(f"{folder / 'scores.json'} was measured on other weights: run experiments.mini.evaluate.")
    text = of_folder(folder, scores)
    (folder / "README.md").write_text(text)
    return 0


def read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        maker = {"training.json": "train", "scores.json": "evaluate"}[file.name]
        raise UserError(f"{file} is missing: run experiments.mini.{maker} first.")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


if __name__ == "__main__":
    sys.exit(main())
