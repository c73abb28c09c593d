"""What does not go together (``tests/data/clashes.json``): place, sentence and ways out of each row of the tables.

``python -m tests.compose.test_clashes`` writes the places and sentences of its inputs anew.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dllm import Decoder, load
from dllm.parts import (
    COMMAND_LINE,
    PYTHON,
    REQUIRED_OPTIONS,
    FixedLength,
    IncompatibleParts,
    ModelKind,
    Refusal,
    Sampling,
    Selection,
    Set,
    Setting,
    SettingWarning,
    all_parts,
    part,
    read_model_config,
    shipped_folder,
    shipped_models,
    validate,
)

FILE = Path(__file__).parents[1] / "data" / "clashes.json"
ROWS: list[dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else []
GROUPS = ("sampler", "blocks", "cache", "eos", "length")
DEFAULTS = {"model": "mini-llada", "sampler": "confidence", "blocks": "fixed", "cache": "none", "eos": "none"}
Input = Mapping[str, Any]


@cache
def kinds() -> dict[str, ModelKind]:
    """Models by name: one of each kind, and those that come along."""
    shipped = {name: ModelKind(name, read_model_config(shipped_folder(name)), name) for name in shipped_models()}
    return {kind.name: kind for kind in ModelKind.all()} | shipped


@cache
def built(group: str, name: str, options: str) -> Any:
    """A part with options, in JSON."""
    given = dict(REQUIRED_OPTIONS.get((group, name), {})) | json.loads(options)
    inner = given.pop("inner", None)
    return part(group, name, **given, **({"inner": built("sampler", inner, "{}")} if inner else {})) or FixedLength()


def chosen(given: Input) -> Selection:
    """The combination that settings of the command line stand for."""
    settings = {**DEFAULTS, **given}
    own: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if "." in name:
            group, _, option = name.partition(".")
            own.setdefault(group, {})[option] = value
    parts = {
        group: built(group, settings.get(group, "fixed"), json.dumps(own.get(group, {}), sort_keys=True))
        for group in GROUPS
    }
    kind = kinds()[settings["model"]]
    config = replace(kind.config, **own.get("model", {}))
    sampling = Sampling(**own.get("sampling", {})).under(parts["sampler"])
    setting = Setting(config, parts.pop("blocks"), settings.get("gen_length"), sampling, kind.name)
    return Selection(setting, **parts)


def applied(given: Input, way: Set) -> Input:
    """The settings with a way out. Options of a part go with the part."""
    after = dict(given)
    for name, value in way.all.items():
        if name in GROUPS:
            after = {key: one for key, one in after.items() if not key.startswith(f"{name}.")}
        after[name] = value
    return after


def refused(given: Input) -> Refusal | None:
    """What the command line, Python and a server are told."""
    c = chosen(given)
    try:
        validate(c.setting, c.sampler, c.cache, c.eos, c.length)
    except Refusal as refusal:
        return refusal
    return None


def refuse_false_ways(given: Input, refusal: Refusal) -> int:
    """Try each way out: the same reason does not come back. Returns how many there are."""
    for way in refusal.use:
        after = refused(applied(given, way))
        assert after is None or after.says != refusal.says, (given, way, after.text(COMMAND_LINE))
    return len(refusal.use)


@pytest.mark.parametrize("row", ROWS, ids=[" ".join(f"{k}={v}" for k, v in row["input"].items()) for row in ROWS])
def test_what_does_not_go_together_is_refused_as_recorded(row: dict[str, Any]) -> None:
    warnings.simplefilter("ignore", SettingWarning)
    refusal = refused(row["input"])
    assert refusal is not None and (refusal.at, refusal.text(COMMAND_LINE)) == (row["at"], row["text"])
    refuse_false_ways(row["input"], refusal)
    python = refusal.text(PYTHON)
    assert "sampling." not in python and "null" not in python and str(refusal) == python


def test_every_way_out_takes_its_refusal_away() -> None:
    """Law 25, over a sample of all combinations of the compatibility page: 648,648 with seven kinds of models."""
    warnings.simplefilter("ignore", SettingWarning)
    groups = GROUPS[:4]
    parts = dict(zip(groups, all_parts(), strict=True))
    draw, tried, ways = Random(75), 0, 0
    while tried < 3000:
        given = {group: draw.choice([*parts[group]]) for group in groups}
        given["model"] = draw.choice([kind.name for kind in ModelKind.all()])
        if (refusal := refused(given)) is not None:
            tried += 1
            ways += refuse_false_ways(given, refusal)
    assert ways > tried


def main() -> None:
    """Write the table anew."""
    warnings.simplefilter("ignore", SettingWarning)
    rows = []
    for row in ROWS:
        if (refusal := refused(row["input"])) is not None:
            rows.append({"input": row["input"], "at": refusal.at, "text": refusal.text(COMMAND_LINE)})
    FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()


def test_a_length_is_a_way_out_of_a_cache_that_does_not_serve_it() -> None:
    parts = {"blocks": "fixed", "cache": "finished", "eos": "none", "length": "rho_eos"}
    with pytest.raises(IncompatibleParts) as refused:
        Decoder(load("mini-wedlm"), "confidence", gen_length=8, **parts)
    assert str(refused.value).count("length=fixed") == 1
