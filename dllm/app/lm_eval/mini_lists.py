"""Questions of mini_lists.yaml: lists to copy, sort and reverse, from the suite ``mini``, no file and no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

from datasets import Dataset

import dllm.app.lm_eval.lm  # noqa: F401  registers the model
from dllm.tasks.mini import tasks as mini

LIST_TASKS, QUESTIONS_PER_TASK = ("copy", "sort", "reverse"), 20


def documents(**_: Any) -> dict[str, Dataset]:
    """Twenty held-out questions of each kind, in turn. lm-eval hands in the model's arguments, which play no part."""
    each = (mini.generate(task, 0, QUESTIONS_PER_TASK) for task in LIST_TASKS)
    samples = chain.from_iterable(zip(*each, strict=True))
    rows = [
        {"kind": sample.task, "prompt": sample.prompt, "answer": sample.answer, "truth": json.dumps(sample.truth)}
        for sample in samples
    ]
    return {"test": Dataset.from_list(rows)}


def process_results(doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """The suite's own score of the answer."""
    return {"score": float(mini.judge(doc["kind"], json.loads(doc["truth"]), results[0])["score"])}
