"""Published settings: they compose, their parts fit, they decode, and a paper's figures stand beside a run's.

Rows and decodes are a sample that LAWS_SEED draws; DLLM_LAWS=all takes all of them.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from dllm.parts import (
    FIGURES,
    DenoisedBlock,
    Evaluation,
    Options,
    PaperRow,
    Parts,
    Sampling,
    Setting,
    beside,
    checked_sampling,
    checked_settings,
    choices,
    composed,
    part_facts,
    plain_config,
    read_model_config,
    relevant,
    rows_of_table,
    validate,
    with_reference,
)
from experiments.pages import published_rows
from tests.app.conftest import ROOT, Run
from tests.support.harness import full
from tests.support.tiny import make_tiny

T = TypeVar("T")
CONF, MODELS = ROOT / "dllm" / "conf" / "experiment", ROOT / "tests" / "data" / "models"
NAMES = [name for name in choices("experiment") if name.startswith("published/")]
DATA: dict[str, Any] = {name: yaml.safe_load((CONF / f"{name}.yaml").read_text())["published"] for name in NAMES}
ROWS = [(name, str(row.get("settings", ""))) for name in NAMES for row in DATA[name]["rows"] or [{}]]
LATER = [(name, settings) for name, settings in ROWS if settings]
# Published models by the tiny checkpoint of their family, which knows their attention, and by the one that decodes.
KINDS = {"llada": ("tiny-llada", "mini-llada"), "dream": ("tiny-dream", "mini-dream"), "sdar": ("sdar_b4", None),
         "wedlm": ("tiny-wedlm", None), "nbdiff": ("tiny-nbdiff", None), "tiny-a2d": ("tiny-a2d-mdlm", None),
         "tiny-a2d-bd3lm": ("tiny-a2d-bd3lm", None), "fastdllm-v2": ("tiny-fastdllm-v2", None),
         "efficient-dlm": ("efficient_dlm", None), "diffusiongemma": ("dg_dev", None)}  # fmt: skip
ALIKE = {"llada2-mini": "sdar", "dmax-16b": "sdar", "llada2.1-mini": "sdar", "llada2-flash": "sdar",
         "tdar-8b": "sdar", "trado-8b-thinking": "sdar", "dreamreasoner-8b": "sdar",
         "tiny-a2d": "tiny-a2d", "tiny-a2d-bd3lm": "tiny-a2d-bd3lm", "fastdllm-v2-7b": "fastdllm-v2",
         "efficient-dlm-8b": "efficient-dlm", "diffusiongemma-26b": "diffusiongemma"}  # fmt: skip


def drawn(every: Sequence[T], count: int) -> list[T]:
    sample = random.Random(int(os.environ.get("LAWS_SEED", "0"))).sample(list(every), min(count, len(every)))
    return list(every) if full() else sample


def kind_of(model: str) -> str:
    return ALIKE.get(model) or next(kind for kind in ("dream", "llada", "sdar", "wedlm", "nbdiff") if kind in model)


@cache  # Hydra takes a tenth of a second
def config_of(name: str, settings: str = "") -> dict[str, Any]:
    """The configuration of a row, which no test changes."""
    return checked_settings(plain_config(composed([f"experiment={name}", *shlex.split(settings)])))


# -- the files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_what_its_figures_are_and_where_they_are_from(name: str) -> None:
    data, rows = DATA[name], rows_of_table(DATA[name])
    assert data["experiment"] == name and (CONF / f"{name}.yaml").read_text().startswith("# @package _global_\n# ")
    known = r"arXiv 2\d{3}\.\d{5}|the checkpoint's generation_config.json|model card of [\w.-]+/[\w.-]+"
    assert all(re.search(known, row.source) for row in rows)
    assert any(row.has_figures for row in rows) or all(row.note for row in rows) or "no figures" in head(name)
    assert len({row.settings for row in rows}) == len(rows), "two rows of the same settings"
    for row in rows:
        values = [value for figure in FIGURES if (value := getattr(row, figure)) is not None]
        assert all(isinstance(value, int | float) and value > 0 for value in values)
        assert row.score is None or row.score <= 100


def test_the_page_lists_every_file_with_what_was_read_and_what_is_open() -> None:
    lines = {name.strip("`"): cells for name, *cells in published_rows.lines()}
    assert sorted(lines) == sorted(NAMES)
    for name, (read, count, still_open) in lines.items():
        rows = rows_of_table(DATA[name])
        figures = [row.has_figures for row in rows]
        assert count == f"{sum(figures)} of {len(rows)}" and all(row.source in read for row in rows)
        assert all(
            f"`{row.settings}`" in still_open for row in rows if any(figures) and not row.has_figures and row.settings
        )
        assert (still_open == "") == all(figures)
        assert still_open.startswith("all: ") == (not any(figures)), "and its note says what there is"


def head(name: str) -> str:
    """The comment on top of a file."""
    return " ".join(line for line in (CONF / f"{name}.yaml").read_text().splitlines() if line.startswith("# "))


@pytest.mark.parametrize("group", ["sampler", "blocks", "cache", "eos"])
def test_every_method_has_published_settings(group: str) -> None:
    """Its sampler, schedule or cache is chosen in one of the files."""
    text = "".join((CONF / f"{name}.yaml").read_text() for name in NAMES)
    chosen = set(re.findall(rf"override /{group}: (\w+)|[ >\"]{group}=(\w+)", text))
    of_a_paper = {name for name in choices(group) if part_facts(group, name).papers}
    assert of_a_paper <= {one or other for one, other in chosen}


@pytest.mark.daily(25)
@pytest.mark.parametrize(("name", "settings"), [(name, "") for name in NAMES] + drawn(LATER, 4))
def test_the_settings_compose_and_their_parts_fit(name: str, settings: str) -> None:
    """Against the family's attention, alignment and sizes of a long-context model."""
    config = config_of(name, settings)
    options, parts = Options.of(config), Parts.of({**config, "sampler": with_reference(config["sampler"])}, Sampling())
    assert config["task"]["run"] == "dllm.app.commands.evaluate.run" and config["published"]["experiment"] == name
    small = read_model_config(MODELS / KINDS[kind_of(config["model"]["name"])][0], config["model"]["attention_block"])
    if small.process == "uniform":
        small = replace(small, attention=DenoisedBlock(256))
    blocks = parts.blocks.resolved(lambda text: [1])
    stand_in = "mini-llada"  # which has a filter of Learn2PD
    setting = Setting(
        replace(small, max_length=65536),
        blocks,
        options.gen_length,
        checked_sampling(config["sampling"]),
        stand_in,
        lambda text: [1, 2, 3],
    )
    assert validate(setting, parts.sampler, parts.cache, parts.eos)


