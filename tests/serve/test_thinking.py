"""What a model thinks before it answers: apart from the answer, the same whole and in pieces, over both routes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import full

from dllm import load
from dllm.models.text import chat_template
from dllm.parts import NO_THOUGHT, Model, Thinking, ThoughtMarks, ThoughtSplitter, thought_marks
from tests.serve.bodies import as_messages
from tests.serve.conftest import Place, error_of, events, writing
from tests.serve.live import live
from tests.serve.stand_in import OneByOne
from tests.serve.test_response_calls import respond, streamed
from tests.serve.test_tools import TOOLS, WrittenAnswers
from tests.support.tiny import ASSISTANT, GEMMA_TEMPLATE, USER, make_gemma, make_written

MARKS = ThoughtMarks("<t>", "</t>")
SIGNS = "ab <t>/\n"


def expected(text: str, opened: bool) -> tuple[str, str]:
    """Thought and answer, without the product's code."""
    begins = text.lstrip().startswith(MARKS.begin)
    if not (opened or begins):
        return "", text
    inner, _, answer = (text.lstrip()[len(MARKS.begin) :] if begins else text).partition(MARKS.end)
    return inner.strip(), answer.lstrip()


def joined(pieces: list[tuple[str, bool]]) -> tuple[str, str]:
    """Thought and answer, of a splitter's pieces."""
    thought, answer = ("".join(piece for piece, thought in pieces if thought is kind) for kind in (True, False))
    return thought, answer


