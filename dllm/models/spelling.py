"""Texts to ids such that what spells a special token stays text.

A text is cut behind the first character of each spelling, and its pieces are encoded apart: ``<`` and ``|eot_id|>``
spell nothing. Texts that spell none are encoded whole, as the tokenizer does by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from tokenizers import Encoding, Tokenizer

from dllm.errors import UserError
from dllm.models.files import broken
from dllm.models.keys import shown

HIEROGLYPH = "\U00013000"  # a hieroglyph, which makes the unknown token of a vocabulary that has one


def encode_text(backend: Tokenizer, text: str) -> list[int]:
    """Ids of a text, special tokens recognised. Raises UserError where the vocabulary has neither its pieces nor an
    unknown token."""
    return list(_encoding(backend, text).ids)


def plain_pieces(backend: Tokenizer, text: str, special: frozenset[int]) -> list[tuple[str, list[int]]]:
    """The pieces of a text and the ids of each, none of which is of ``special``, unless it stands for unknown text.
    Raises UserError as ``encode_text``, and where a special token is a single character, which nothing else writes."""
    done, todo = [], [text]
    while todo:
        piece = todo.pop()
        found = _encoding(backend, piece)
        spots = [] if special.isdisjoint(found.ids) else list(_spots(backend, piece, found, special))
        if spots:
            todo += [piece[begin:end] for begin, end in pairwise([0, *spots, len(piece)])][::-1]
        else:
            done.append((piece, list(found.ids)))
    return done


def _spots(backend: Tokenizer, text: str, found: Encoding, special: frozenset[int]) -> Iterator[int]:
    """Where to cut a text so that it spells no special token."""
    unknown = _unknown(backend)
    for token, (begin, end) in zip(found.ids, found.offsets, strict=True):
        spelling = str(backend.id_to_token(token))
        if token not in special or (token in unknown and spelling not in text[begin:end]):
            continue
        spot = max(text.find(spelling, begin, end), begin) + 1  # a token may take in the white space before it
        if spot >= end:
            raise UserError(f"the text holds {spelling!r}, a special token that cannot be written otherwise. Drop it.")
        yield spot


def _unknown(backend: Tokenizer) -> list[int]:
    """The tokens of what the vocabulary lacks, which may count as special, too."""
    with suppress(UserError):
        return encode_text(backend, HIEROGLYPH)
    return []


def _encoding(backend: Tokenizer, text: str) -> Encoding:
    try:
        return backend.encode(text, add_special_tokens=False)
    except Exception as error:  # tokenizers raises plain Exception
        raise broken(f"the tokenizer cannot encode {shown(text)} ({error})") from error
