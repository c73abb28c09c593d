"""The entries: each figure and picture of README and docs that needs no GPU, with the commands that make it."""

from __future__ import annotations

from typing import Any

import yaml

from experiments.figures.compare import (
    ANY,
    ROOT,
    Entry,
    Tolerance,
    all_equal,
    same_files,
    same_ratio,
    same_rows,
    same_story,
    same_tables,
)

Command = tuple[str, ...]
DATA = ROOT / "tests" / "data"
CONSTRAINED = "tests/data/goldens/constrained.json"
RECORDED = sorted([*DATA.glob("goldens/*.json"), *DATA.glob("goldens/sharp/*.json")])
GOLDENS = [name for file in RECORDED if (name := str(file.relative_to(ROOT))) != CONSTRAINED]
MODELS = [str(file.parent.relative_to(ROOT)) for file in sorted(DATA.glob("models/*/logits.safetensors.xz"))]
METHODS, SPEED, CONSTRAINTS = (f"docs/measured/{name}.md" for name in ("methods", "speed", "constraints"))
LONG = "docs/long_prompts.md"

METHODS_SWEEP = (
    *("run.py", "-m", "experiment=methods", "output=OUT", "name=samplers", "task.count=16", "task.seed=1"),
    *("task.tasks=[waiting_line,puzzle,words_to_sentence]", "batch_size=52"),
)
FEW_SAMPLERS = "grids=[{sampler: [static, confidence, eb, localleap]}]"
SMALL_SWEEP = ("run.py", "-m", "experiment=small", "output=OUT", "name=small")
SMALL_REPORT = ("run.py", "report", "OUT/small", "--out", "OUT/report")


def one_model(name: str) -> str:
    """The grids of the sweep, of one model alone."""
    settings = yaml.safe_load((ROOT / "dllm/conf/experiment/small.yaml").read_text())
    grids = [{**grid, "model": name} for grid in settings["grids"]]
    return f"grids={yaml.safe_dump(grids, default_flow_style=True, width=10_000).strip()}"


def module(words: str) -> Command:
    """A command of ours: its module and options."""
    return ("-m", *f"experiments.{words}".split())


def rows_entry(
    name: str, page: str, minutes: float, commands: tuple[Command, ...], tolerance: Tolerance, **more: Any
) -> Entry:
    """An entry of commands that print the rows of CSV files. more: of the entry; without ``rows`` it is NAME.csv."""
    own = {"rows": (name.replace("-", "_"),), **more}
    return Entry(name, page, commands, minutes, same_rows, tolerance, **own)


def lab(name: str, page: str, minutes: float, words: str, tolerance: Tolerance, **more: Any) -> Entry:
    """The table that one command of ours prints."""
    return rows_entry(name, page, minutes, (module(words),), tolerance, **more)


def timed(name: str, page: str, minutes: float, words: str, tolerance: Tolerance, **more: Any) -> Entry:
    """The same of a command that measures time."""
    return lab(name, page, minutes, words, tolerance, timed=True, **more)


def report(name: str, columns: str) -> Command:
    """The command that prints these columns of a sweep."""
    return ("run.py", "report", f"OUT/{name}", "--columns", *columns.split())


def table(name: str, page: str, minutes: float, columns: str, tolerance: Tolerance, *words: str) -> Entry:
    """A sweep of its own, and the table with these columns of it. words: more of the sweep's."""
    sweep = ("run.py", "-m", f"experiment=tables/{name}", "output=OUT", f"name={name}", *words)
    return rows_entry(name, page, minutes, (sweep, report(name, columns)), tolerance)


def pictures(name: str, group: str, folder: str, made: str, minutes: float) -> Entry:
    command = module(f"pages.pictures OUT --only {group}")
    return Entry(name, folder, (command,), minutes, same_files, Tolerance(0.2), made=made)


def card(name: str, words: str, minutes: float, **more: Any) -> Entry:
    """Tables of a model's card. words: which of them are measured again."""
    page = f"dllm/models/checkpoints/{name}/README.md"
    return Entry(f"card-{name}", page, (module(f"mini.card {name} --again {words}"),), minutes, same_tables, **more)