@pytest.mark.parametrize("seed", range(3))
def test_pieces_make_up_thought_and_answer(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(400):
        text = "".join(dice.choices([*SIGNS, *MARKS.__dict__.values()], k=dice.randint(0, 9)))
        text = dice.choice(["", "", " ", "\n"]) + dice.choice(["", MARKS.begin]) + text
        thinking = Thinking(MARKS, dice.random() < 0.5)
        whole = expected(text, thinking.is_open)
        assert joined(ThoughtSplitter(thinking).feed(text, final=True)) == whole, text
        splitter, told, at = ThoughtSplitter(thinking), list[tuple[str, bool]](), 0
        while at < len(text):
            size = dice.randint(1, 4)
            told += splitter.feed(text[at : at + size])
            at += size
            assert all(map(str.startswith, whole, joined(told))), "what was told stays"
        told += splitter.feed("", final=True)
        assert joined(told) == whole
        ids = list(text.encode())
        count = thinking.tokens(ids, lambda some: bytes(some).decode())
        known = text.partition(MARKS.end)[0] + (MARKS.end if MARKS.end in text else "")
        begins = thinking.is_open or text.lstrip().startswith(MARKS.begin)
        assert count == (len(known) if begins else 0)


def test_a_thought_is_told_as_soon_as_it_is_sure() -> None:
    splitter = ThoughtSplitter(Thinking(MARKS, False))
    assert [splitter.feed(piece) for piece in (" ", "<t", ">\n", "a ", "b </", "x</t>", "\n", "c </t>")] == [
        [],
        [],
        [],
        [("a", True)],
        [(" b", True)],
        [(" </x", True)],
        [],
        [("c </t>", False)],
    ]
    assert ThoughtSplitter(Thinking(MARKS, False)).feed(" a") == [(" a", False)]


def test_the_template_says_which_marks_there_are_and_whether_a_thought_is_open(tmp_path: Path) -> None:
    assert thought_marks(None) is thought_marks("{{ messages }}") is None
    assert thought_marks("{{ content.split('</think>')[-1] }}") == ThoughtMarks("<think>", "</think>")
    folder = make_gemma(tmp_path / "gemma")
    thinks = "{% if enable_thinking %}<|channel>thought\n{% else %}<|channel>thought\n<channel|>{% endif %}"
    for template, kwargs, told in (
        (GEMMA_TEMPLATE, {}, None),
        (f"{GEMMA_TEMPLATE}{{% if 0 %}}<channel|>{{% endif %}}", {}, False),
        (GEMMA_TEMPLATE + thinks, {"enable_thinking": True}, True),
        (GEMMA_TEMPLATE + thinks, {}, None),
    ):
        (folder / "chat_template.jinja").write_text(template)
        tokenizer = load(folder).tokenizer
        assert tokenizer is not None
        prompt = tokenizer.encode_chat([{"role": "user", "content": "a"}], "", kwargs)
        thinking = Thinking.behind(prompt, tokenizer)
        assert thinking == (None if told is None else Thinking(ThoughtMarks("<|channel>thought", "<channel|>"), told))
    assert Thinking.behind([1, 2], None) is None


TEMPLATE = "{% for m in messages %}<user>{{ m.content }}{{ m.reasoning_content }}{% endfor %}<assistant>r"
ASK = [{"role": "user", "content": "a"}]
BODY = {"temperature": 1.5, "max_tokens": 24}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A model whose prompts end inside a thought, and whose random texts often end it."""
    mended = pytest.MonkeyPatch()
    mended.setattr(chat_template, "KNOWN_MARKS", (ThoughtMarks("r", "e"),))
    folder = make_written(tmp_path_factory.mktemp("models") / "thinks")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": TEMPLATE}))
    model = load(folder)
    assert model.tokenizer is not None and model.tokenizer.thought_marks == ThoughtMarks("r", "e")
    mended.undo()
    made = Place(model, defaults=writing(model))
    yield made
    made.close()


def raw(place: Place, seed: int) -> dict[str, Any]:
    """The same answer as completions give it, which know no thoughts."""
    assert place.service.defaults.model.tokenizer is not None
    prompt = place.service.defaults.model.tokenizer.encode_chat(ASK)
    reply = place.call("POST", "/v1/completions", json={"prompt": prompt, "seed": seed, **BODY}).json()
    return {**reply["choices"][0], "usage": reply["usage"]}


@pytest.mark.parametrize("seed", range(12 if full() else 4))
def test_both_routes_tell_thoughts_apart_whole_and_streamed(thinker: Place, seed: int) -> None:
    whole = raw(thinker, seed)
    before, end, after = whole["text"].removeprefix("r").partition("e")
    thought, answer = before.strip(), after.lstrip()
    reply = thinker.ask(messages=ASK, seed=seed, **BODY).json()
    (choice,) = reply["choices"]
    told = {"reasoning": thought, "reasoning_content": thought} if thought else {}
    assert choice["message"] == {"role": "assistant", "content": answer, **told}
    used = {"reasoning_tokens": whole["text"].find("e") + 1 or whole["usage"]["completion_tokens"]}
    assert reply["usage"] == {**whole["usage"], "completion_tokens_details": used}
    assert choice["finish_reason"] == whole["finish_reason"]

    joined = {"content": "", "reasoning": "", "reasoning_content": ""}
    for _, data in events(thinker.ask(messages=ASK, seed=seed, stream=True, **BODY))[:-1]:
        for key in joined:
            joined[key] += data["choices"][0]["delta"].get(key) or ""
    assert joined == {"content": answer, "reasoning": thought, "reasoning_content": thought}

    body = {"temperature": 1.5, "max_output_tokens": 24, "seed": seed}
    of_responses = respond(thinker, **body).json()
    kinds = ["reasoning"] * bool(thought) + ["message"] * bool(answer or not thought)
    assert [item["type"] for item in of_responses["output"]] == kinds
    texts = [item["content"][0]["text"] for item in of_responses["output"]]
    assert texts == [thought] * bool(thought) + [answer] * bool(answer or not thought)
    assert of_responses["usage"]["output_tokens_details"] == used
    names, items, last = streamed(thinker, **body)
    assert [item["type"] for item in items] == kinds and last["output"] == items
    assert [item["content"] for item in items] == [item["content"] for item in of_responses["output"]]
    starts = [at for at, name in enumerate(names) if name == "response.output_item.added"]
    ends = [at for at, name in enumerate(names) if name == "response.output_item.done"]
    assert sorted(starts + ends) == [at for pair in zip(starts, ends, strict=True) for at in pair], (
        "one after the other"
    )


@pytest.mark.parametrize("budget", [0, 4, 23, 24, -1])
def test_a_budget_bounds_the_thought(thinker: Place, budget: int) -> None:
    """In tokens of the answer, after which the end of thought stands; it counts, too."""
    for seed in range(6 if full() else 2):
        free = raw(thinker, seed)["text"].find("e")
        body = {"seed": seed, "thinking_token_budget": budget, **BODY}
        reply = thinker.ask(messages=ASK, **body).json()
        used = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert used <= (budget + 1 if 0 <= budget < 24 else 24) and (free < 0 or free >= budget or used == free + 1)
        assert budget or used == 1 and "reasoning" not in reply["choices"][0]["message"]
        asked = {"temperature": 1.5, "max_output_tokens": 24, "seed": seed, "thinking_token_budget": budget}
        assert respond(thinker, **asked).json()["usage"]["output_tokens_details"] == {"reasoning_tokens": used}


def test_a_budget_without_a_thought_has_no_effect_and_says_so(thinker: Place, writer: Place) -> None:
    form = {"type": "choice", "options": ["beb"]}
    for place, body in ((writer, {}), (thinker, {"response_format": form, "max_tokens": 8})):
        (choice,) = place.ask(thinking_token_budget=2, seed=1, **body).json()["choices"]
        assert NO_THOUGHT in choice["diffusion"]["notes"]
        assert choice["message"] == place.ask(seed=1, **body).json()["choices"][0]["message"]
    wrong = error_of(thinker.ask(thinking_token_budget=-2))
    assert wrong["param"] == "thinking_token_budget" and "must lie in [-1, " in wrong["message"]
    drafts = error_of(thinker.ask(thinking_token_budget=2, diffusion={"sampler": "freedave"}))
    assert drafts["param"] == "thinking_token_budget" and "thinking_token_budget=2 writes the end" in drafts["message"]


EFFORTS = [
    ({"reasoning_effort": "none"}, 0),
    ({"reasoning_effort": "minimal"}, 2),
    ({"reasoning_effort": "low"}, 5),
    ({"reasoning_effort": "medium"}, 12),
    ({"reasoning_effort": "high"}, 19),
    ({"reasoning": {"effort": "low"}}, 5),
    ({"reasoning": {"max_tokens": 4}}, 4),
    ({"reasoning": {"max_tokens": 4, "effort": "high"}}, 4),
    ({"reasoning": {"enabled": False}}, 0),
    ({"reasoning_effort": "low", "thinking_token_budget": 3}, 3),
]


@pytest.mark.parametrize(("said", "budget"), EFFORTS, ids=lambda one: json.dumps(one))
def test_an_effort_is_a_share_of_the_answer_of_24_tokens(
    thinker: Place, writer: Place, said: dict[str, Any], budget: int
) -> None:
    """OpenRouter's shares, worked by hand, over both routes; a model without thoughts answers as ever."""
    told = thinker.ask(messages=ASK, seed=1, thinking_token_budget=budget, **BODY).json()
    reply = thinker.ask(messages=ASK, seed=1, **BODY, **said).json()
    assert (reply["choices"][0]["message"], reply["usage"]) == (told["choices"][0]["message"], told["usage"])
    asked = {"temperature": 1.5, "max_output_tokens": 24, "seed": 1}
    assert (
        respond(thinker, **asked, **said).json()["usage"]
        == (respond(thinker, **asked, thinking_token_budget=budget).json()["usage"])
    )
    (plain,) = writer.ask(seed=1, **said).json()["choices"]
    assert plain["message"] == writer.ask(seed=1).json()["choices"][0]["message"]
    assert (NO_THOUGHT in plain["diffusion"].get("notes", [])) == (budget > 0)


def test_thoughts_of_earlier_turns_are_read_or_dropped_by_the_template(thinker: Place, writer: Place) -> None:
    said = thinker.ask(seed=1, **BODY).json()["choices"][0]["message"]
    told = {"role": "assistant", "content": "b", "reasoning_content": "abc"}
    for message in (said, told, {**told, "reasoning": "d"}, {"role": "assistant", "content": "b", "reasoning": "abc"}):
        for place in (thinker, writer):
            assert place.ask(messages=[*ASK, message, *ASK], max_tokens=1).status_code == 200
    assert as_messages([told])[0] == told
    assert as_messages([{"role": "assistant", "content": "b", "reasoning": "abc"}])[0] == told
    count = lambda message: thinker.ask(messages=[message], max_tokens=1).json()["usage"]["prompt_tokens"]  # noqa: E731
    assert count(told) == count({"role": "assistant", "content": "b"}) + 3
    for wrong, why in (
        ({"role": "user", "content": "a", "reasoning": "b"}, "goes with role assistant"),
        ({"role": "assistant", "content": "a", "reasoning_content": 5}, "must be text"),
    ):
        assert why in error_of(thinker.ask(messages=[wrong]))["message"]


def test_output_items_may_be_sent_back(thinker: Place) -> None:
    output = respond(thinker, temperature=1.5, max_output_tokens=24, seed=1).json()["output"]
    talk = [{"role": "user", "content": "a"}, *output, {"role": "user", "content": "b"}]
    assert respond(thinker, input=talk, max_output_tokens=1).status_code == 200
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "abc"}]}
    encrypted = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    turns = [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    counts = [
        respond(thinker, input=[*more, *turns], max_output_tokens=1).json()["usage"]["input_tokens"]
        for more in ([], [encrypted], [item], [item, item])
    ]
    assert [count - counts[0] for count in counts] == [0, 0, 3, 6]
    wrong = respond(thinker, input=[{**item, "content": [{"type": "reasoning_text"}]}, *turns])
    assert error_of(wrong)["param"] == "input[0].content[0].text"


def test_openais_client_reads_thoughts(thinker: Place) -> None:
    openai = pytest.importorskip("openai")
    defaults = thinker.service.defaults
    with live(defaults.model, defaults=defaults) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        asked = {"model": "tiny", "temperature": 1.5, "extra_body": {"seed": 3}}
        with client.responses.stream(**asked, input="a", max_output_tokens=24) as stream:
            told = [event.delta for event in stream if event.type == "response.reasoning_text.delta"]
            output = stream.get_final_response().output
        assert output[0].type == "reasoning" and output[0].content[0].text == "".join(told) != ""
        client.responses.create(model="tiny", input=[*ASK, *output, *ASK], max_output_tokens=1)
        message = client.chat.completions.create(**asked, messages=ASK, max_tokens=24).choices[0].message
        assert message.reasoning_content == message.reasoning == "".join(told)
        for sent in (message, message.model_dump()):
            client.chat.completions.create(model="tiny", messages=[*ASK, sent, *ASK], max_tokens=1)


def test_calls_stand_behind_a_thought(mini_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        chat_template, "KNOWN_MARKS", (ThoughtMarks("[", "endfor"),)
    )  # which the template of tools holds
    written = WrittenAnswers(mini_model, tmp_path / "tools", 48)
    written.text = '[sort, maybe endfor So: <tool_call>{"name": "say", "arguments": {"w": "bc"}}</tool_call>'
    (choice,) = written.place.ask(tools=TOOLS).json()["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "So:"
    assert choice["message"]["reasoning"] == "sort, maybe"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "say", "arguments": '{"w": "bc"}'}
    told = events(written.place.ask(tools=TOOLS, stream=True))[:-1]
    deltas = [data["choices"][0]["delta"] for _, data in told]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "sort, maybe"
    assert [call["function"]["name"] for delta in deltas for call in delta.get("tool_calls", ())] == ["say"]
    _, items, _ = streamed(written.place, tools=[{"type": "function", **tool["function"]} for tool in TOOLS])
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    written.place.close()


def test_a_form_leaves_no_place_for_a_thought(thinker: Place) -> None:
    form = {"type": "choice", "options": ["beb"]}
    message = thinker.ask(response_format=form, max_tokens=8).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "beb"}


