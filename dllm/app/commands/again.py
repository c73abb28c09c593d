"""``again=FOLDER``: decode once more what a run folder decoded, and say whether the answers are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dllm.app.commands.evaluate import engine_of
from dllm.app.commands.prompt import PromptRun
from dllm.app.runs.cells import run_cell
from dllm.app.runs.folder import setting_differences
from dllm.app.runs.plan import RunPlan
from dllm.common.errors import UserError
from dllm.common.terminal import say
from dllm.models.weights.checkpoint_path import locate
from dllm.record.folders import SampleKey, key_of, read_all_results, read_environment
from dllm.record.results import ResultRow

OF_TIME = frozenset({"seconds", "began", "cpu_seconds", "load"})  # what differs from run to run
FIRST_COMPARED = ("prompt_tokens", "tokens", "text", "canvas")  # a difference there explains those of other fields
OF_PLACE = ("python", "platform", "processor", "threads", "device", "gpus", "dtype", "commit", "dirty")
CHECKPOINT = "checkpoint"


def run(config: dict[str, Any], names: Sequence[str]) -> None:
    """Print ``n of n equal`` or the first difference and what has changed since; the exit code is 1 when there is one.

    Raises UserError for a folder without samples, a conversation, and weights that are others than then."""
    folder = Path(config["again"])
    then = {key_of(row): row for row in read_all_results(folder)}
    stamp = read_environment(folder)
    if not then or config["chat"]:
        why = "was a conversation, which is not kept" if config["chat"] else "holds no finished sample"
        raise UserError(f"again={folder}: it {why}. Name a folder of a run that has decoded something.")
    with TemporaryDirectory() as place:
        run_config = {**config, "again": None, "output": place, "name": "again"}
        refuse_lost_model(folder, str(config["model"]["path"]))
        now = {key_of(row): row for row in decoded_samples(run_config, folder, stamp.get("content", {}), then)}
        since = read_environment(Path(place) / "again")
    wrong = [(key, what) for key, row in then.items() if (what := row_difference(row, now.get(key)))]
    say(f"{folder}: {len(then) - len(wrong)} of {len(then)} equal")
    if wrong:
        (name, sample), what = wrong[0]
        say(f"The first that differs is {name}{f' (sample {sample})' if sample else ''}: {what}")
        changed = list(environment_differences(stamp, since)) if stamp else []
        nothing = "nothing that was noted" if stamp else "not known, as environment.json is missing"
        say(f"Changed since: {'; '.join(changed) or nothing}.")
        raise SystemExit(1)


def decoded_samples(
    config: dict[str, Any], folder: Path, content: Mapping[str, str], samples_then: Mapping[SampleKey, ResultRow]
) -> list[ResultRow]:
    """Decode ``samples_then`` again, with the others of their batches. content: what the run was made of."""
    if "_target_" in config["task"]:
        engine, cell = engine_of(config), run_cell(config)
        refuse_other_weights(folder, content, cell.evaluation.content)
        answers = cell.evaluation.answers
        answers.batches = [entry for entry in answers.batches if not samples_then.keys().isdisjoint(entry.keys)]
        for _ in engine.run(iter([cell])):
            pass
        return cell.rows()
    plan = RunPlan.of(config)
    refuse_other_weights(folder, content, plan.content())
    samples = [entry for entry in plan.samples() if entry.key in samples_then]
    if not samples:
        return []
    with plan.open_folder(samples) as run_folder:
        return next(iter(PromptRun(plan, samples, run_folder).decode().values()))


def refuse_lost_model(folder: Path, path: str) -> None:
    """Raise UserError where the checkpoint that decoded the run is not there any more."""
    try:
        locate(path, weights=False)
    except UserError:
        raise UserError(
            f"again={folder}: the model that decoded it, {path}, is not there any more. Name the folder that holds it "
            "now by model.path=FOLDER."
        ) from None


def refuse_other_weights(folder: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise UserError where the checkpoint or its adapters are others than those of the run."""
    if CHECKPOINT in then and then[CHECKPOINT] != now[CHECKPOINT]:
        raise UserError(
            f"again={folder}: the weights are others than those that decoded it (fingerprint "
            f"{str(then.get(CHECKPOINT))[:12]} then, {now[CHECKPOINT][:12]} now). Name the folder that holds them by "
            "model.path=FOLDER."
        )


def row_difference(then: ResultRow, now: ResultRow | None) -> str:
    """The first field in which a sample differs, in words; empty: in none. Fields that one of both does not know are
    not compared."""
    if now is None:
        return "it is not among the prompts any more."
    both = [name for name in (*FIRST_COMPARED, *then) if name in then and name in now and name not in OF_TIME]
    for name in dict.fromkeys(both):
        before, after = then[name], now[name]  # type: ignore[literal-required]
        if before == after:
            continue
        if isinstance(before, list) and isinstance(after, list):
            at = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
            if at is None:
                return f"{name} has {len(before)} entries then, {len(after)} now."
            return f"{name}[{at}] is {before[at]!r} then, {after[at]!r} now."
        return f"{name} is {before!r} then, {after!r} now."
    return ""


def environment_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What of settings, versions, machine, code and content is another, as far as the folder noted it."""
    for name, before, after in setting_differences(then.get("settings", now["settings"]), now["settings"]):
        yield f"{name} {before} then, {after} now"
    for name, version in now.get("versions", {}).items():
        if (before := then.get("versions", {}).get(name, version)) != version:
            yield f"{name} {before} then, {version} now"
    for name in OF_PLACE:
        if name in then and then[name] != now.get(name):
            yield f"{name} {then[name]} then, {now.get(name)} now"
    for name, digest in now.get("content", {}).items():
        if then.get("content", {}).get(name, digest) != digest:
            yield f"{name} is another"
