"""The mini models' tasks as items of a benchmark."""

from __future__ import annotations

import json

from dllm.tasks.mini import suite, tasks


def test_items_are_the_held_out_questions_with_their_budgets() -> None:
    found = suite.questions(list(suite.SUITE_NAMES), 2, 7)
    assert len(found.items) == 2 * len(tasks.TASKS) == len({item.id for item in found.items})
    assert {item.budget for item in found.items if "puzzle" not in item.task} == {32, 128}
    for item in found.items:
        sample = tasks.generate(suite.SUITE_NAMES[item.task], 7, 2)[int(item.id.rpartition("/")[2])]
        assert item.prompt == sample.messages and sample.split == "test"
        kept = json.loads(json.dumps(item.truth))  # as results are written and read again
        assert tasks.judge(sample.task, kept, sample.answer)["score"] == 1
        assert suite.mini_scores(item, sample.answer)["score"] == 1 and suite.mini_scores(item, "")["score"] == 0
    assert found.wording["waiting_line/copy"].startswith("Copy the list:\n[")
