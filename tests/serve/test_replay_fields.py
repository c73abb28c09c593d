"""``diffusion.replay``: the fields by which DARE replays an answer, as its own checker reads them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dllm import Decoder, Model
from tests.serve.conftest import Place, error_of
from tests.trainers.test_dare import checker  # noqa: F401  a fixture

ASK = {"messages": [{"role": "user", "content": 'Sort the list:\n["Kai", "Ada"]'}], "temperature": 1.0, "seed": 3}
CHAT = "/v1/chat/completions"


def asked(place: Place, **more: Any) -> Any:
    diffusion = {"replay": True, "eos": "none", **more.pop("diffusion", {})}
    return place.call("POST", CHAT, json={**ASK, "max_tokens": 64, **more, "diffusion": diffusion})


def test_a_choice_holds_its_whole_blocks(mini_place: Place, mini_model: Model, request: pytest.FixtureRequest) -> None:
    refused = asked(mini_place)
    told = error_of(refused)["message"] if refused.status_code == 400 else ""
    found = re.search(r"a prompt of (\d+) tokens ends inside a block, and a replay needs it whole. Use (\d+)", told)
    assert found is not None, told
    prompt, most = int(found[1]), int(found[2])
    assert (prompt + most) % 32 == 0 and 32 < most < 64
    choices = asked(mini_place, max_tokens=most, n=2).json()["choices"]
    model = mini_model
    for number, choice in enumerate(choices):
        meta, ids = choice["meta_info"], choice["token_ids"]
        decoder = Decoder(model, eos="none", gen_length=most, temperature=1.0)
        row = decoder(ASK["messages"], seed=3 + number)[0]  # type: ignore[arg-type]
        replay = meta["dllm_replay_token_ids"]
        assert replay == row.canvas[: len(replay)] and ids == replay[: meta["dllm_stop_length"]]
        assert ids[:-1] == row.tokens and ids[-1] in model.ids.ends
        assert (prompt + len(replay)) % 32 == 0 and len(replay) - len(ids) < 32
        assert all(forward > 0 for forward in meta["dllm_replay_step_maps"])
    published = request.getfixturevalue("checker")
    published.post_process_dllm_replay_metadata(
        choices, pad_token_id=model.ids.eos, prompt_lengths=[prompt] * 2, block_size=32, expected_num_responses=2
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"diffusion": {"eos": "fill_after_block"}},
            "inside one of 32 that a replay needs whole. Use diffusion.eos=none",
        ),
        ({"stop": "x"}, "cuts a block that a replay needs whole"),
        ({"diffusion": {"eos": "stop_at_eos"}}, "ends or fills an open block.*fill_after_block"),
        ({"diffusion": {"sampler": "wino"}}, "takes commits back"),
        ({"response_format": {"type": "json_object"}}, "a constraint bends it"),
    ],
)
def test_what_cannot_be_replayed_is_refused(mini_place: Place, more: dict[str, Any], message: str) -> None:
    refused = asked(mini_place, **more)
    assert refused.status_code == 400 and re.search(message, error_of(refused)["message"])


def test_other_replies_have_no_such_fields(mini_place: Place) -> None:
    choice = mini_place.call("POST", CHAT, json={**ASK, "max_tokens": 32}).json()["choices"][0]
    assert not {"token_ids", "meta_info"} & {*choice}
