"""What the folders of runs and sweeps hold, read back: names of files, settings, finished samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm.common.errors import UserError, in_words

if TYPE_CHECKING:  # it imports torch, and the command line does not
    from dllm.record.results import ResultRow

SampleKey = tuple[str, int]  # prompt id, number of the sample

CONFIG, ENVIRONMENT, RESULTS, TRACES = "config.yaml", "environment.json", "results.jsonl", "traces"
TOTALS = "totals.json"  # metrics over all answers, made again from the results whenever a run ends
PART_RESULTS = RESULTS.replace(".", "-{}.")  # written by one process of several, by its number
REFUSED_FILE = "refused.json"
SWEEP = "multirun.yaml"  # what Hydra leaves in a sweep's folder

# Settings that cannot change a sample. Prompts, questions, judges and checkpoints count by content, not by place.
PRESENTATION = frozenset(
    ("again", "animate", "compare", "live", "name", "output", "prompt", "prompts", "resume", "trace")
    + ("task.name", "task.run", "task.path", "task.grammar", "task.bertscore")
    + ("model.name", "model.path", "model.adapter", "model.prompt", "model.expects", "model.tp_timeout")
    + ("model.key_env", "model.at_once", "model.timeout", "model.retries")  # how an endpoint is asked
    + ("model.architecture",)  # what older folders call model.expects
)
ALONE_SETTINGS = {"model.tp": 1, "model.ep": False}  # of one process, which older folders do not name
# Where samples are decoded, what a paper reports of its own, and by which names parts were typed.
NO_SETTINGS = ("engine.", "published.", "choices.")


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, name + ".") if isinstance(value, Mapping) else {name: value}
    return flat


def relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys of a configuration that can change an outcome."""
    settings = {key: value for key, value in flatten(config).items() if not key.startswith(NO_SETTINGS)}
    choices = {key: value for key, value in settings.items() if ALONE_SETTINGS.get(key, ...) != value}
    return {key: value for key, value in choices.items() if key not in PRESENTATION}


def read_environment(folder: Path) -> dict[str, Any]:
    """What a run noted of its machine and of what it was made; empty where the file is missing. Raises UserError for
    a file that holds anything else."""
    file = folder / ENVIRONMENT
    try:
        content = json.loads(file.read_bytes()) if file.is_file() else {}
    except ValueError:
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("content", {}), dict):
        raise UserError(f"{file} is broken. Restore it, or delete it: what has changed since is then not known.")
    return content


def key_of(row: ResultRow) -> SampleKey:
    return str(row["id"]), int(row["sample"])


def read_all_results(folder: Path) -> list[ResultRow]:
    """The finished samples in a run's folder, each once, with what processes of ``engine=accelerate`` hold or left."""
    files = [folder / RESULTS, *sorted(folder.glob(PART_RESULTS.format("*")))]
    samples: dict[SampleKey, ResultRow] = {}
    for row in (row for file in files for row in read_results(file)[0]):
        samples.setdefault(key_of(row), row)
    return list(samples.values())


def read_results(file: Path) -> tuple[list[ResultRow], int]:
    """Finished samples, and the byte at which the last one ends. A half-written last line is left out.

    Raises UserError when an earlier line is broken, which a killed run does not explain.
    """
    rows: list[ResultRow] = []
    end = 0
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            key_of(row)
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise UserError(
                    f"line {number} of {file} is broken ({in_words(error)}). Delete it, then resume."
                ) from None
            break
        if not line.endswith(b"\n"):
            break
        rows.append(row)
        end += len(line)
    return rows, end