SAMPLERS_REPORT = report("samplers", "score nfe tpf same --against sampler=static")
BOTH = "model=mini-llada,mini-dream"
CONFIDENCE = "sampler=confidence sampler.threshold=0.9"
POINTS = Tolerance(3, 0.05)  # of scores in per cent; counts by their share

ENTRIES = [
    pictures("pictures", "pages", "docs/pictures", "[^/]+", 0.3),
    pictures("films", "samplers", "docs/pictures/samplers", "samplers/[^/]+", 0.6),
    pictures("cache-pictures", "caches", "docs/pictures/caches", "caches/[^/]+", 0.2),
    Entry("race", "docs/pictures/race.svg", (module("pages.race OUT/race.svg"),), 0.2, same_story),
    Entry("parity", "docs/reproducing.md", (("tests/parity.py", *MODELS),), 0.3, all_equal),
    Entry(
        "goldens",
        "docs/reproducing.md",
        (("tests/replay.py", *GOLDENS), ("tests/constraints.py", CONSTRAINED)),
        1,
        all_equal,
    ),
    table("caches", METHODS, 1.5, "score same nfe queries_share flops_share --against cache=none", Tolerance(3)),
    table("adablock", METHODS, 0.5, "score difference nfe fewer forced --against blocks=fixed", POINTS),
    table("pipeline", METHODS, 0.5, "score nfe queries", POINTS),
    table("guidance", METHODS, 2, "score experiments.tables.of_many_right_answers nfe queries", POINTS, BOTH),
    table("credit", METHODS, 0.5, f"score nfe fewer queries same --against {CONFIDENCE}", Tolerance(4, 0.05)),
    table("ends", METHODS, 0.5, "score nfe queries queries_share --against eos=none cache=none", Tolerance(6, 0.05)),
    table(
        "knobs",
        METHODS,
        2,
        "score difference nfe fewer oracle --against sampler=lopa sampler.threshold=0.9",
        Tolerance(4, 0.05),
    ),
    table("kinds", SPEED, 3, "score nfe tpf queries useful", POINTS),
    timed(
        "speed",
        METHODS,
        3,
        "bench.cache --answers 1024 --window --threads 2",
        Tolerance(share=0.03),
        columns={2: ANY, 3: Tolerance(share=0.4), 5: ANY, 6: Tolerance(0.2)},
        rows=("cache_speed",),
    ),
    table("lengths", "docs/lengths.md", 4, "score nfe queries useful", POINTS),
    lab(
        "fewer-keys", LONG, 5, "compare.fewer_keys --count 100", Tolerance(3), rows=("fewer_keys", "fewer_keys_answers")
    ),
    lab(
        "long-prompts",
        LONG,
        3,
        "bench.long_prompts --shape layer --sizes --lengths 1024 8192 32768",
        Tolerance(share=0.03),
        rows=("long_sizes",),
    ),
    timed(
        "long-answers",
        LONG,
        4,
        "bench.long_prompts --shape mini --whole --lengths 1024 8192",
        Tolerance(share=0.05),
        columns={3: ANY, 4: ANY},
    ),
    rows_entry(
        "samplers",
        METHODS,
        3,
        (METHODS_SWEEP, SAMPLERS_REPORT),
        POINTS,
        part=((*METHODS_SWEEP, FEW_SAMPLERS), SAMPLERS_REPORT),
    ),
    lab(
        "tuned",
        "docs/tune.md",
        13,
        "compare.tuned_minis output=OUT",
        Tolerance(1, 0.05),
        rows=("tuned_minis",),
        part=(module("compare.tuned_minis output=OUT models=mini-llada tasks=words_to_sentence"),),
    ),
    lab("leaving", "docs/caches.md", 1, "compare.leaving", POINTS),
    lab(
        "launches",
        "docs/kernels.md",
        2,
        "bench.launches",
        Tolerance(share=0.02),
        part=(module("bench.launches --caches dual none"),),
    ),
    timed(
        "turns",
        SPEED,
        1,
        "bench.turns --repeats 5",
        Tolerance(share=0.02),
        columns={**dict.fromkeys((2, 3, 4, 5), ANY), 6: Tolerance(share=0.4)},
    ),
    timed("candidates", SPEED, 3, "bench.candidates", Tolerance(share=0.02), columns=dict.fromkeys((7, 8, 9, 10), ANY)),
    timed(
        "shared-prompts",
        LONG,
        2,
        "bench.shared_prompts --lengths 1024 8192",
        Tolerance(share=0.02),
        columns={3: ANY},
        rows=("shared_prompts", "prefill_memory"),
    ),
    timed(
        "constraint-cost", CONSTRAINTS, 3, "bench.constraints", Tolerance(3), columns=dict.fromkeys(range(4, 13), ANY)
    ),
    timed(
        "wedlm",
        SPEED,
        3,
        "bench.wedlm",
        POINTS,
        columns={5: ANY, 6: ANY, 7: ANY, 8: Tolerance(share=0.4)},
        rows=("wedlm_mini", "wedlm_shape"),
    ),
    timed("next-token", SPEED, 3, "bench.next_token", Tolerance(), columns={4: ANY, 5: ANY, 6: Tolerance(share=0.4)}),
    rows_entry(
        "laptop",
        SPEED,
        5,
        tuple(module(f"bench.laptop --weights {kind}") for kind in ("float32", "bfloat16", "int8", "int4")),
        Tolerance(1),
        columns={4: ANY, 5: ANY, 6: ANY, 7: Tolerance(share=0.3)},
        timed=True,
    ),
    timed(
        "packed-files",
        SPEED,
        6,
        "bench.packed_files OUT --layers 8",
        Tolerance(0.1),
        columns={3: ANY, 4: Tolerance(0.5)},
    ),
    lab(
        "rounding",
        SPEED,
        1,
        "compare.rounding mini-llada",
        Tolerance(1.5, 0.15),
        rows=("rounding_logits", "rounding_weights", "rounding_rows"),
    ),
    lab("constrained", CONSTRAINTS, 4, "compare.constrained_tasks", Tolerance(3), shown="(?!mini-dream).*"),
    lab(
        "decisions",
        CONSTRAINTS,
        5,
        "compare.decisions",
        Tolerance(2, 0.1),
        columns={2: Tolerance(3), 7: Tolerance(share=0.3)},
        shown="(?!mini-dream).*",
        rows=("decisions", "decided_ages"),
    ),
    timed("decisions-served", CONSTRAINTS, 1, "bench.decisions", ANY),
    Entry(
        "plain",
        SPEED,
        (module("bench.step --answer 32 --per-turn 2 --threads 2"),),
        1,
        same_ratio,
        Tolerance(share=0.5),
        timed=True,
        rows=("step",),
    ),
    *(card(name, "speed --items 100 20", 5, sampled=True) for name in ("mini-llada", "mini-dream")),
    *(card(name, "way", 0.5, tolerance=Tolerance(3)) for name in ("mini-ar", "mini-wedlm", "mini-nbdiff")),
    table("students", "docs/distillation.md", 1, "score tpf", Tolerance(3, 0.1)),
    Entry(
        "rollouts",
        "docs/rollouts.md",
        (
            *(module(f"rl task=replace_random seed={seed} out=OUT/{seed}") for seed in range(3)),
            module("rl.curves OUT/0 OUT/1 OUT/2 --out OUT/rewards.svg"),
        ),
        8,
        same_tables,
        Tolerance(15, 0.5),
    ),
    Entry(
        "sweep",
        "docs/pictures/small",
        (SMALL_SWEEP, SMALL_REPORT),
        9,
        same_files,
        POINTS,
        r"report/(curves|table|tasks|limits)-.*\.csv",
        r"report/(quality-tpf|tasks-mini-llada)\.png",
        part=((*SMALL_SWEEP, one_model("mini-llada")), SMALL_REPORT),
    ),
]
