"""How requests are worded: enough wordings, none of the held-back ones in training, nothing left unfilled."""

from __future__ import annotations

from random import Random

import pytest

from dllm.tasks.mini import styles, tasks, wordings

SLOTS = {"items": "ITEMS", "word": "WORD", "at": "7"}


@pytest.mark.parametrize("task", tasks.TASKS)
def test_every_task_has_five_wordings_and_three_held_back(task: str) -> None:
    assert len(wordings.TRAINED[task]) >= 5 and len(wordings.UNSEEN[task]) >= 3
    opened = [{opened_up(text, seed) for text in of[task] for seed in range(40)}
              for of in (wordings.TRAINED, wordings.UNSEEN)]  # fmt: skip
    assert not opened[0] & opened[1]


def opened_up(template: str, seed: int) -> str:
    return styles.open_up(template, Random(seed)).lower()


@pytest.mark.parametrize("wording", ["plain", "trained", "unseen"])
@pytest.mark.parametrize("task", tasks.TASKS)
def test_requests_name_what_they_are_about(task: str, wording: str) -> None:
    of = wordings.UNSEEN if wording == "unseen" else wordings.TRAINED
    needed = {slot for slot in SLOTS if all(f"{{{slot}}}" in text for text in of[task])} | {"items"}
    for seed in range(30):
        text = styles.ask(task, SLOTS, Random(seed), wording)
        assert all(SLOTS[slot].lower() in text.lower() for slot in needed) and not set("{}()|") & set(text)


def test_lists_are_written_in_many_ways_and_hold_the_items() -> None:
    rng = Random(0)
    written = {styles.styled_list(["Ada", "Ben", "Zoe"], rng) for _ in range(400)}
    assert written >= {'["Ada", "Ben", "Zoe"]', "['Ada', 'Ben', 'Zoe']", "Ada, Ben, Zoe", "Ada,Ben,Zoe"}
    assert len(written) == len(styles.LISTS)
    assert all(text.index("Ada") < text.index("Ben") < text.index("Zoe") for text in written)
    assert styles.spoken(["Ada"]) == "Ada" and styles.spoken(["Ada", "Ben"]) == "Ada and Ben"


def test_cases_leave_slots_alone() -> None:
    seen = {styles.recased("Insert {word} here", Random(seed)) for seed in range(80)}
    assert seen == {"Insert {word} here", "insert {word} here", "INSERT {word} HERE", "Insert {word} Here"}
