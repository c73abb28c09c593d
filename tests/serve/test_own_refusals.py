"""What a stranger's part refuses over HTTP reads as the request's own fields, in every form of request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import Place
from tests.serve.test_offered import own_choices

# As docs/own_package.md has it, with a row of what it does not go with, and a mistake that its decode makes.
CODE = """
from dllm.common.errors import Refusal, Set, in_range
from dllm.contract.clash import Clash
from dllm.parts.samplers.confidence import Confidence

class Mine(Confidence):
    clashes = (Clash(lambda c: c.sampling.temperature,
                     "{sampler} compares {sampler.low} with the argmax, and {sampling.temperature} draws.",
                     [Set("sampling.temperature", 0), Set("sampler", "confidence")], "(It is a stranger's rule.)"),)

    def __init__(self, low: float = 0.8, high: float = 0.9):
        super().__init__(high)
        in_range("sampler.low", low, 0.0, 1.0)
        if low > high:
            raise Refusal("{sampler.low} must not exceed {sampler.high}.", [low, high])
        self.low, self.high = low, high
"""
YAML = "# a stranger's rule\n_target_: strangers.Mine\nlow: 0.8\nhigh: 0.9\n"
ASKED = [{"role": "user", "content": 'Copy the list:\n["Kai"]'}]
# Path, the field that holds ``diffusion``, that of the temperature, and what the form requires.
FORMS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", "diffusion", "temperature", {}),
    "messages": ("/v1/messages", "diffusion", "temperature", {"max_tokens": 16}),
    "ollama": ("/api/chat", "options.diffusion", "options.temperature", {"stream": False}),
}


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with own_choices(tmp_path, monkeypatch, "strangers", CODE, "mine", YAML):
        yield


def ask(place: Place, form: str, diffusion: Any, temperature: float = 0) -> tuple[int, str]:
    path, _, _, more = FORMS[form]
    given = {"diffusion": diffusion, "temperature": temperature}
    body = {"messages": ASKED, **more, **({"options": given} if form == "ollama" else given)}
    reply = place.call("POST", path, json=body)
    error = reply.json().get("error", "")
    return reply.status_code, error if isinstance(error, str) else error["message"]


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize("form", FORMS)
def test_a_strangers_part_is_refused_in_the_words_of_the_request(mini_place: Place, form: str) -> None:
    _, own, temperature, _ = FORMS[form]
    mine = f"{own}.sampler"
    for diffusion, heat, sentence in (
        ({"sampler": {"name": "mine", "low": 7}}, 0, f"{mine}.low=7.0 must lie in [0, 1]."),
        ({"sampler": {"name": "mine", "low": 0.95}}, 0, f"{mine}.low=0.95 must not exceed {mine}.high=0.9."),
        (
            {"sampler": {"name": "mine", "lo": 1}},
            0,
            f"{mine}.lo does not exist; {mine}=mine offers low, high. Did you mean 'low'?",
        ),
        (
            {"sampler": "mine"},
            0.5,
            f"{mine}=mine compares {mine}.low=0.8 with the argmax, and {temperature}=0.5 draws. Set {temperature}=0, "
            f"or use {mine}=confidence. (It is a stranger's rule.)",
        ),
    ):
        assert ask(mini_place, form, diffusion, heat) == (400, sentence)
    # each way out is one
    assert ask(mini_place, form, {"sampler": "mine"})[0] == 200
    assert ask(mini_place, form, {"sampler": "confidence"}, 0.5)[0] == 200
