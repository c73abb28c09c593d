"""What people bring from other programs: they are told what to write, or nothing, and never something else."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dllm import Decoder, UserError, load, part
from dllm.common import installing
from dllm.parts import (
    CHAT_WORDS,
    COMMAND_LINE,
    INSTEAD,
    OTHER_CHOICES,
    SETTINGS,
    ApiError,
    ChatBody,
    CompletionBody,
    Diffusion,
    Meant,
    Set,
    Wording,
    as_advice,
    choices,
    config_groups,
    meaning,
    names_of,
    nearest,
    of_setting,
    options_of_choices,
    read_body,
    values_beside,
)

# Words of LLaDA's, Fast-dLLM's and Dream's scripts, transformers, lm-eval and vLLM, and words misspelt: what a newcomer
# types, and what is right. None: nothing is, so nothing may be guessed.
TRIED: dict[str, str | None] = {
    "steps=16": "sampler.steps=16", "top_p=0.9": "sampling.top_p=0.9", "top_k=5": "sampling.top_k=5",
    "max_tokens=64": "gen_length=64", "max_new_tokens=64": "gen_length=64", "n=3": "samples=3",
    "limit=10": "task.limit=10", "cfg_scale=1.5": "sampling.guidance=1.5", "remasking=random": "sampler.score=random",
    "remasking=low_confidence": "sampler.score=low_confidence", "pretrained=x/y": "model.path=x/y",
    "port=8001": "task=serve task.port=8001", "block_size=8": "blocks.block_length=8", "max_length=8": "gen_length=8",
    "temperature=1": "sampling.temperature=1", "threshold=0.5": "sampler.threshold=0.5",
    "alg=entropy": "sampler=dream sampler.alg=entropy", "alg_temp=0.1": "sampler.alg_temp=0.1",
    "eps=0.1": "sampler.eps=0.1", "device_map=auto": "model.device=auto",
    "torch_dtype=torch.bfloat16": "model.dtype=bfloat16", "dtype=float16": "model.dtype=float16",
    "load_in_8bit=true": "model.quantize=int8", "tokenizer=x": "Leave it out", "tasks=gsm8k": "task=gsm8k",
    "num_fewshot=4": "task.shots=4", "model_args=pretrained=x": "a setting of its own", "output_path=x": "output=x",
    "stream=true": "live=true", "do_sample=true": "temperature", "device=cuda": "model.device=cuda",
    "num_return_sequences=2": "samples=2", "repetition_penalty=1.1": "Leave it out", "use_cache=true": "cache=prefix",
    "min_p=0.1": "top_k", "blocksize=8": "blocks.block_length=8", "maxNewTokens=8": "gen_length=8",
    "block_length=8": "blocks.block_length=8", "draft_steps=4": "sampler=freedave sampler.draft_steps=4",
    "gen_lenght=8": "Did you mean 'gen_length'", "samplr=eb": "Did you mean 'sampler'", "sed=1": "Did you mean 'seed'",
    "treshold=0.5": "Did you mean 'sampler.threshold'", "batchsize=4": "Did you mean 'batch_size'",
    "promt=a": "Did you mean 'prompt'", "outptu=a": "Did you mean 'output'", "cach=dual": "Did you mean 'cache'",
    "guidence=1": "Did you mean 'sampling.guidance'", "quantise=int8": "Did you mean 'model.quantize'",
    "lr=0.1": None, "epochs=3": None, "rank=0": None, "world_size=2": None, "optimizer=adam": None, "wandb=true": None,
    "weight_decay=0": None, "workers=4": None, "noise=1": None, "level=3": None, "user=me": None,
    "early_stop=true": None, "project=x": None, "foo=1": None, "lookahead=2": None,
}  # fmt: skip

ROOT = Path(__file__).parents[2]


@cache
def known() -> dict[str, Any]:
    return values_beside([])


def advice(line: str) -> str | None:
    word, _, value = line.partition("=")
    return of_setting(word, value, known()) or nearest(word, [*known(), *config_groups()]) or None


def test_words_are_answered_rightly_or_not_at_all() -> None:
    said = {line: advice(line) for line in TRIED}
    right = [line for line, wanted in TRIED.items() if wanted is not None and wanted in (said[line] or "")]
    wrong = {line: text for line, text in said.items() if text is not None and line not in right}
    silent = [line for line, wanted in TRIED.items() if wanted is not None and said[line] is None]
    assert (len(TRIED), len(right), wrong, silent) == (64, 49, {}, [])


def meant(word: str, words: Wording = COMMAND_LINE) -> Meant:
    found = meaning(word, "4", known().__contains__, words)
    assert found is not None
    return found


def there(key: str, value: Any, chosen: dict[str, Any]) -> bool:
    """Whether the command line takes a setting beside the choices of ``chosen``."""
    if key in config_groups():
        return value in (*choices(key), "NAME", "4")
    group, _, option = key.rpartition(".")
    return key in known() or option in options_of_choices(group).get(str(chosen.get(group)), {})


def test_what_the_command_line_is_told_to_write_is_there() -> None:
    told = {word: found.all for word in SETTINGS if isinstance(found := meant(word), Set)}
    told |= {
        word: dict(entry.split("=") for entry in text.split(" "))
        for words in OTHER_CHOICES.values()
        for word, text in words.items()
    }
    wrong = {
        word: key for word, chosen in told.items() for key, value in chosen.items() if not there(key, value, chosen)
    }
    assert wrong == {} and len(told) > 50


def test_what_a_request_is_told_to_send_it_may_hold() -> None:
    for word in (*SETTINGS, *INSTEAD):
        here = meant(word, CHAT_WORDS)
        text = as_advice(here, CHAT_WORDS)
        if not text.startswith("write "):
            continue
        fields = json.loads("{" + text.removeprefix("write ") + "}")
        assert set(fields.get("diffusion", {})) <= set(names_of(Diffusion))
        try:
            read_body(ChatBody, {"messages": [{"role": "user", "content": "a"}], **fields}, False)
        except ApiError as refused:  # of another kind, since 4 is no temperature in quotes
            assert refused.code != "unknown_field" or (isinstance(here, Set) and here.name == "prompt"), word
    with pytest.raises(ApiError, match='\'steps\' is not a .*: write "diffusion": {"sampler": {"name": "static"'):
        read_body(ChatBody, {"steps": 8}, False)
    for kind, said in ((ChatBody, '"messages": .{"role": "user"'), (CompletionBody, '"prompt": TEXT')):
        with pytest.raises(ApiError, match=f"'input' is not a .*: write {said}"):
            read_body(kind, {"input": "a"}, False)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"threshold": 0.5}, 'write sampler=part("sampler", "confidence", threshold=0.5)'),
        ({"steps": 16}, 'write sampler=part("sampler", "static", steps=16)'),
        ({"sampler": "order", "steps": 16}, 'write sampler=part("sampler", "order", steps=16)'),
        ({"alg": "entropy"}, 'write sampler=part("sampler", "dream", alg=\'entropy\')'),
        ({"max_new_tokens": 8}, "write gen_length=8"),
        ({"cfg_scale": 1.5}, "write guidance=1.5"),
        ({"block_length": 8}, 'write blocks=part("blocks", "fixed", block_length=8)'),
        ({"use_cache": True}, 'write cache="prefix"'),
        ({"n": 3}, "write decoder(PROMPT, samples=3)"),
        ({"samplr": "eb"}, "Did you mean 'sampler'"),
        ({"do_sample": True}, "a temperature above 0"),
        ({"output_path": "x"}, "python run.py output=x"),
        ({"bananas": 1}, "tempered, thinking_budget, end_of_thought.$"),
    ],
)
def test_decoder_says_where_an_argument_goes(given: dict[str, Any], written: str, tiny: Any) -> None:
    pattern = written if written.endswith("$") else re.escape(written)
    with pytest.raises(UserError, match=f"Decoder has no argument.*{pattern}"):
        Decoder(load(tiny), **given)


def test_a_call_and_load_and_part_say_it_too(tiny: Any) -> None:
    decoder = Decoder(load(tiny), gen_length=8)
    with pytest.raises(UserError, match="the call of a decoder has no argument 'max_tokens': write gen_length=4"):
        decoder("w1", max_tokens=4)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"load has no argument 'torch_dtype': write load\(PATH, dtype='bfloat16'\)"):
        load(tiny, torch_dtype="bf16")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"has no option 'treshold'; it has threshold\. Did you mean 'threshold'?"):
        part("sampler", "confidence", treshold=0.5)
    with pytest.raises(UserError, match="prompts=5 must be text"):
        decoder(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("extra", ["serve", "report", "ray", "eval"])
def test_a_missing_library_is_installed_without_asking_an_index_for_dllm(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert installing.install_command(extra) == f"pip install -e '{ROOT}[{extra}]'"
    monkeypatch.chdir(ROOT)
    assert installing.install_command(extra) == f"pip install -e '.[{extra}]'"
    monkeypatch.setattr(installing, "CHECKOUT", tmp_path)  # a wheel
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wheel = [f'{one}; extra == "{key}"' for key, names in project.items() for one in names]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wheel)
    words = shlex.split(installing.install_command(extra))
    assert words == ["pip", "install", *project[extra]] and not any(word.startswith("dllm") for word in words)
