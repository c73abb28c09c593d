"""The entries: each figure and picture of README and docs that needs no GPU, with the commands that make it."""

from __future__ import annotations

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

DATA = ROOT / "tests" / "data"
CONSTRAINED = "tests/data/goldens/constrained.json"
RECORDED = sorted([*DATA.glob("goldens/*.json"), *DATA.glob("goldens/sharp/*.json")])
GOLDENS = [name for file in RECORDED if (name := str(file.relative_to(ROOT))) != CONSTRAINED]
MODELS = [str(file.parent.relative_to(ROOT)) for file in sorted(DATA.glob("models/*/logits.safetensors.xz"))]
METHODS = "docs/measured/methods.md"
CARD = "dllm/models/checkpoints/{}/README.md"

LAPTOP = ("float32", "bfloat16", "int8", "int4")
LONG_PROMPTS = ("-m", "experiments.bench.long_prompts")
TUNED = ("-m", "experiments.compare.tuned_minis")
LAUNCHES = ("-m", "experiments.bench.launches")
METHOD_ITEMS = ("task.count=16", "task.seed=1", "task.tasks=[waiting_line,puzzle,words_to_sentence]", "batch_size=52")
FEW_SAMPLERS = "grids=[{sampler: [static, confidence, eb, localleap]}]"
SAMPLERS_REPORT = (
    "run.py",
    "report",
    "OUT/samplers",
    "--columns",
    "score",
    "nfe",
    "tpf",
    "same",
    "--against",
    "sampler=static",
)
CAUSAL_MODELS = ("mini-ar", "mini-wedlm", "mini-nbdiff")


SWEEP = ("run.py", "-m", "experiment=small", "output=OUT", "name=small")
REPORT = ("run.py", "report", "OUT/small", "--out", "OUT/report")


def one_model(name: str) -> str:
    """The grids of the sweep, of one model alone."""
    settings = yaml.safe_load((ROOT / "dllm/conf/experiment/small.yaml").read_text())
    grids = [{**grid, "model": name} for grid in settings["grids"]]
    return f"grids={yaml.safe_dump(grids, default_flow_style=True, width=10_000).strip()}"


def table(name: str, columns: str, *words: str) -> tuple[tuple[str, ...], ...]:
    """A sweep of its own, and the table with these columns of it. words: more of the sweep's."""
    made = ("run.py", "-m", f"experiment=tables/{name}", "output=OUT", f"name={name}", *words)
    return made, ("run.py", "report", f"OUT/{name}", "--columns", *columns.split())


BOTH = "model=mini-llada,mini-dream"
AGAINST_CONFIDENCE = "--against sampler=confidence sampler.threshold=0.9"

