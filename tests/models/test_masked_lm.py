"""BERT and ModernBERT through their own classes: logits, decodes, batches, constraints, and what is refused."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dllm import Decoder, Model, UserError, load, part
from dllm.models.network import masked_lm_class as own_class
from dllm.parts import MaskedLM, Regex, checked_padding, choices, fact_rows, inspect_checkpoint
from tests.support.harness import OPTIONS, build, of_noise
from tests.support.masked_lms import MASKED_LMS, make_masked_lm, masked_lm

PROMPTS = ["w5 w7 w9", "w3", "w1 w2 w3 w4 w5 w6"]
LENGTH = 12


@pytest.fixture(scope="module", params=MASKED_LMS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_masked_lm(request.param, tmp_path_factory.mktemp(request.param) / request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, dtype="float64")


def test_logits_are_the_class_s_own(model: Model, folder: Path) -> None:
    """Of whole canvases of several lengths, bit for bit: it is the same call on the same weights."""
    own = masked_lm(folder.name).double()
    for length in (1, 7, 40):
        tokens = torch.arange(3 * length).view(3, length) % 60
        valid = torch.arange(length) < torch.tensor([length, length - 2, 1]).clamp(min=1)[:, None]
        with torch.no_grad():
            wanted = own(input_ids=tokens, attention_mask=valid.long()).logits
            found = model.transformer.logits(model.transformer.encode(tokens, valid))
        assert found.equal(wanted)


def test_the_forward_of_the_loop_scores_by_the_class_s_logits(model: Model, folder: Path) -> None:
    """Each turn of the plainest rule commits the surest argmax of the class, called by itself on the canvas."""
    own, decoder = masked_lm(folder.name).double(), Decoder(model, "static", "whole", eos="none", gen_length=LENGTH)
    for turn in decoder.turns(PROMPTS[0]):
        with torch.no_grad():
            logits = own(input_ids=turn.canvas.tokens).logits[0]
        logits[:, model.ids.mask] = -torch.inf
        p, token = logits.softmax(-1).max(-1)
        at = int(p.masked_fill(~turn.canvas.masked[0], -1).argmax())
        assert turn.step.commit[0].nonzero()[:, 0].tolist() == [at]
        assert int(turn.step.tokens[0, at]) == int(token[at])


def test_a_row_decodes_the_same_alone_and_in_a_batch(model: Model) -> None:
    for eos in ("none", "fill_after_block", "truncate_at_eos"):
        together = Decoder(model, "confidence", eos=eos, gen_length=LENGTH, batch_size=3)(PROMPTS)
        alone = [Decoder(model, "confidence", eos=eos, gen_length=LENGTH)(prompt)[0] for prompt in PROMPTS]
        assert [row.canvas for row in together] == [row.canvas for row in alone]


@pytest.mark.daily(2)
@pytest.mark.parametrize("sampler", choices("sampler"))
def test_every_sampler_decodes_or_says_why_not(model: Model, folder: Path, sampler: str) -> None:
    if folder.name == "modernbert" and sampler not in ("eb", "freedave", "prophet"):
        pytest.skip("the rule sees numbers, whatever network they come from")
    options: dict[str, Any] = {"reference": [list(range(3, 3 + LENGTH))]} if sampler == "oracle" else {}
    rule = build("sampler", sampler) if ("sampler", sampler) in OPTIONS and not options else None
    try:
        decoder = Decoder(model, rule or part("sampler", sampler, **options), eos="none", gen_length=LENGTH)
    except UserError as error:
        assert re.search("run through its own class|no forward that verifies|undoes noise", str(error)), error
        assert sampler in {"adas", "d2f", "dawn", "dmax", "flash_verify", "linear_spec", "remix", "wino", *of_noise()}
        return
    (row,) = decoder(PROMPTS[0])
    assert len(row.canvas) == LENGTH and model.ids.mask not in row.canvas


@pytest.mark.parametrize("blocks", ["fixed", "whole", "sliding", "growing"])
def test_every_schedule_decodes(model: Model, blocks: str) -> None:
    (row,) = Decoder(model, "confidence", build("blocks", blocks), eos="none", gen_length=LENGTH)(PROMPTS[0])
    assert model.ids.mask not in row.canvas


def test_a_constrained_answer_fits(tmp_path: Path, folder: Path) -> None:
    model = load(make_masked_lm(folder.name, tmp_path / "written", written=True))
    for row in Decoder(model, constraint=Regex("[0-9]{2}-[a-c]+"), gen_length=8, batch_size=2)(["ab", "c"]):
        assert re.fullmatch("[0-9]{2}-[a-c]+", row.text)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"cache": "dual"}, "cache=dual is for models with full attention; this one is run through its own class"),
        ({"cache": "finished"}, "with block-causal or causal attention; this one is run through its own class"),
        ({"cache": "dpad"}, "and the class counts positions without gaps"),
        (
            {"sampler": "wino"},
            "sampler=wino reads attention or hidden states, or computes extra queries beside the canvas",
        ),
        ({"runtime": "static"}, "runtime=static runs the layers of the model one by one"),
    ],
)
def test_what_the_class_does_not_show_is_refused_with_the_reason(
    model: Model, parts: dict[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        Decoder(model, gen_length=LENGTH, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantize": "int8"}, "whose products are not ours. Set quantize=None"),
        ({"kernels": "invariant"}, "has none of our kernels. Use kernels=auto"),
        ({"adapter": "somewhere"}, "Merge the adapter by peft's merge_and_unload"),
        ({"attention_block": 4}, "which has no blocks"),
    ],
)
def test_what_is_not_ours_to_change_is_refused(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(folder, **options)


def test_a_tensor_that_is_missing_is_not_drawn_at_random(tmp_path: Path) -> None:
    folder = make_masked_lm("bert", tmp_path / "bert")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if "attention.self.query.weight" in name)
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"tensor {re.escape(name)} is missing, so transformers would draw it"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["NoSuchForMaskedLM"]}, "does not have natively, and code of a checkpoint is never run"),
        ({"is_decoder": True}, "is not a plain encoder"),
        ({"hidden_size": "x"}, "is refused by transformers' BertConfig|has no hidden_size"),
    ],
)
def test_a_class_that_is_no_encoder_of_transformers_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    folder = make_masked_lm("bert", tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change | {"auto_map": {"AutoModel": "code.Model"}}))
    with pytest.raises(UserError, match=words):
        load(folder)


def test_a_network_whose_rows_see_padding_is_refused() -> None:
    """Such as FNet, whose Fourier transform runs over all columns."""
    lm = masked_lm("bert")
    forward = lm.forward
    lm.forward = lambda input_ids, attention_mask: forward(input_ids=input_ids)
    config = type("Config", (), {"vocab": 64})
    with pytest.raises(UserError, match="computes other logits beside padding than alone"):
        checked_padding(MaskedLM(lm, config))


@pytest.mark.parametrize(("error", "is_refused"), [(0.9e-3, False), (1.1e-3, True)])
def test_padding_may_change_small_logits_by_a_thousandth(error: float, is_refused: bool) -> None:
    """In float32, of the largest logit or of 1."""
    lm, config = masked_lm("bert"), type("Config", (), {"vocab": 64})

    def forward(input_ids: Tensor, attention_mask: Tensor | None) -> SimpleNamespace:
        padded = attention_mask is not None and not bool(attention_mask.all())
        return SimpleNamespace(logits=torch.full((*input_ids.shape, 64), 0.25 + error * padded))

    lm.forward = forward
    with pytest.raises(UserError, match="beside padding") if is_refused else nullcontext():
        checked_padding(MaskedLM(lm, config))


def test_without_transformers_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    known = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return known(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"needs transformers, which is not installed.*\[transformers\]"):
        own_class.transformers_class("BertForMaskedLM")


def test_task_check_describes_it(folder: Path) -> None:
    report = inspect_checkpoint(folder)
    rows = dict(fact_rows(report))
    assert report.usable and report.verdict == "ready"
    assert "computed by transformers' own class" in rows["attention"] and rows["caches"].startswith("cache=none alone")
    own = masked_lm(folder.name)
    assert (
        abs(report.parameters - sum(one.numel() for one in own.parameters())) <= 64 * 25
    )  # a tied head is stored once
