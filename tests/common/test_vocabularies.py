"""Ten refusals in five vocabularies, as each reader gets them (``tests/data/vocabularies.json``).

``python -m tests.common.test_vocabularies`` prints them side by side; ``--write`` records them anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dllm import part
from dllm.parts import (
    CHAT_WORDS,
    COMMAND_LINE,
    MESSAGES_WORDS,
    OLLAMA_WORDS,
    PYTHON,
    Json,
    Refusal,
    Regex,
    Sampling,
    Wording,
    automaton_of,
    refuse_other_parts,
)
from tests.compose.test_clashes import ROWS as CLASHES
from tests.compose.test_clashes import refused

FILE = Path(__file__).parents[1] / "data" / "vocabularies.json"
VOCABULARIES: dict[str, Wording] = {
    "command line": COMMAND_LINE,
    "Python": PYTHON,
    "chat": CHAT_WORDS,
    "Messages": MESSAGES_WORDS,
    "Ollama": OLLAMA_WORDS,
}
# Settings by which a reader of another vocabulary would know that a sentence is not for him.
IN_REQUESTS = ("sampling.", "gen_length", "sampler/inner", "infill=", " constraint.")
FOREIGN = {
    "Python": ("sampling.", "null", "sampler/inner"),
    "chat": IN_REQUESTS,
    "Messages": IN_REQUESTS,
    "Ollama": IN_REQUESTS,
}


def clash(**settings: Any) -> Callable[[], None]:
    def raised() -> None:
        if (refusal := refused({name.replace("__", "."): value for name, value in settings.items()})) is not None:
            raise refusal

    return raised


TEN: dict[str, Callable[[], Any]] = {
    "a setting that null switches off": lambda: Sampling(top_p=7),
    "a cache that must know the order": clash(cache="dkv_greedy"),
    "a rule that replaces what another ranks by": clash(sampler="credit", sampling__eos_last=True),
    "a length that leaves no room": clash(gen_length=100_000),
    "a rule inside another": lambda: part("sampler", "credit", inner="wino"),
    "an option that a part has not": lambda: part("sampler", "confidence", treshold=0.5),
    "a part by its name elsewhere": lambda: part("sampler", "low_confidence"),
    "a pattern": lambda: automaton_of(Regex("(?=a{2})b")),
    "a depth of JSON": lambda: Json(depth=-1),
    "a canvas without holes": lambda: refuse_other_parts([0]),
}


def caught(does: Callable[[], Any]) -> Refusal:
    with pytest.raises(Refusal) as found:
        does()
    return found.value


def shown(refusal: Refusal) -> dict[str, str]:
    return {name: refusal.text(words) for name, words in VOCABULARIES.items()}


@pytest.mark.parametrize("name", TEN)
def test_a_refusal_reads_in_the_words_of_its_reader(name: str) -> None:
    refusal = caught(TEN[name])
    assert {"at": refusal.at, **shown(refusal)} == json.loads(FILE.read_text())[name]
    assert refusal.at in refusal.places and str(refusal) == refusal.text(PYTHON)


def test_no_reader_is_told_of_the_words_of_another() -> None:
    refusals = [caught(does) for does in TEN.values()] + [refused(row["input"]) for row in CLASHES]
    found = [
        (reader, text)
        for one in refusals
        if one is not None
        for reader, text in shown(one).items()
        for word in FOREIGN.get(reader, ())
        if word in text
    ]
    assert found == [] and len(refusals) > 100


def main() -> None:
    recorded = {name: {"at": caught(does).at, **shown(caught(does))} for name, does in TEN.items()}
    if "--write" in sys.argv:
        FILE.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
    for name, texts in recorded.items():
        print(f"{name}:", *(f"  {reader:13} {text}" for reader, text in texts.items()), sep="\n")


if __name__ == "__main__":
    main()