# -- decodes ----------------------------------------------------------------------------------------------------


def demo_model(kind: str, folder: Path) -> list[str]:
    """The settings of a small model of a kind that decodes: one that comes along, or a tiny one with a tokenizer."""
    tiny, shipped = KINDS[kind]
    if shipped:
        return [f"model={shipped}"]
    shutil.copytree(MODELS / tiny, make_tiny(folder), dirs_exist_ok=True)
    if kind == "diffusiongemma":
        return [f"model.path={folder}", "blocks.block_length=8"]
    return [f"model.path={folder}", "model.mask_id=60"]


def questions(task: str, harness: str) -> list[dict[str, Any]]:
    """The local items of the tasks' own tests."""
    from tests.tasks.standard.test_code import EXERCISE, PROBLEM
    from tests.tasks.standard.test_harness import sums

    plus, contest = [{**row, "solution": "2"} for row in sums(2)], [{"problem": "1 + 1", "answer": "2"}]
    older = [{"Problem": "1 + 1", "Answer": "2"}]
    choices = {"Question": "1 + 1?", "Correct Answer": "2", **{f"Incorrect Answer {n}": f"{n + 2}" for n in (1, 2, 3)}}
    told = {"key": 1, "prompt": "Say yes.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    return {
        "gsm8k": sums(2),
        "humaneval": [PROBLEM],
        "mbpp": [EXERCISE],
        "ifeval": [told],
        "math500": [{"problem": "What is $1/2 + 1/4$?", "answer": "\\frac{3}{4}"}],
        "lm_eval": {"gsm_plus": plus, "aime25": contest, "aime24": older}.get(
            harness, [choices] if "gpqa" in harness else sums(2)
        ),
    }[task]


