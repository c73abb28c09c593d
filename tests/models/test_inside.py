"""Texts after other texts are encoded as they are, whatever a tokenizer does to the beginning of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_folders import write_tokenizer
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dllm.parts import BYTE_OF, Tokenizer, without_prefix

LETTERS = [*"abdefghinot", "an", "th", "the", "\N{LOWER ONE EIGHTH BLOCK}", "\N{LOWER ONE EIGHTH BLOCK}an", *"()<>|_+."]
MERGES = [("t", "h"), ("th", "e"), ("a", "n"), ("\N{LOWER ONE EIGHTH BLOCK}", "an")]
STRIPPED = decoders.Sequence(
    [decoders.Replace("\N{LOWER ONE EIGHTH BLOCK}", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
SPACED = normalizers.Replace(" ", "\N{LOWER ONE EIGHTH BLOCK}")
KINDS: dict[str, tuple[Any, Any, Any]] = {  # normalizer, pre-tokenizer, decoder
    "Prepend": (normalizers.Sequence([normalizers.Prepend("\N{LOWER ONE EIGHTH BLOCK}"), SPACED]), None, STRIPPED),
    "a rule for the beginning": (normalizers.Sequence([normalizers.Replace(Regex("^"), " "), SPACED]), None, STRIPPED),
    "Metaspace, always": (None, pre_tokenizers.Metaspace(prepend_scheme="always"), decoders.Metaspace()),
    "Metaspace, first": (
        None,
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        decoders.Metaspace(prepend_scheme="first"),
    ),
    "Metaspace in a sequence": (
        None,
        pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="always")]),
        decoders.Metaspace(),
    ),
    "none": (SPACED, None, decoders.Sequence([decoders.Replace("\N{LOWER ONE EIGHTH BLOCK}", " "), decoders.Fuse()])),
}


def backend(kind: str) -> Backend:
    if kind == "byte level":
        bytes_in_order = {sign: number for number, sign in enumerate(BYTE_OF)}
        made = Backend(models.BPE(bytes_in_order, []))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    else:
        made = Backend(models.BPE({sign: number for number, sign in enumerate(LETTERS)}, MERGES))
        made.normalizer, made.pre_tokenizer, made.decoder = KINDS[kind]
    made.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return made


@pytest.mark.parametrize("kind", [*KINDS, "byte level"])
def test_given_texts_stay_as_they_are(kind: str, tmp_path: Path) -> None:
    """What is decoded is what was given, text by text, and a spelt special token inside of a text gets no space."""
    write_tokenizer(tmp_path, backend(kind), eos_token="<|end|>")
    tokenizer = Tokenizer.from_folder(tmp_path)
    for first, second in (("the ", " an"), ("f(", ")"), ("the", "an"), ("a+", "+a"), ("a", "  the")):
        begun = tokenizer.encode(first, begins=True)
        space = " " if kind == "byte level" else ""  # which its decoder does not take away
        assert tokenizer.decode(begun) == space + first
        assert tokenizer.decode([*begun, *tokenizer.encode(second)]) == space + first + second
    whole = "a<|end|>the <|end|> f"
    assert tokenizer.decode(tokenizer.encode(whole, begins=True), skip_special=False) == space + whole
    assert tokenizer.encode(first, special=True) == begun


@pytest.mark.parametrize("kind", [*KINDS, "byte level"])
def test_a_tokenizer_that_adds_nothing_is_taken_as_it_is(kind: str) -> None:
    found = backend(kind)
    assert (without_prefix(found) is found) == (kind == "none")
    assert without_prefix(found).encode("an", add_special_tokens=False).tokens[0] in ("an", "a")
