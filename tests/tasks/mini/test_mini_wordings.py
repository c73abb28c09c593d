"""How requests are worded: enough wordings, none of the held-back ones in training, nothing left unfilled."""

from __future__ import annotations

import re
from itertools import chain, product
from random import Random

import pytest

from dllm.tasks.mini import styles, tasks, wordings
from experiments.mini import tokenizer

SLOTS = {"items": "ITEMS", "word": "WORD", "at": "7"}


@pytest.mark.parametrize("task", tasks.TASKS)
def test_every_task_has_many_wordings_and_three_held_back(task: str) -> None:
    assert len(wordings.TRAINED[task]) >= 5 and len(wordings.MORE[task]) >= 30 and len(wordings.UNSEEN[task]) >= 3


def test_no_request_is_of_two_tasks_or_both_trained_on_and_held_back() -> None:
    of: dict[str, str] = {}
    held_back: set[str] = set()
    for task in tasks.TASKS:
        for template in chain(wordings.TRAINED[task], wordings.MORE[task]):
            for text in every_opening(template):
                assert of.setdefault(text, task) == task, text
        opened = set(chain.from_iterable(map(every_opening, wordings.UNSEEN[task])))
        assert not opened & held_back, opened & held_back
        held_back |= opened
    assert not held_back & set(of), held_back & set(of)


def every_opening(template: str) -> set[str]:
    """All texts of a template, in lower case."""
    parts = [part.split("|") if place % 2 else [part] for place, part in enumerate(styles.CHOICE.split(template))]
    return {re.sub(" +", " ", "".join(chosen)).strip().lower() for chosen in product(*parts)}


def test_the_text_of_a_template_decides_whether_it_is_held_back() -> None:
    """By hand: the CRC-32 of the first is 279998046, six times 46666341; that of the other is not divisible by six."""
    assert wordings.held_back("Just copy it") and not wordings.held_back("Ditto")
    for task in tasks.TASKS:
        assert all(wordings.held_back(text) for text in wordings.UNSEEN[task])
        assert not any(wordings.held_back(text) for text in wordings.MORE[task])
    held_back, trained = (sum(map(len, of.values())) for of in (wordings.UNSEEN, wordings.MORE))
    assert 0.12 < held_back / (held_back + trained) < 0.24


@pytest.mark.parametrize("task", tasks.TASKS)
def test_further_templates_have_the_slots_of_their_task_and_no_word_that_is_kept_from_training(task: str) -> None:
    plain = set(re.findall(r"\{\w+\}", wordings.TRAINED[task][0])) - {"{items}"}
    kept = {word.lower() for word in tokenizer.new_words()}
    further = (*wordings.MORE[task], *wordings.UNSEEN[task])
    assert len(set(further)) == len(further)
    for template in further:
        assert set(re.findall(r"\{\w+\}", template)) - {"{items}"} == plain, template
        assert not set("{}()|[]") & set(styles.open_up(re.sub(r"\{\w+\}", "", template), Random(0))), template
        assert template == template.strip() and not template.endswith((".", ":", "?")), template
        assert not kept & set(re.findall("[a-z]+", re.sub(r"\{\w+\}", " ", template).lower())), template


@pytest.mark.parametrize("wording", ["plain", "trained", "more", "more strewn", "unseen"])
@pytest.mark.parametrize("task", tasks.TASKS)
def test_requests_name_what_they_are_about(task: str, wording: str) -> None:
    of = styles.TEMPLATES[wording if wording != "plain" else "trained"]
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