def shortened(config: dict[str, Any]) -> list[str]:
    """The settings that do not fit an answer of 32 tokens of a demo model."""
    sampler, blocks = config["sampler"], config["blocks"]
    found = ["gen_length=32", "model.device=cpu", "model.dtype=float32"]
    found += ["task.shots=0"] if "shots" in config["task"] else []
    found += ["task.suite=mini", "task.count=1", "task.tasks=copy"] if "suite" in config["task"] else []
    found += ["blocks.block_length=8"] if blocks.get("block_length", 0) > 32 else []
    found += ["blocks.delimiter_ids=null"] if "delimiter_ids" in blocks else []  # the model's own newline
    found += ["blocks.marker=5"] if "marker" in blocks else []
    found += ["sampler.anchor_position=8"] if sampler.get("anchor_position") else []
    return found + (["sampler.steps=32"] if sampler.get("steps") else [])


@pytest.mark.parametrize(("name", "settings"), drawn(ROWS, 1))
def test_the_settings_decode_and_score_local_questions(
    name: str, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="the extra [eval] is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = config_of(name, settings)
    model, task = demo_model(kind_of(config["model"]["name"]), tmp_path / "model"), config["task"]
    words = [word for word in shlex.split(settings) if not word.startswith("model=")]
    if task["name"] != "parallelbench":
        (tmp_path / "q").write_text("\n".join(map(json.dumps, questions(task["name"], str(task.get("harness"))))))
        words.append(f"task.path={tmp_path / 'q'}")
    small = composed([f"experiment={name}", *words, *shortened(config), *model])
    evaluation = Evaluation.of(checked_settings(plain_config(small)))
    rows = [row for row, _ in evaluation.rows(evaluation.answers.batches[:1])]
    assert rows and all(row["nfe"] >= 1 and len(row["canvas"]) <= 32 for row in rows)
    found = beside(evaluation.config, evaluation.answers.width)
    assert found is not None and ("a demo model, " in found.sentences()[-1] or not found.has_figures)


# -- the pages --------------------------------------------------------------------------------------------------


CHOOSING = (ROOT / "docs" / "quick_start.md").read_text()
LINES = [line for line in CHOOSING.splitlines() if line.startswith("|") and "`experiment=published/" in line]


@pytest.mark.parametrize("line", LINES)
def test_a_setting_to_start_from_has_the_figures_of_its_row(line: str) -> None:
    found = re.search(r"`experiment=(published/\w+) ?([^`]*)`", line)
    assert found is not None
    (row,) = [row for row in rows_of_table(DATA[found[1]]) if row.settings == found[2]]
    figures = [row.score, row.tokens_per_second, row.tpf]
    said = re.findall(r"(?<![-\w.])\d+(?:\.\d+)?(?= |,)", line.split("`")[2].split("|")[1])
    assert [float(number) for number in said] == [figure for figure in figures if figure is not None]
    assert row.has_figures or "no score could be read" in line


@pytest.mark.parametrize("model", ["LLaDA-8B", "LLaDA-1.5", "Dream-7B", "LLaDA2-mini"])
def test_every_model_has_a_setting_to_start_from(model: str) -> None:
    assert [line for line in LINES if line.startswith(f"| {model}")]


# -- ours beside theirs -----------------------------------------------------------------------------------------


def test_the_figures_of_a_run_are_those_of_its_settings() -> None:
    """By hand from the paper's table (arXiv 2505.22618)."""
    first, longer = (beside(config_of("published/dual", settings), 4096) for settings in ("", "gen_length=512"))
    assert first is not None and (first.score, first.tokens_per_second, first.speedup) == (76.9, 46.3, 9.4)
    assert longer is not None and (longer.score, longer.tokens_per_second) == (75.4, 36.4)
    assert first.unlike == longer.unlike == ()
    assert first.sentences()[-1] == "The settings are the published ones."
    assert first.sentences()[0].endswith(
        "one A100 80 GB, batch 1; tokens/s count tokens up to the end of the text; "
        "9.4 times as fast as one token per step."
    )


@pytest.mark.parametrize(
    ("name", "settings", "width", "reasons"),
    [
        (
            "dual",
            "model=mini-llada",
            128,
            ["a demo model, 128 wide, not 2048 or more", "model=mini-llada, not llada-8b-instruct"],
        ),
        ("dual", "", 64, ["a demo model, 64 wide, not 2048 or more"]),
        ("dual", "sampler.threshold=0.8 batch_size=4", 4096, ["batch_size=4, not 1", "sampler.threshold=0.8, not 0.9"]),
        ("dual", "cache=prefix", 4096, ["cache=prefix, not dual"]),
        ("dual", "task.limit=10 gen_length=512", 4096, ["task.limit=10, not null"]),
        ("dual", "seed=3 runtime=static kernels=torch model.path=/here output=there name=x", 4096, []),
        ("lopa", "task=math500 task.shots=null", 4096, ["their questions are those of MATH"]),
        ("lopa", "task=humaneval allow_code=true task.shots=null", 4096, []),
    ],
)
def test_what_makes_a_run_another_than_the_published_one_is_named(
    name: str, settings: str, width: int, reasons: list[str]
) -> None:
    found = beside(config_of(f"published/{name}", settings), width)
    assert found is not None and sorted(found.unlike) == sorted(reasons)


def test_a_checkpoint_of_another_kind_is_told_by_its_architecture() -> None:
    config = config_of("published/dual", "model.path=/my/dream")
    for architecture, reasons in {
        "LLaDAModelLM": (),
        None: (),
        "DreamModel": ("a checkpoint of DreamModel under model=llada-8b-instruct, which is of LLaDAModelLM",),
    }.items():
        found = beside(config, 4096, architecture)
        assert found is not None and found.unlike == reasons
    older = {**config, "model": {key: value for key, value in config["model"].items() if key != "expects"}}
    found = beside(older, 4096, "DreamModel")
    assert found is not None and found.unlike == ()
    assert relevant(config) == relevant(older)
    renamed = {**older, "model": {**older["model"], "architecture": "LLaDAModelLM"}}  # what it was called
    found = beside(renamed, 4096, "DreamModel")
    assert found is not None and "a checkpoint of DreamModel" in found.unlike[0]
    assert relevant(config) == relevant(renamed)


def test_a_run_without_a_paper_has_no_figures_beside_it() -> None:
    assert beside(plain_config(composed(["task=gsm8k"])), 4096) is None
    gone = {"published": {"experiment": "published/gone", "source": "arXiv 2501.00001", "rows": [{"score": 1.0}]}}
    found = beside(gone, 4096)
    assert found == PaperRow(
        "arXiv 2501.00001", score=1.0, unlike=("this version of dllm has no experiment=published/gone",)
    )


def test_a_setting_that_an_older_run_did_not_have_is_no_difference() -> None:
    config = config_of("published/dual")
    older = {**config, "cache": {key: value for key, value in config["cache"].items() if key != "keep_stale_tail"}}
    found = beside(older, 4096)
    assert found is not None and found.unlike == () and "keep_stale_tail" in config["cache"]


def test_the_figures_change_no_identity() -> None:
    config = config_of("published/prefix")
    assert relevant(config) == relevant({key: value for key, value in config.items() if key != "published"})


def test_a_run_and_a_sweep_print_ours_beside_theirs(run: Run, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "q").write_text('{"prompt": "w1 w2", "answer": "w3"}\n')
    asked = [
        "experiment=published/factor",
        f"model.path={tiny}",
        "model.dtype=float32",
        "model.device=cpu",
        "gen_length=16",
        "task=jsonl",
        f"task.path={tmp_path / 'q'}",
    ]
    outcome = run(*asked, "name=a", bare=True)
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.out.splitlines() if line.strip().startswith("published ")]
    assert line.split() == ["published", "78.1", "96"]
    told = " ".join(outcome.out.split())
    assert "published: Fast-dLLM++, arXiv 2606.02955, README; one H100. 79,047 forwards in all." in told
    width = json.loads((tiny / "config.json").read_text())["d_model"]
    assert f"Not comparable: a demo model, {width} wide, not 2048 or more; " in told and "task=jsonl, not gsm8k" in told
    swept = run("-m", *asked, "name=b", bare=True)
    assert swept.code == 0 and "  published: score 78.1, tokens/s 96; Not comparable: a demo model" in swept.out
