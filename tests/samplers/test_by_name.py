"""Samplers as the command line builds them: words where words belong, wrappers around any rule, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_parts import Above, Alternate, Calmest, Drawing, Steady, Surest

from dllm import Decoder, UserError, load
from dllm.parts import (
    Adas,
    Credit,
    FreeDave,
    Frontier,
    Prior,
    Prophet,
    Sampler,
    Scout,
    Spaced,
    Wrapper,
    build_part,
    composed,
    wrappers,
)

PROMPT = 'Copy the list:\n["Kai", "Emma", "Ada"]'


def decode(*overrides: str, text: str = PROMPT) -> str:
    sampler = build_part("sampler", composed([*overrides])["sampler"])
    return Decoder(load("mini-llada"), sampler, eos="none", gen_length=16)(text)[0].text


@pytest.mark.parametrize(
    "overrides",
    [
        ("sampler=prophet", "sampler/inner=localleap"),
        ("sampler=credit", "sampler/inner=factor"),
        ("sampler=freedave", "sampler/inner=static"),
        ("sampler=freedave", "sampler/inner=confidence", "sampler.draft_steps=2"),
        ("sampler=prophet", "sampler/inner=credit", "sampler/inner@sampler.inner.inner=factor"),
        ("sampler=prophet", "sampler.region=anchor", "sampler.anchor_text=Kai", "sampler.anchor_position=3"),
    ],
    ids=lambda overrides: "-".join(overrides),
)
def test_wrappers_compose(overrides: tuple[str, ...]) -> None:
    assert decode(*overrides)


def test_files_are_given_by_name(tmp_path: Path) -> None:
    model = load("mini-llada")
    plain = Decoder(model, "static", eos="none", gen_length=16)(PROMPT)[0]
    (tmp_path / "results.jsonl").write_text(json.dumps(plain.to_json()))
    assert decode("sampler=oracle", f"sampler.reference={tmp_path}") == plain.text
    (tmp_path / "f.json").write_text('{"5": 0.5}')
    assert decode("sampler=pc", f"sampler.frequencies={tmp_path / 'f.json'}")
    with pytest.raises(UserError, match=r"sampler\.filter='nowhere' is not a filter file"):
        decode("sampler=learn2pd", "sampler.filter=nowhere")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("sampler=oracle",), r"needs sampler\.reference"),
        (("sampler=freedave", "sampler.draft_steps=0"), r"sampler\.draft_steps=0 must be at least 1"),
        (("sampler=freedave", "sampler.inner.score=random"), "must be deterministic"),
        (("sampler=confidence", "sampler.threshold=1.5"), r"sampler\.threshold=1\.5 must lie in"),
        (("sampler=prophet", "sampler.region=offset", "sampler.start=40"), r"sampler\.start=40 must lie in \[0, 15\]"),
        (
            ("sampler=prophet", "sampler.region=anchor", "sampler.anchor_text=Kai", "sampler.anchor_position=15"),
            "leaves no room",
        ),
        (("sampler=learn2pd",), r"sampler=learn2pd needs sampler\.filter=FILE|is not the 32 positions"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_what_cannot_work_is_refused_with_the_way_out(overrides: tuple[str, ...], words: str) -> None:
    from dllm.parts import Fixed

    with pytest.raises(UserError, match=words):
        sampler = build_part("sampler", composed([*overrides])["sampler"])
        Decoder(load("mini-llada"), sampler, Fixed(16), gen_length=16)(PROMPT)


TAKEN, STATE, STATS = "", "must be deterministic and carry no state", "changes token and confidence only"
INSIDE: dict[type[Sampler], dict[str, str]] = {
    Above: {"prior": "compares it with a threshold"},
    Surest: {},
    Calmest: {"credit": STATS, "prior": "changes confidences only"},
    Alternate: {"adas": "goes by something else", "prior": "changes confidences only"},
    Drawing: {"adas": "goes by something else", "prior": "changes confidences only", "freedave": STATE, "scout": STATE},
    Steady: {"adas": "goes by something else", "prior": "changes confidences only", "freedave": STATE, "scout": STATE},
}
WRAPPERS = {
    "adas": Adas,
    "credit": Credit,
    "freedave": FreeDave,
    "frontier": Frontier,
    "prior": Prior,
    "prophet": Prophet,
    "scout": Scout,
    "spaced": Spaced,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", INSIDE)
def test_a_users_rule_in_every_wrapper(kind: type[Sampler], wrapper: str) -> None:
    words = INSIDE[kind].get(wrapper, TAKEN)
    if words:
        with pytest.raises(UserError, match=f"^(?=.*{words})sampler={wrapper} .*inner={kind.__name__}\\b"):
            WRAPPERS[wrapper](kind())
        return
    assert isinstance(WRAPPERS[wrapper](kind()), Wrapper)


def test_the_tests_know_every_wrapper() -> None:
    assert set(wrappers()) == set(WRAPPERS)
