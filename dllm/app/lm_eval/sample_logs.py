"""``python -m dllm.app.lm_eval.sample_logs runs/NAME``: the answers of a run of lm-eval's tasks in lm-eval's format.

Each cell's folder gets ``samples_TASK_DATE.jsonl``, as lm-eval's ``--log_samples`` writes it, so that what reads those
reads these. Nothing is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from dllm.app.lm_eval.__main__ import main as as_command
from dllm.common.atomic_write import write_or_refuse
from dllm.common.errors import UserError
from dllm.common.installing import not_installed
from dllm.common.terminal import VisibleParser, say
from dllm.prompts import PrefilledPrompt
from dllm.record.results import ResultRow
from dllm.record.stored import StoredCell, stored_cells
from dllm.tasks.base import Item
from dllm.tasks.build import task_of
from dllm.tasks.standard.harness import Harness

LOG_THEM_THERE = "Use python -m dllm.app.lm_eval with --log_samples."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = VisibleParser(prog="python -m dllm.app.lm_eval.sample_logs", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders of runs or sweeps")
    for folder in parser.parse_args(arguments).folders:
        for cell in stored_cells(folder):
            for file in write_sample_logs(cell):
                say(str(file))


def write_sample_logs(cell: StoredCell, date: str | None = None) -> list[Path]:
    """Write a file for each of lm-eval's tasks in a cell, and return them. date: in their names (None: now). Raises
    UserError for a task that is not lm-eval's, and where its questions cannot be had."""
    date = date or datetime.now().isoformat().replace(":", "-")
    files = []
    for name, samples in sample_logs(cell).items():
        lines = [json.dumps(sample, default=str, ensure_ascii=False) for sample in samples]
        files.append(
            write_or_refuse(cell.folder / f"samples_{name}_{date}.jsonl", "".join(f"{line}\n" for line in lines))
        )
    return files


def sample_logs(cell: StoredCell) -> dict[str, list[dict[str, Any]]]:
    """The lines of each task's file: one for each answer and filter. Raises UserError as ``write_sample_logs``."""
    task = task_of(cell.config["task"])
    if not isinstance(task, Harness):
        raise UserError(
            f"{cell.folder} is a run of task={cell.config['task'].get('name')}, which is none of lm-eval's."
        )
    items = {item.id: item for item in task.items()}
    logs: dict[str, list[dict[str, Any]]] = {}
    for row in cell.rows:
        item = items.get(str(row["id"]))
        if item is None:
            raise UserError(f"{cell.folder} has an answer to {row['id']!r}, which its task does not ask any more.")
        if item.choices:
            raise UserError(f"{cell.folder} holds likelihoods of choices, which a run does not keep. {LOG_THEM_THERE}")
        logs.setdefault(item.task, []).extend(_samples(task, item, row))
    return logs


def _samples(task: Harness, item: Item, row: ResultRow) -> Iterator[dict[str, Any]]:
    """One answer under every filter, as ``lm_eval.evaluator`` logs it."""
    try:
        from lm_eval.api.instance import Instance
        from lm_eval.utils import handle_non_serializable, hash_string
    except ImportError:
        raise not_installed("this command", "lm-evaluation-harness", "eval") from None
    whole, text = task.parts[item.task], str(row["text"])
    number = int(item.id.rpartition("/")[2])
    doc = dict(whole.eval_docs[number])
    context = f"{item.prompt.prompt}{item.prompt.begin}" if isinstance(item.prompt, PrefilledPrompt) else item.prompt
    request = ("generate_until", doc, (context, whole.config.generation_kwargs or {}), 0)
    instance = Instance(*request, metadata=(item.task, number, 1), resps=[text])
    for pipeline in whole._filters:
        pipeline.apply([instance])
    target = whole.doc_to_target(doc)
    for name, answer in instance.filtered_resps.items():
        metrics = whole.process_results(doc, [answer]) if task.stock is None else dict(row["scores"])
        yield {
            "doc_id": number,
            "doc": doc,
            "target": str(target),
            "arguments": {"gen_args_0": {f"arg_{at}": argument for at, argument in enumerate(instance.args)}},
            "resps": [[text]],
            "filtered_resps": [answer],
            "filter": name,
            "metrics": list(metrics),
            "doc_hash": hash_string(json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)),
            "prompt_hash": hash_string(instance.arguments[0]),
            "target_hash": hash_string(str(target)),
            **metrics,
        }


if __name__ == "__main__":
    as_command(main)