def test_marks_that_are_special_tokens_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Gemma's: decoded text leaves them out, and the answer is told apart all the same."""
    monkeypatch.setattr(chat_template, "KNOWN_MARKS", (ThoughtMarks("<assistant>", "<user>"),))
    folder = make_written(tmp_path / "special")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}{% if 0 %}<user>{% endif %}<assistant>")
    model = load(folder)
    tokenizer, scheduler = model.tokenizer, OneByOne(model)
    assert tokenizer is not None and tokenizer.hidden_marks == {USER, ASSISTANT}
    for answer, thought, content in (("a b", "a b", ""), (f"ab{tokenizer.token(USER)}c", "ab", "c")):
        tokens = tokenizer.encode(answer, special=True)
        scheduler.script = partial(_told, scheduler, tokens, tokenizer.decode(tokens))
        place = Place(model, scheduler, defaults=writing(model))
        reply = place.ask().json()
        told = {"reasoning": thought, "reasoning_content": thought}
        assert reply["choices"][0]["message"] == {"role": "assistant", "content": content, **told}
        assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(tokens) - len(content)}
    place.close()


def _told(scheduler: OneByOne, tokens: list[int], text: str, job: Any, deliver: Any) -> None:
    """Decodes a row, and tells another answer."""

    def changed(event: Any) -> None:
        if hasattr(event, "result"):
            deliver(replace(event, result=replace(event.result, text=text, tokens=tokens, canvas=tokens)))

    OneByOne.decode(scheduler, job, changed)
