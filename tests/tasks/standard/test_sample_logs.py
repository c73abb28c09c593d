"""Logs of samples are those that lm-eval's own evaluator writes of the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dllm.app.lm_eval.sample_logs import main
from dllm.parts import StoredCell, UserError, composed_settings, write_sample_logs
from tests.tasks.standard.test_harness import offline as offline
from tests.tasks.standard.test_harness import sums, written

lm_eval = pytest.importorskip("lm_eval", reason="the extra [eval] is not installed")

TEXTS = ["0 + 0 = 0\n#### 0", "It is 2.", "no number", "#### 6"]


def their_samples(out: Path) -> list[dict[str, Any]]:
    """What lm-eval writes of a model that gives these texts."""
    from datasets import Dataset
    from lm_eval.api.model import LM
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.evaluator import evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks._yaml_loader import load_yaml

    from dllm.parts import stock_folder

    class Told(LM):
        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return [TEXTS[request.doc_id] for request in requests]

        def loglikelihood(self, requests: Any) -> Any: ...

        def loglikelihood_rolling(self, requests: Any) -> Any: ...

    config = load_yaml(stock_folder() / "gsm8k" / "gsm8k.yaml")
    data = {"test": Dataset.from_list(sums(4)), "train": Dataset.from_list(sums(1))}
    task = ConfigurableTask(config={**config, "tag": None, "num_fewshot": 0, "custom_dataset": lambda **_: data})
    samples = evaluate(Told(), {"gsm8k": task}, log_samples=True, bootstrap_iters=0)["samples"]["gsm8k"]
    tracker = EvaluationTracker(output_path=str(out / "x.json"))
    tracker.date_id = "now"
    tracker.save_results_samples("gsm8k", samples)
    return [json.loads(line) for line in (out / "samples_gsm8k_now.jsonl").read_text().splitlines()]


def test_the_file_is_the_one_that_lm_eval_writes(tmp_path: Path) -> None:
    settings = {"task": "gsm8k", "task.path": written(tmp_path / "q", *sums(4)), "task.shots": 0}
    task = {**composed_settings(settings)["task"], "name": "gsm8k"}
    rows = [{"id": f"gsm8k/{number}", "text": text, "scores": {"score": 0.0}} for number, text in enumerate(TEXTS)]
    (tmp_path / "cell").mkdir()
    (file,) = write_sample_logs(StoredCell(tmp_path / "cell", {"task": task}, rows), "now")
    assert file.name == "samples_gsm8k_now.jsonl"
    ours = [json.loads(line) for line in file.read_text().splitlines()]
    theirs = their_samples(tmp_path)
    order = lambda sample: (sample["doc_id"], sample["filter"])  # noqa: E731
    assert sorted(ours, key=order) == sorted(theirs, key=order)
    assert [sample["exact_match"] for sample in sorted(ours, key=order)] == [1, 1, 1, 0, 0, 0, 1, 1]


def test_a_run_of_another_task_and_a_folder_without_one_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "q", {"prompt": "a", "answer": "b"})
    task = {**composed_settings({"task": "jsonl", "task.path": path})["task"], "name": "jsonl"}
    row = {"id": "1", "text": "b", "scores": {"score": 1.0}}
    with pytest.raises(UserError, match="task=jsonl, which is none of lm-eval"):
        write_sample_logs(StoredCell(tmp_path, {"task": task}, [row]))
    with pytest.raises(UserError, match="does not exist"):
        main([str(tmp_path / "nowhere")])
