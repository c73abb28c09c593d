"""What ``dllm tune`` takes for the small models, tried on fresh items: ``python -m experiments.compare.tuned_minis``.

For each model, task and loss: tune on the items of one seed, then decode the items of another seed with the reference,
the chosen setting and, on ``GRID_ITEMS`` of them, with every setting of the list. Words choose among it:
``models=mini-llada tasks=puzzle output=FOLDER``. Work that is done is not done again.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from dllm import tune
from dllm.app.command_line.main import settings_of_words
from dllm.app.tuning.decoded import DecodedLosses
from dllm.app.tuning.tune import tuning_of
from dllm.scoring.promise import mean_loss
from experiments.support import markdown
from experiments.support.scripts import refusing

MODELS, TASKS, LOSSES = ("mini-llada", "mini-dream"), ("waiting_line", "puzzle", "words_to_sentence"), (0.05, 0.01)
ITEMS, FRESH_ITEMS, GRID_ITEMS = {0.05: 240, 0.01: 640}, 1000, 100
COST = "computed_tokens"  # the same on any machine, however busy
HEADS = [
    "model and task",
    "max_loss",
    "setting that is taken",
    "tokens an item",
    "reference",
    "times less",
    "loss of 1,000 others, %",
    "best of the list, afterwards",
    "times less",
]


def words_of(model: str, task: str, count: int, seed: int, output: Path) -> list[str]:
    """Of a command line."""
    return [f"model={model}", "task=parallelbench", f"task.tasks=[{task}]", f"task.count={count}", f"task.seed={seed}",
            "batch_size=50", f"output={output}", f"cost={COST}"]  # fmt: skip


def fresh(model: str, task: str, output: Path) -> DecodedLosses:
    """The settings on fresh items."""
    run = tuning_of([*words_of(model, task, FRESH_ITEMS, 7, output), f"name=fresh-{model}-{task}"], settings_of_words)
    return DecodedLosses(run.settings, run.configured, run.folder, FRESH_ITEMS, 0, COST, binary=False)


def ratio(table: DecodedLosses, setting: int) -> tuple[float, float, float]:
    """Cost of an item, the reference's, and how many times less."""
    cost, base = table.costs_beside_reference(setting)
    return cost, base, base / cost


def line(model: str, task: str, allowed: float, output: Path) -> list[str]:
    done = tune(model, task="parallelbench", max_loss=allowed, cost=COST, items=ITEMS[allowed],
                name=f"{model}-{task}-{allowed}", settings={
        "task.tasks": [task], "task.count": 640, "task.seed": 1, "batch_size": 50, "output": str(output),
    })  # fmt: skip
    table = fresh(model, task, output)
    chosen = list(table.settings).index(done.settings)
    table.decode(range(len(table.settings)), 0, GRID_ITEMS)
    good = [k for k in table.rows if k not in table.out and mean_loss(table.losses(k, 0, GRID_ITEMS)) <= allowed]
    best = max(good, key=lambda k: ratio(table, k)[2])
    of_best = ratio(table, best)[2]
    table.decode([chosen], GRID_ITEMS, FRESH_ITEMS)
    cost, base, times = ratio(table, chosen)
    loss = mean_loss(table.losses(chosen, 0, FRESH_ITEMS))
    setting = " ".join(done.settings) if done.certified else "the reference"
    numbers = [f"{cost:.0f}", f"{base:.0f}", f"{times:.2f}", f"{100 * loss:.2f}"]
    return [f"{model} {task}", f"{allowed:g}", setting, *numbers, table.label(best), f"{of_best:.2f}"]


def main() -> int:
    """The command."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    models, tasks = (given.get(key, ",".join(all_)).split(",") for key, all_ in (("models", MODELS), ("tasks", TASKS)))
    output = Path(given.get("output", "runs/tuned"))
    lines = [line(model, task, allowed, output) for model in models for task in tasks for allowed in LOSSES]
    with (output / "tuned_minis.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADS, *lines])
    print(markdown.table(HEADS, lines))
    return 0


if __name__ == "__main__":
    sys.exit(refusing(main)())
