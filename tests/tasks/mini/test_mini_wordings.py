"""How requests are worded: enough wordings, none of the held-out ones in training, nothing left unfilled."""

from __future__ import annotations

from random import Random

import pytest

from dllm.tasks.mini import styles, tasks, wordings

SLOTS = {"items": "ITEMS", "word": "WORD", "at": "7"}
OF = {**wordings.SOURCES, "plain": wordings.TRAINED, "more strewn": wordings.FURTHER}
SHOWN = ("trained", "more", "many")


def opened(task: str, source: str) -> set[str]:
    """Every wording of the templates, in lower case."""
    return {one for template in wordings.SOURCES[source][task] for one in every(template)}


def every(template: str) -> list[str]:
    found = styles.CHOICE.search(template)
    if found is None:
        return [styles.open_up(template, Random(0)).lower()]
    made = (template[: found.start()] + one + template[found.end() :] for one in found[1].split("|"))
    return [one for text in made for one in every(text)]


@pytest.mark.parametrize("task", tasks.TASKS)
def test_every_task_has_five_wordings_and_a_sixth_of_many_more_held_out(task: str) -> None:
    more = wordings.all_further()[task]
    assert len(wordings.TRAINED[task]) >= 5 and len(set(more)) == len(more) >= 390 and len(wordings.UNSEEN[task]) >= 40
    never = opened(task, "unseen") | opened(task, "others") | opened(task, "strange")
    shown = set().union(*(opened(task, one) for one in SHOWN))
    assert len(wordings.SOURCES["others"][task]) >= 15 and not never & shown


def test_the_hash_of_a_template_decides_whether_training_sees_it() -> None:
    assert wordings.held_out("Just copy it") and not wordings.held_out("Without position {at}")
    for task in wordings.TRAINED:
        never, asked = wordings.UNSEEN[task] + wordings.STRANGE[task], wordings.all_further()[task]
        assert [*map(wordings.held_out, asked)] == [text in never for text in asked]
        assert len(never) + len(wordings.FURTHER[task]) + len(wordings.MANY[task]) == len(set(asked))


def test_strange_wordings_hold_a_word_that_training_never_shows() -> None:
    shown = {
        word
        for task in tasks.TASKS
        for source in SHOWN
        for text in opened(task, source)
        for word in wordings.request_words(text)
    } | {*wordings.FILLERS, *wordings.vocabulary()}
    assert all(wordings.request_words(text) <= shown for of in wordings.UNSEEN.values() for text in of)
    strange = [text for of in wordings.STRANGE.values() for text in of]
    assert len(strange) > 20 and not any(wordings.request_words(text) <= shown for text in strange)


def test_a_wording_asks_for_one_task_and_leaves_nothing_out() -> None:
    """Its slots are those of the task's plain template."""
    tasks_of: dict[str, set[str]] = {}
    for task in wordings.TRAINED:
        templates = wordings.all_further()[task] + wordings.others()[task]
        plain = set(styles.SLOT.findall(wordings.TRAINED[task][0])) - {"{items}"}
        for template in templates:
            assert {*styles.SLOT.findall(template)} - {"{items}"} == plain, template
            assert template == template.strip() and template.count("(") == template.count(")")
        for source in wordings.SOURCES:
            for one in opened(task, source):
                tasks_of.setdefault(one, set()).add(task)
    assert [one for one, found in tasks_of.items() if len(found) > 1] == []


@pytest.mark.parametrize("wording", OF)
@pytest.mark.parametrize("task", tasks.TASKS)
def test_requests_name_what_they_are_about(task: str, wording: str) -> None:
    needed = {slot for slot in SLOTS if all(f"{{{slot}}}" in text for text in OF[wording][task])} | {"items"}
    for seed in range(30):
        text = styles.ask(task, SLOTS, Random(seed), wording)
        assert all(SLOTS[slot].lower() in text.lower() for slot in needed) and not set("{}()|") & set(text)


def test_lists_are_written_in_many_ways_and_hold_the_items() -> None:
    rng = Random(0)
    written = {styles.styled_list(["Ada", "Ben", "Zoe"], rng) for _ in range(400)}
    assert written >= {'["Ada", "Ben", "Zoe"]', "['Ada', 'Ben', 'Zoe']", "Ada, Ben, Zoe", "Ada,Ben,Zoe"}
    assert len(written) == len(styles.LISTS)
    assert all(text.index("Ada") < text.index("Ben") < text.index("Zoe") for text in written)
    assert styles.and_list(["Ada"]) == "Ada" and styles.and_list(["Ada", "Ben"]) == "Ada and Ben"


def test_cases_leave_slots_alone() -> None:
    seen = {styles.change_case("Insert {word} here", Random(seed)) for seed in range(80)}
    assert seen == {"Insert {word} here", "insert {word} here", "INSERT {word} HERE", "Insert {word} Here"}


@pytest.mark.parametrize("source", wordings.SOURCES)
def test_what_the_tasks_ask_is_known_in_every_wording(source: str) -> None:
    asked = [one.prompt for task in tasks.TASKS for one in tasks.generate(task, 5, 4, wording=source)]
    assert [prompt for prompt in asked if not wordings.is_request(prompt)] == []


@pytest.mark.parametrize(
    ("prompt", "known"),
    [
        ("Why is the sky blue?", False),
        ("Tell me a joke", False),
        ("Write a poem about people", False),
        ("hello", False),
        ("What is 17 + 4?", False),
        ("shuffle these names: ada, felix", True),
        ("[1, 2]", True),
        ("Latin square: A,B", True),
        ("Why? " * 3000 + "\nNow sort the list: [b, a]", True),
        ("Items and words with names, " * 3000, False),
    ],
)
def test_what_nothing_asks_is_not_known(prompt: str, known: bool) -> None:
    assert wordings.is_request(prompt) == known
