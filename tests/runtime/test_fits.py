"""Where memory runs out, a sentence names what fits, and it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dllm import Decoder, Model, UserError, load
from dllm.parts import Transformer

PROMPTS = ["w1 w2", "w3", "w4 w5 w6", "w1", "w2"]


@pytest.fixture
def small(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model on a device with room for so many rows of a forward."""
    forward = Transformer.forward

    def limited(self: Transformer, tokens: torch.Tensor, *given: object, **named: object) -> object:
        if tokens.numel() > limited.room:  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, tokens, *given, **named)  # type: ignore[arg-type]

    limited.room = 60  # type: ignore[attr-defined]
    monkeypatch.setattr(Transformer, "forward", limited)
    return load(tiny)


def test_the_batch_that_fits_is_named(small: Model) -> None:
    with pytest.raises(UserError, match="a batch of 5 does not fit into the memory of cpu, but 2 of it do.*_size=2"):
        Decoder(small, gen_length=16, batch_size=5)(PROMPTS)
    assert len(Decoder(small, gen_length=16, batch_size=2)(PROMPTS)) == 5


def test_the_length_that_fits_is_named(small: Model) -> None:
    with pytest.raises(UserError, match=r"an answer of 128 tokens after a prompt of \d+ does not fit.*gen_length=32"):
        Decoder(small, gen_length=128)(PROMPTS[:1])
    assert Decoder(small, gen_length=32)(PROMPTS[0])[0].nfe


def test_a_prompt_that_does_not_fit(small: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transformer.forward, "room", 3)
    with pytest.raises(UserError, match=r"a prompt of \d+ tokens does not fit into the memory of cpu .*bfloat16"):
        Decoder(small, gen_length=16)(PROMPTS[2])


def test_what_was_decoded_before_is_there(small: Model) -> None:
    """Results come as rows finish: a later batch that does not fit takes none of them."""
    decoder, found = Decoder(small, gen_length=16), []
    with pytest.raises(UserError, match="does not fit"):
        for result in decoder.iterate(["w1", "w2", " ".join(["w3"] * 60)]):
            found.append(result)
    assert len(found) == 2
