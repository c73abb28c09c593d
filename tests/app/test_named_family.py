"""A renamed checkpoint: a known family by its name, and a description in a module of the user's."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dllm import Decoder, UserError, load
from dllm.parts import describe
from tests.app.conftest import Run, rows_of

PAGE = Path(__file__).parents[2] / "docs" / "add_a_model.md"


@pytest.fixture
def glimmer(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny LLaDA under another architecture, and a module that describes it."""
    folder = shutil.copytree(tiny, tmp_path / "glimmer")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["GlimmerModelLM"], "sparkle": 3}))
    (code,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "glim.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "glim", raising=False)
    return folder


def renamed(folder: Path) -> None:
    """Its tensors under the names of the description."""

    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("model.transformer", "glimmer"): one for name, one in tensors.items()},
        folder / "model.safetensors",
    )


def test_it_is_refused_with_both_ways_out_and_each_works(glimmer: Path, tiny: Path, run: Run, tmp_path: Path) -> None:
    def decoded(name: str, path: Path, *more: str) -> str:
        words = ("prompt=w5 w7", "gen_length=8", "output=runs", f"name={name}")
        assert run(f"model.path={path}", *words, *more, bare=True).code == 0
        return str(rows_of(tmp_path / "runs" / name)[0]["text"])

    refused = run(f"model.path={glimmer}", "prompt=w5", bare=True).err
    assert "architectures=['GlimmerModelLM']" in refused
    assert "model.family=LLaDAModelLM" in refused and "model.family=my_module.FAMILY" in refused
    plain = decoded("plain", tiny)
    assert plain and decoded("renamed", glimmer, "model.family=LLaDAModelLM") == plain
    renamed(glimmer)
    assert decoded("described", glimmer, "model.family=glim.FAMILY") == plain


def test_a_description_names_keys_tensors_and_tokens(glimmer: Path, tiny: Path) -> None:
    sys.path.insert(0, str(glimmer.parent))
    from glim import FAMILY  # type: ignore[import-not-found]

    renamed(glimmer)
    by_name, own = describe(glimmer, family="LLaDAModelLM"), describe(glimmer, family=FAMILY)
    assert by_name.config.unread == ("sparkle",) and own.config.unread == ()
    assert by_name.config.architecture == "LLaDAModelLM"
    assert own.config.architecture == "GlimmerModelLM" and own.config.family == "glimmer"
    assert own.tokenizer is not None and own.tokenizer.token(own.tokenizer.mask_id or -1) == "w4"
    assert own.tokenizer.backend.token_to_id("w6") in own.ids.stops
    with pytest.raises(UserError, match="tensor model.transformer.wte.weight is missing"):
        load(glimmer, family="LLaDAModelLM")
    texts = [
        Decoder(load(path, family=family), cache="none", gen_length=8, chat=False)("w5 w7")[0].text
        for path, family in ((tiny, None), (glimmer, FAMILY))
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        ("LLaDAModel", "is no known architecture .* and no MODULE.FAMILY. Did you mean 'LLaDAModelLM'"),
        ("glim.Family", "names no dllm.models.families.Family: glim has LLADA, FAMILY. Did you mean"),
        ("nowhere.FAMILY", "there is no module nowhere"),
    ],
)
def test_a_wrong_name_is_a_sentence(family: str, sentence: str, glimmer: Path, run: Run) -> None:
    assert re.search(sentence, run(f"model.path={glimmer}", "prompt=w5", f"model.family={family}", bare=True).err)
