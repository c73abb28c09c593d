"""The mini models' tokenizers: one token per word, any text round-trips, templates as published."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dllm.models.bundle import CHECKPOINTS
from dllm.tasks.parallelbench import mini
from dllm.tasks.parallelbench import vocabulary as words
from dllm.tasks.parallelbench.scoring import write_list
from experiments import mini_data, mini_tokenizer

MODELS = tuple(mini_tokenizer.SPECIAL)


@pytest.fixture(scope="module", params=MODELS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder: Path = tmp_path_factory.mktemp(request.param)
    mini_tokenizer.save(request.param, folder)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


TEXTS = ("Tab\there", "naïve 東京 🙂", "  two  spaces\n\n\nlines ", '["Zoltan", "Ada"]', "a1b22.,:;")


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_round_trips(loaded: PreTrainedTokenizerFast, text: str) -> None:
    assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text


def test_names_and_list_pieces_are_single_tokens(loaded: PreTrainedTokenizerFast) -> None:
    for count in (1, 4):
        ids = loaded.encode(write_list(words.FIRST_NAMES[:count]), add_special_tokens=False)
        assert len(ids) == 2 * count + 1
    assert all(len(loaded.encode(name, add_special_tokens=False)) == 1 for name in words.FIRST_NAMES)


@pytest.mark.parametrize("task", mini.TASKS)
def test_answers_fit_in_32_tokens_with_an_end(loaded: PreTrainedTokenizerFast, task: str) -> None:
    answers = [sample.answer for sample in mini.generate(task, 0, 50)]
    assert max(len(loaded.encode(answer, add_special_tokens=False)) for answer in answers) <= 31


def test_special_tokens(loaded: PreTrainedTokenizerFast) -> None:
    assert (loaded.eos_token_id, loaded.bos_token_id, loaded.mask_token_id) == (0, 1, 2)
    assert loaded.pad_token_id == loaded.eos_token_id
    assert loaded.decode([0, 2], skip_special_tokens=True) == ""


def test_generation_prompt_is_optional(loaded: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    plain, opened = (
        loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=wanted) for wanted in (False, True)
    )
    assert opened.startswith(plain) and "assistant" in opened[len(plain) :]


@pytest.mark.parametrize("model", MODELS)
def test_training_renders_the_shipped_template(model: str) -> None:
    tokenizer = mini_tokenizer.wrap(model)
    for task in mini.TASKS:
        sample = mini.generate(task, 0, 1)[0]
        shipped = tokenizer.apply_chat_template(sample.messages, tokenize=False, add_generation_prompt=True)
        assert mini_data.render(model, sample.prompt) == shipped


@pytest.mark.parametrize("model", MODELS)
def test_shipped_files_are_what_the_code_builds(model: str, tmp_path: Path) -> None:
    mini_tokenizer.save(model, tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_text() == (CHECKPOINTS / model / name).read_text()
