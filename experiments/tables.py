"""Columns of our own for ``dllm report --columns``, by their dotted names."""

from __future__ import annotations

from dllm.record.measures import mean
from dllm.tasks.mini.tasks import FREE
from dllm.view.report.pooling import SettingResults


def of_many_right_answers(one: SettingResults, _: SettingResults | None) -> str:
    """The score of the tasks that leave a choice, in percent."""
    value = mean([score for task, score in one.scores.items() if task.rpartition("/")[2] in FREE])
    return "" if value is None else f"{value:.0f}"