ENTRIES = [
    *(
        Entry(
            name,
            folder,
            (("-m", "experiments.pages.pictures", "OUT", "--only", group),),
            minutes,
            same_files,
            Tolerance(0.2),
            made=made,
        )
        for name, group, folder, made, minutes in (
            ("pictures", "pages", "docs/pictures", "[^/]+", 0.3),
            ("films", "samplers", "docs/pictures/samplers", "samplers/[^/]+", 0.6),
            ("cache-pictures", "caches", "docs/pictures/caches", "caches/[^/]+", 0.2),
        )
    ),
    Entry("race", "docs/pictures/race.svg", (("-m", "experiments.pages.race", "OUT/race.svg"),), 0.2, same_story),
    Entry("parity", "docs/reproducing.md", (("tests/parity.py", *MODELS),), 0.3, all_equal),
    Entry(
        "goldens",
        "docs/reproducing.md",
        (("tests/replay.py", *GOLDENS), ("tests/constraints.py", CONSTRAINED)),
        1,
        all_equal,
    ),
    Entry(
        "caches",
        METHODS,
        table("caches", "score same nfe queries_share flops_share --against cache=none"),
        1.5,
        same_rows,
        Tolerance(3),
        rows=("caches",),
    ),
    Entry(
        "adablock",
        METHODS,
        table("adablock", "score difference nfe fewer forced --against blocks=fixed"),
        0.5,
        same_rows,
        Tolerance(3, 0.05),
        rows=("adablock",),
    ),
    Entry(
        "pipeline",
        METHODS,
        table("pipeline", "score nfe queries"),
        0.5,
        same_rows,
        Tolerance(3, 0.05),
        rows=("pipeline",),
    ),
    Entry(
        "guidance",
        METHODS,
        table("guidance", "score experiments.tables.of_many_right_answers nfe queries", BOTH),
        2,
        same_rows,
        Tolerance(3, 0.05),
        rows=("guidance",),
    ),
    Entry(
        "credit",
        METHODS,
        table("credit", f"score nfe fewer queries same {AGAINST_CONFIDENCE}"),
        0.5,
        same_rows,
        Tolerance(4, 0.05),
        rows=("credit",),
    ),
    Entry(
        "ends",
        METHODS,
        table("ends", "score nfe queries queries_share --against eos=none cache=none"),
        0.5,
        same_rows,
        Tolerance(6, 0.05),
        rows=("ends",),
    ),
    Entry(
        "knobs",
        METHODS,
        table("knobs", "score difference nfe fewer oracle --against sampler=lopa sampler.threshold=0.9"),
        2,
        same_rows,
        Tolerance(4, 0.05),
        rows=("knobs",),
    ),
    Entry(
        "kinds",
        "docs/measured/speed.md",
        table("kinds", "score nfe tpf queries useful"),
        3,
        same_rows,
        Tolerance(3, 0.05),
        rows=("kinds",),
    ),
    Entry(
        "speed",
        METHODS,
        (("-m", "experiments.bench.cache", "--answers", "1024", "--window", "--threads", "2"),),
        3,
        same_rows,
        Tolerance(share=0.03),
        columns={2: ANY, 3: Tolerance(share=0.4), 5: ANY, 6: Tolerance(0.2)},
        timed=True,
        rows=("cache_speed",),
    ),
    Entry(
        "lengths",
        "docs/lengths.md",
        table("lengths", "score nfe queries useful"),
        4,
        same_rows,
        Tolerance(3, 0.05),
        rows=("lengths",),
    ),
    Entry(
        "fewer-keys",
        "docs/long_prompts.md",
        (("-m", "experiments.compare.fewer_keys", "--count", "100"),),
        5,
        same_rows,
        Tolerance(3),
        rows=("fewer_keys", "fewer_keys_answers"),
    ),
    Entry(
        "long-prompts",
        "docs/long_prompts.md",
        ((*LONG_PROMPTS, "--shape", "layer", "--sizes", "--lengths", "1024", "8192", "32768"),),
        3,
        same_rows,
        Tolerance(share=0.03),
        rows=("long_sizes",),
    ),
    Entry(
        "long-answers",
        "docs/long_prompts.md",
        ((*LONG_PROMPTS, "--shape", "mini", "--whole", "--lengths", "1024", "8192"),),
        4,
        same_rows,
        Tolerance(share=0.05),
        columns={3: ANY, 4: ANY},
        timed=True,
        rows=("long_answers",),
    ),
    Entry(
        "samplers",
        METHODS,
        (("run.py", "-m", "experiment=methods", "output=OUT", "name=samplers", *METHOD_ITEMS), SAMPLERS_REPORT),
        3,
        same_rows,
        Tolerance(3, 0.05),
        rows=("samplers",),
        part=(
            ("run.py", "-m", "experiment=methods", "output=OUT", "name=samplers", *METHOD_ITEMS, FEW_SAMPLERS),
            SAMPLERS_REPORT,
        ),
    ),
    Entry(
        "tuned",
        "docs/tune.md",
        ((*TUNED, "output=OUT"),),
        13,
        same_rows,
        Tolerance(1, 0.05),
        rows=("tuned_minis",),
        part=((*TUNED, "output=OUT", "models=mini-llada", "tasks=words_to_sentence"),),
    ),
    Entry(
        "leaving",
        "docs/caches.md",
        (("-m", "experiments.compare.leaving"),),
        1,
        same_rows,
        Tolerance(3, 0.05),
        rows=("leaving",),
    ),
    Entry(
        "launches",
        "docs/kernels.md",
        (LAUNCHES,),
        2,
        same_rows,
        Tolerance(share=0.02),
        rows=("launches",),
        part=((*LAUNCHES, "--caches", "dual", "none"),),
    ),
    Entry(
        "turns",
        "docs/measured/speed.md",
        (("-m", "experiments.bench.turns", "--repeats", "5"),),
        1,
        same_rows,
        Tolerance(share=0.02),
        columns={**dict.fromkeys((2, 3, 4, 5), ANY), 6: Tolerance(share=0.4)},
        timed=True,
        rows=("turns",),
    ),
    Entry(
        "candidates",
        "docs/measured/speed.md",
        (("-m", "experiments.bench.candidates"),),
        3,
        same_rows,
        Tolerance(share=0.02),
        columns=dict.fromkeys((7, 8, 9, 10), ANY),
        timed=True,
        rows=("candidates",),
    ),
    Entry(
        "shared-prompts",
        "docs/long_prompts.md",
        (("-m", "experiments.bench.shared_prompts", "--lengths", "1024", "8192"),),
        2,
        same_rows,
        Tolerance(share=0.02),
        columns={3: ANY},
        timed=True,
        rows=("shared_prompts", "prefill_memory"),
    ),
    Entry(
        "constraint-cost",
        "docs/measured/constraints.md",
        (("-m", "experiments.bench.constraints"),),
        3,
        same_rows,
        Tolerance(3),
        columns=dict.fromkeys(range(4, 13), ANY),
        timed=True,
        rows=("constraint_cost",),
    ),
    Entry(
        "wedlm",
        "docs/measured/speed.md",
        (("-m", "experiments.bench.wedlm"),),
        3,
        same_rows,
        Tolerance(3, 0.05),
        columns={5: ANY, 6: ANY, 7: ANY, 8: Tolerance(share=0.4)},
        timed=True,
        rows=("wedlm_mini", "wedlm_shape"),
    ),
    Entry(
        "next-token",
        "docs/measured/speed.md",
        (("-m", "experiments.bench.next_token"),),
        3,
        same_rows,
        Tolerance(),
        columns={4: ANY, 5: ANY, 6: Tolerance(share=0.4)},
        timed=True,
        rows=("next_token",),
    ),
    Entry(
        "laptop",
        "docs/measured/speed.md",
        tuple(("-m", "experiments.bench.laptop", "--weights", kind) for kind in LAPTOP),
        5,
        same_rows,
        Tolerance(1),
        columns={4: ANY, 5: ANY, 6: ANY, 7: Tolerance(share=0.3)},
        timed=True,
        rows=("laptop",),
    ),
    Entry(
        "packed-files",
        "docs/measured/speed.md",
        (("-m", "experiments.bench.packed_files", "OUT", "--layers", "8"),),
        6,
        same_rows,
        Tolerance(0.1),
        columns={3: ANY, 4: Tolerance(0.5)},
        timed=True,
        rows=("packed_files",),
    ),
    Entry(
        "rounding",
        "docs/measured/speed.md",
        (("-m", "experiments.compare.rounding", "mini-llada"),),
        1,
        same_rows,
        Tolerance(1.5, 0.15),
        rows=("rounding_logits", "rounding_weights", "rounding_rows"),
    ),
    Entry(
        "constrained",
        "docs/measured/constraints.md",
        (("-m", "experiments.compare.constrained_tasks"),),
        4,
        same_rows,
        Tolerance(3),
        shown="(?!mini-dream).*",
        rows=("constrained",),
    ),
    Entry(
        "decisions",
        "docs/measured/constraints.md",
        (("-m", "experiments.compare.decisions"),),
        5,
        same_rows,
        Tolerance(2, 0.1),
        columns={2: Tolerance(3), 7: Tolerance(share=0.3)},
        shown="(?!mini-dream).*",
        rows=("decisions", "decided_ages"),
    ),
    Entry(
        "decisions-served",
        "docs/measured/constraints.md",
        (("-m", "experiments.bench.decisions"),),
        1,
        same_rows,
        ANY,
        timed=True,
        rows=("decisions_served",),
    ),
    Entry(
        "plain",
        "docs/measured/speed.md",
        (("-m", "experiments.bench.step", "--answer", "32", "--per-turn", "2", "--threads", "2"),),
        1,
        same_ratio,
        Tolerance(share=0.5),
        timed=True,
        rows=("step",),
    ),
    *(
        Entry(
            f"card-{name}",
            CARD.format(name),
            (("-m", "experiments.mini.card", name, "--again", "speed", "--items", "100", "20"),),
            5,
            same_tables,
            sampled=True,
        )
        for name in ("mini-llada", "mini-dream")
    ),
    *(
        Entry(
            f"card-{name}",
            CARD.format(name),
            (("-m", "experiments.mini.card", name, "--again", "way"),),
            0.5,
            same_tables,
            Tolerance(3),
        )
        for name in CAUSAL_MODELS
    ),
    Entry(
        "students",
        "docs/distillation.md",
        table("students", "score tpf"),
        1,
        same_rows,
        Tolerance(3, 0.1),
        rows=("students",),
    ),
    Entry(
        "rollouts",
        "docs/rollouts.md",
        (
            *(("-m", "experiments.rl", "task=replace_random", f"seed={seed}", f"out=OUT/{seed}") for seed in range(3)),
            ("-m", "experiments.rl.curves", "OUT/0", "OUT/1", "OUT/2", "--out", "OUT/rewards.svg"),
        ),
        8,
        same_tables,
        Tolerance(15, 0.5),
    ),
    Entry(
        "sweep",
        "docs/pictures/small",
        (SWEEP, REPORT),
        9,
        same_files,
        Tolerance(3, 0.05),
        r"report/(curves|table|tasks|limits)-.*\.csv",
        r"report/(quality-tpf|tasks-mini-llada)\.png",
        part=((*SWEEP, one_model("mini-llada")), REPORT),
    ),
]
