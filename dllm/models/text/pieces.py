"""What each token of a text writes, in bytes: joined, they are the UTF-8 of the text.

The text of a token alone does not say it: the token may be a part of a character, and what it writes may depend on its
place (SentencePiece drops the first blank, WordPiece puts blanks between words).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from os.path import commonprefix

from tokenizers import Tokenizer as Backend

HEX_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte, as SentencePiece spells it
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # a blank, as SentencePiece spells it
MOST_IDS = 16  # ids that may make up a character together
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # is in a text for bytes that are not a character


def pieces_of(backend: Backend, ids: Sequence[int]) -> list[bytes]:
    """The bytes that each id adds to the text of all. Where bytes are not a character, the text has U+FFFD, and so have
    they: the first of these tokens writes it, the others nothing."""
    text = str(backend.decode(list(ids), skip_special_tokens=False))
    spellings = [backend.id_to_token(number) or "" for number in ids]
    return _byte_level(spellings, text) or _by_prefixes(backend, ids, spellings, text)


def alone(backend: Backend, number: int) -> bytes:
    """The bytes of one id by itself: also where they are not a character, and with the space that decoders leave out in
    front of a text."""
    text, spelling = str(backend.decode([number], skip_special_tokens=False)), backend.id_to_token(number) or ""
    if _byte_level([spelling], text) is not None:
        return spelling_bytes(spelling)
    if HEX_BYTE.fullmatch(spelling):
        return bytes.fromhex(spelling[3:5])
    spaced = spelling.replace(SPACE, " ")
    return (spaced if spaced.strip() == text.strip() else text).encode()


def _byte_level(spellings: Sequence[str], text: str) -> list[bytes] | None:
    """The bytes of each entry of a byte-level vocabulary. None: they are not what makes up the text."""
    raw = [spelling_bytes(spelling) for spelling in spellings]
    whole = b"".join(raw)
    units = [bytes([byte]) for byte in whole]
    for begin, end in _damages(whole):
        units[begin:end] = [REPLACEMENT.encode(), *[b""] * (end - begin - 1)]
    if b"".join(units) != text.encode():
        return None
    return [b"".join(units[begin:end]) for begin, end in pairwise(accumulate(map(len, raw), initial=0))]


def _damages(data: bytes) -> Iterator[tuple[int, int]]:
    """Where a decoder writes U+FFFD: the begin and the end of each run of bytes that one stands for."""
    at = 0
    while True:
        try:
            data[at:].decode()
            return
        except UnicodeDecodeError as error:
            yield at + error.start, at + error.end
            at += error.end


def _by_prefixes(backend: Backend, ids: Sequence[int], spellings: Sequence[str], text: str) -> list[bytes]:
    """Of any tokenizer: what the text has in common with that of the first tokens grows with each of them. Bytes that
    only together make up a character are told apart by their spellings."""
    ends = [0, *_ends(backend, list(ids), text), len(text)]
    pieces = [text[begin:end].encode() for begin, end in pairwise(ends)] if ids else []
    for is_bytes, run in groupby(range(len(ids)), key=lambda at: HEX_BYTE.fullmatch(spellings[at]) is not None):
        places = list(run)
        raw = [bytes.fromhex(spellings[at][3:5]) for at in places] if is_bytes else []
        if b"".join(raw) == b"".join(pieces[at] for at in places):
            pieces[places[0] : places[-1] + 1] = raw or [pieces[at] for at in places]
    return pieces


def _ends(backend: Backend, ids: list[int], text: str) -> Iterator[int]:
    """How much of the text there is after each id but the last. What is sure is not decoded again, but for a little of
    it before each id, on which its text may depend: prefixes of 1,000 ids would take a second."""
    context, sure, begin, end = 0, 0, 0, 0  # ids before which nothing is read, that are sure; characters of those
    for count in range(1, len(ids)):
        before = str(backend.decode(ids[context:sure], skip_special_tokens=False))
        grown = str(backend.decode(ids[context:count], skip_special_tokens=False))[len(before) :]
        common = commonprefix([grown, text[begin : begin + len(grown)]])
        end = max(end, begin + len(common))
        whole = common == grown and grown and not grown.endswith(REPLACEMENT)
        if whole or count - sure > MOST_IDS:
            context, sure, begin = sure, count, end
        yield end


# GPT-2's table: 188 printable bytes stand for themselves, the other 68 are U+0100 and on, in byte order.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + at): byte for at, byte in enumerate(_UNPRINTABLE)}


def spelling_bytes(spelling: str) -> bytes:
    """The bytes of an entry of a byte-level vocabulary. As in the decoder of ``tokenizers``, an entry with a character
    outside the table (an added token with a space in it) is its UTF-8."""
    numbers = [BYTE_OF.get(character) for character in spelling]
    values = [number for number in numbers if number is not None]
    return bytes(values) if len(values) == len(numbers) else spelling.encode()
