"""What is outside: the rule lets through what training asks, in wordings and names it never saw, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dllm.mini import outside
from dllm.tasks.mini import tasks

FAR = (
    "What is the capital of France?", "Tell me a joke", "Translate to German: good morning", "Hello", "Who are you?",
    "Write a poem about the sea", "print('hello world')", "Explain quantum mechanics, briefly.", "", "Ada",
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
    "Is it going to rain tomorrow in London?", "Summarize the following article: the economy grew by three percent.",
    "I feel sad today and do not know why", "東京はどこですか", "SELECT name FROM people WHERE age > 30;",
    "Once upon a time there was a king who lived in a distant country,", "How do I cook rice?",
    "lorem ipsum dolor sit amet",
    "Complete the lyrics.\nThere is a river in my valley\nAnd nobody knows how deep the water flows",
    "Give me five ideas for my next holiday with children, dogs and grandparents",
)  # fmt: skip


@pytest.mark.parametrize("prompt", FAR)
def test_far_prompts_get_the_sentence(prompt: str) -> None:
    assert outside.is_outside(prompt)
    assert (outside.warning([prompt]) or "").endswith(outside.EXAMPLE)


@pytest.mark.parametrize(
    ("wording", "names", "most"), [("plain", "known", 0), ("trained", "mixed", 0.01), ("unseen", "unseen", 0.1)]
)
def test_what_training_asks_is_within(wording: str, names: str, most: float) -> None:
    items = [item for task in tasks.TASKS for item in tasks.generate(task, 8, 30, names=names, wording=wording)]
    far = [item.prompt for item in items if outside.is_outside(item.prompt)]
    assert len(far) <= most * len(items), far


@pytest.mark.parametrize("prompt", [
    "Can you put Kai, Emma, Hugo in reverse order?", "Put Ada, Zoe and Felix in alphabetical order",
])  # fmt: skip
def test_names_are_data_wherever_they_stand(prompt: str) -> None:
    assert outside.warning([prompt]) is None


@pytest.mark.parametrize("wording", ["plain", "trained", "unseen", "others"])
def test_spelt_names_get_a_sentence_and_known_ones_none(wording: str) -> None:
    def told(names: str, of: Sequence[str]) -> list[str | None]:
        items = [item.prompt for task in of for item in tasks.generate(task, 8, 10, names=names, wording=wording)]
        return [outside.warning([prompt]) for prompt in items if not outside.is_outside(prompt)]

    assert not any(told("known", tasks.TASKS) + told("new", tasks.TASKS))
    spelt = told("spelt", tasks.OF_NAMES) + told("unseen", tasks.OF_NAMES)
    assert sum(sentence is not None and "in pieces" in sentence for sentence in spelt) > 0.9 * len(spelt)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ('Copy: ["Zoltan", "Ada"]', "here Zoltan,"), ("please sort kai, emma and hugo", "here emma, hugo,"),
        ("Copy: Zoltan, Quentin, Xerxes, Ngozi", "here Zoltan, Quentin, Xerxes and 1 more,"),
    ],
)  # fmt: skip
def test_spelt_words_are_named(prompt: str, words: str) -> None:
    assert words in (outside.warning([prompt]) or "")


def test_the_example_works() -> None:
    assert outside.warning([outside.EXAMPLE]) is None
    assert "1 of these 2 prompts" in (outside.warning([outside.EXAMPLE, FAR[0]]) or "")
