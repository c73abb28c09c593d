"""A refusal names ways out, and each takes that refusal away."""

from __future__ import annotations

import itertools
import re
import warnings
from random import Random
from typing import Any

from dllm.parts import (
    ModelKind,
    Setting,
    SettingWarning,
    UserError,
    all_parts,
    read_model_config,
    shipped_folder,
    shipped_models,
    validate,
)

GROUPS = ("sampler", "blocks", "cache", "eos")
WORD = rf"({'|'.join((*GROUPS, 'model'))})=([\w-]+)"
Chosen = dict[str, Any]


def clash(parts: dict[str, dict[str, Any]], kinds: dict[str, ModelKind], chosen: Chosen) -> str | None:
    """What a combination is refused for: the sentence up to what it advises; None: it is not refused."""
    kind = kinds[chosen["model"]]
    made = {group: parts[group][chosen[group]] for group in GROUPS}
    setting = Setting(kind.config, made["blocks"], None, name=kind.name)
    try:
        validate(setting, made["sampler"], made["cache"], made["eos"])
    except UserError as error:
        return str(error)
    return None


def advice_of(sentence: str) -> tuple[str, list[Chosen]]:
    """What is refused, and the changes that are advised: one choice, or several at once."""
    said, *rest = re.split(r" (?=(?:[Uu]se|The nearest|No cache serves) )", sentence, maxsplit=1)
    advice = re.sub(r", which [^.]*", "", "".join(rest))
    ways = list[Chosen]()
    for one in re.split(r", or (?=\w+=)|[;.] ", advice):
        if one.startswith(("models for", "drafts for")):
            continue  # of another choice of cache
        if re.search(rf"{WORD},? (with|and|cache)", one):  # together
            ways.append(dict(re.findall(WORD, one)))
            continue
        for group, name, others in re.findall(rf"{WORD}((?:, \w+)*(?:,? or \w+)?)(?![\w=])", one):
            ways += [{group: name}, *({group: other} for other in re.findall(r"\w+", others) if other != "or")]
    return said, ways


def test_advice_is_read_as_people_read_it() -> None:
    alone = "It clashes. Use eos=stop_at_eos, keep or none. The nearest that works is cache=dual."
    assert advice_of(alone) == (
        "It clashes.",
        [{"eos": "stop_at_eos"}, {"eos": "keep"}, {"eos": "none"}, {"cache": "dual"}],
    )
    together = "It clashes. No cache serves these parts: use model=mini-ar, or cache=none with sampler=confidence."
    assert advice_of(together)[1] == [{"model": "mini-ar"}, {"cache": "none", "sampler": "confidence"}]


def test_every_way_out_takes_its_refusal_away() -> None:
    """Over a sample of all combinations of six kinds of models with all parts."""
    warnings.simplefilter("ignore", SettingWarning)
    parts = dict(zip(GROUPS, all_parts(), strict=True))
    kinds = {kind.name: kind for kind in ModelKind.all()}
    kinds |= {name: ModelKind(name, read_model_config(shipped_folder(name)), name) for name in shipped_models()}
    every = list(itertools.product(*(parts[group] for group in GROUPS), (kind.name for kind in ModelKind.all())))
    refused, tried = 0, 0
    for names in Random(75).sample(every, 3000):
        chosen = dict(zip((*GROUPS, "model"), names, strict=True))
        sentence = clash(parts, kinds, chosen)
        if sentence is None or "sampler.filter=" in sentence:  # which names no other part
            continue
        said, ways = advice_of(sentence)
        refused += 1
        for way in ways:
            tried += 1
            after = clash(parts, kinds, chosen | way)
            assert after is None or not after.startswith(said), (chosen, way, sentence)
    assert refused > 2000 and tried > refused
