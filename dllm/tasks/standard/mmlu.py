"""Tasks of the harness whose answers are choices, compared by likelihood: MMLU with its 57 subjects, and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dllm.common.errors import UserError
from dllm.scoring.decisions.likelihood import Estimator
from dllm.tasks.build import names_among
from dllm.tasks.standard.harness import Harness
from dllm.tasks.standard.json_lines import read_docs
from dllm.tasks.standard.stock import stock_folder

PREFIX = "mmlu_"


class Choices(Harness):
    """A task of the harness whose answers are choices, compared by their likelihood (scoring.decisions.likelihood)."""

    def __init__(
        self,
        harness: str,
        likelihood: str = "mc_count",
        mc_num: int = 128,
        mc_batch: int = 8,
        guidance: float = 0.0,
        mc_seed: int = 1234,
        **options: Any,
    ) -> None:
        self.estimator = Estimator(likelihood, mc_num, min(mc_batch, mc_num), guidance, mc_seed)
        super().__init__(harness, **options)


class MMLU(Choices):
    """subjects: ``all``, or names such as anatomy. A local file has the hub's columns and says each row's subject."""

    def __init__(self, subjects: str | list[str] = "all", **options: Any) -> None:
        self.subjects = subjects
        super().__init__(**options)

    def build(self) -> Iterator[tuple[str, Any]]:
        folder = stock_folder() / "mmlu" / "default"
        subjects = [file.stem.removeprefix(PREFIX) for file in sorted(folder.glob(f"{PREFIX}*.yaml"))]
        names = names_among("task.subjects", self.subjects, subjects)
        local = None if self.path is None else read_docs(self.path, self.fields)
        if local is not None:
            present = {row["subject"] for row in local}
            names = [subject for subject in names if subject in present]
            if not names:
                raise UserError(f"task.path={self.path!r} holds no row of task.subjects={self.subjects}.")
        examples = [] if self.shots_path is None else read_docs(self.shots_path, self.fields, "task.shots_path")
        for subject in names:
            rows = None
            if local is not None:
                rows = {"test": [row for row in local if row["subject"] == subject]}
                rows |= {"dev": mine} if (mine := [row for row in examples if row["subject"] == subject]) else {}
            config = self.config(folder / f"{PREFIX}{subject}.yaml")
            yield PREFIX + subject, self.load_task(PREFIX + subject, config, rows)
