"""Texts to ids such that what spells a special token stays text.

A text is cut after the first character of each spelling, and its pieces are encoded apart: ``<`` and ``|eot_id|>``
spell nothing. Texts that spell none are encoded whole, as the tokenizer does by itself.

A tokenizer that puts a space before every text puts none before those that go on where another ends. Llama 2's kind
does so by its normalizer, others by the pre-tokenizer. CodeLlama's own code encodes what is inside after an anchor,
which it cuts off; here the tokenizer's description says what adds the space.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

from tokenizers import Encoding, Tokenizer

from dllm.common.coerce import refuse_unwritable
from dllm.common.errors import UserError
from dllm.models.keys import quote
from dllm.models.weights.files import broken

Span = tuple[int, int]  # begin and end in a text
LONG = 16384  # characters; they take 10 ms
# Of a normalizer or pre-tokenizer, what does nothing to the beginning of a text.
_AT_BEGINNING: Mapping[str, Mapping[str, Any]] = {
    "Metaspace": {"prepend_scheme": "never"},
    "ByteLevel": {"add_prefix_space": False},
    "Strip": {"strip_left": False},
}
HIEROGLYPH = "\U00013000"  # a hieroglyph, which makes the unknown token of a vocabulary that has one


def encode_text(backend: Tokenizer, text: str) -> list[int]:
    """Ids of a text, special tokens recognised. Raises UserError where the vocabulary has neither its pieces nor an
    unknown token."""
    return list(_encoding(backend, text).ids)


def plain_pieces(
    backend: Tokenizer,
    text: str,
    special: frozenset[int],
    template_spans: Collection[Span] = (),
    inside: Tokenizer | None = None,
) -> list[tuple[str, list[int]]]:
    """The pieces of a text and the ids of each, without any of ``special``, unless it stands for unknown text.
    template_spans: where special tokens stand all the same. inside: the tokenizer of all pieces but the first (None:
    the same). Raises UserError as ``encode_text``, and where a special token is a single character,
    which nothing else writes."""
    pieces, todo = [], [(0, text)]
    while todo:
        start, piece = todo.pop()
        encoding = _encoding(backend if start == 0 or inside is None else inside, piece)
        spans = () if special.isdisjoint(encoding.ids) else _special_spans(backend, piece, encoding, special)
        spots = [_spot(piece, span) for span in spans if (start + span[0], start + span[1]) not in template_spans]
        if spots:
            cuts = pairwise([0, *spots, len(piece)])
            todo += [(start + begin, piece[begin:end]) for begin, end in cuts][::-1]
        else:
            pieces.append((piece, list(encoding.ids)))
    return pieces


def special_spans(backend: Tokenizer, text: str, special: frozenset[int]) -> list[Span]:
    """Where a text spells tokens of ``special``."""
    return list(_special_spans(backend, text, _encoding(backend, text), special))


def _special_spans(backend: Tokenizer, text: str, encoding: Encoding, special: frozenset[int]) -> Iterator[Span]:
    """Where special tokens stand, without the white space around them that some take in."""
    unknown = _unknown(backend)
    for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
        whole = text[begin:end]
        if token not in special or (token in unknown and str(backend.id_to_token(token)) not in whole):
            continue
        if whole.strip():
            begin, end = end - len(whole.lstrip()), begin + len(whole.rstrip())
        yield begin, end


def _spot(text: str, span: Span) -> int:
    """Where to cut a text so that it does not spell the special token of ``span``."""
    begin, end = span
    if begin + 1 >= end:
        spelling = text[begin:end]
        raise UserError(f"the text holds {spelling!r}, a special token that cannot be written otherwise. Drop it.")
    return begin + 1


def _unknown(backend: Tokenizer) -> list[int]:
    """The tokens of what the vocabulary lacks, which may count as special, too."""
    with suppress(UserError):
        return encode_text(backend, HIEROGLYPH)
    return []


def _encoding(backend: Tokenizer, text: str) -> Encoding:
    refuse_unwritable("the text", text)
    try:
        if len(text) > LONG:  # a batch is encoded without Python's lock: 900 kB would hold it for a second
            return backend.encode_batch([text], add_special_tokens=False)[0]
        return backend.encode(text, add_special_tokens=False)
    except Exception as error:  # tokenizers raises plain Exception
        raise broken(f"the tokenizer cannot encode {quote(text)} ({error})") from error


def without_prefix(backend: Tokenizer) -> Tokenizer:
    """The same tokenizer, which adds nothing before a text and drops no blanks there: itself, where it is one."""
    both = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}
    parts = {name: part and json.loads(part.__getstate__()) for name, part in both.items()}
    changed = {name: _unprefixed(part) for name, part in parts.items()}
    if changed == parts:
        return backend
    return Tokenizer.from_str(json.dumps({**json.loads(backend.to_str()), **changed}))


def _unprefixed(part: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer without what it does to the beginning of a text; None: that is all it does."""
    if part is None or part["type"] == "Prepend" or str(part.get("pattern", {}).get("Regex", "")).startswith("^"):
        return None
    for key in ("normalizers", "pretokenizers"):
        if key in part:
            return {**part, key: [inner for inner in map(_unprefixed, part[key]) if inner is not None]}
    changes = _AT_BEGINNING.get(part["type"], {})
    return {**part, **{key: value for key, value in changes.items() if key in part}}
