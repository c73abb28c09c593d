"""What is streamed: the pieces make up the reply's text, in any order of commits and with any stop strings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from dllm.contract.canvas import Request
from dllm.serve.stream import AnswerText, first_stop, open_tail

END, MASK = 256, 257
SIGNS = "aab \né€😀\N{REPLACEMENT CHARACTER}"


def decoded(tokens: Sequence[int]) -> str:
    """Byte-level text: a token is a byte, as in the published models."""
    return bytes(token for token in tokens if token < END).decode("utf-8", "replace")


@dataclass
class Finished:
    """What ``finish`` reads of a result."""

    text: str
    tokens: list[int]
    stop_reason: str
    constraint: None = None


def drawn(dice: random.Random) -> tuple[list[int], tuple[str, ...]]:
    """An answer, and stop strings of which some occur in it."""
    text = "".join(dice.choices(SIGNS, k=dice.randint(0, 12)))
    tokens = list(text.encode())
    for _ in range(dice.choice([0, 0, 0, 2])):  # bytes that are no text
        tokens.insert(dice.randint(0, len(tokens)), dice.randint(128, 255))
    if dice.random() < 0.5:
        tokens[dice.randint(0, len(tokens)) :] += [END, *dice.choices([*b"ab", END], k=dice.randint(0, 4))]
    stops = [text[at : at + dice.randint(1, 4)] for at in dice.choices(range(len(text)), k=2)] if text else []
    stops += ["".join(dice.choices(SIGNS, k=dice.randint(1, 3)))]
    return tokens, tuple(dice.sample(stops, dice.randint(0, len(stops))))


def truth(tokens: list[int], stops: tuple[str, ...]) -> tuple[str, str]:
    """The reply's text and why it ends, from the finished answer."""
    text = decoded(tokens[: tokens.index(END)] if END in tokens else tokens)
    cuts = [text.index(stop) for stop in stops if stop in text]
    return text[: min(cuts, default=len(text))], "stop" if cuts or END in tokens else "length"


@pytest.mark.parametrize("seed", range(8))
def test_the_pieces_make_up_the_text(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(200):
        tokens, stops = drawn(dice)
        expected, reason = truth(tokens, stops)
        follower = AnswerText.of(Request.answer([1], len(tokens) or 1, MASK), decoded, {END}, stops)
        order, masked, pieces, ending = dice.sample(range(len(tokens)), len(tokens)), [True] * len(tokens), "", None
        while order and ending is None:
            for _ in range(dice.randint(1, 3)):
                if order:
                    masked[order.pop()] = False
            seen = [MASK if hidden else token for token, hidden in zip(tokens, masked, strict=True)]
            if dice.random() < 0.7:  # a slow reader misses some turns
                new, ending = follower.follow(seen, masked.index(True) if True in masked else len(tokens))
                pieces += new
                assert expected.startswith(pieces)
        if ending is None:
            kept = tokens[: tokens.index(END)] if END in tokens else tokens
            done = Finished(decoded(kept), kept, "eos" if END in tokens else "length")
            new, ending = follower.finish(done)  # type: ignore[arg-type]
            pieces += new
        assert pieces == ending.text == expected and ending.reason == reason, (tokens, stops)
        assert expected.startswith(decoded(ending.tokens).rstrip("\N{REPLACEMENT CHARACTER}"))


def test_text_is_sent_as_soon_as_nothing_can_change_it() -> None:
    follower = AnswerText(decoded, {END}, ("stop", "xy"))
    euro = list("€".encode())
    assert follower.follow([*b"ab", euro[0], MASK], 3) == ("ab", None)
    assert follower.follow([*b"ab", *euro, MASK], 5) == ("€", None)
    assert follower.follow([*b"ab", *euro, *b"sto"], 8) == ("", None)  # may become "stop"
    assert follower.follow([*b"ab", *euro, *b"stone x"], 12)[0] == "stone "
    new, ending = follower.follow([*b"ab", *euro, *b"stone xyz"], 14)
    assert new == "" and ending is not None
    assert ending.text == "ab€stone " and bytes(ending.tokens) == "ab€stone ".encode()


def test_a_stop_string_waits_for_a_longer_one_that_began_before_it() -> None:
    follower = AnswerText(decoded, {END}, ("bc", "abcd"))
    assert follower.follow(list(b"xabc"), 4) == ("x", None)
    new, ending = follower.follow(list(b"xabcd"), 5)
    assert new == "" and ending is not None and ending.text == "x"


def test_an_end_of_text_lets_everything_go() -> None:
    follower = AnswerText(decoded, {END}, ("stop",))
    assert follower.follow([*b"sto", 0xE2, END, *b"later"], 8) == ("sto\N{REPLACEMENT CHARACTER}", None)


def test_an_infilling_keeps_what_stands_behind_an_end() -> None:
    request = Request([*b"A ", MASK, MASK, *b" B"], [False, False, True, True, False, False])
    follower = AnswerText.of(request, decoded, {END}, ("B",))
    assert follower.follow([*b"x", MASK, *b" B"], 1) == ("A x", None)
    assert follower.follow([*b"x", END, *b" B"], 4) == (" B", None)


@pytest.mark.parametrize("seed", range(4))
def test_the_pieces_of_an_infilling_make_up_its_text(seed: int) -> None:
    """Characters of up to four bytes, decided one byte a turn in any order, with ends of text between them."""
    dice = random.Random(seed)
    for _ in range(100):
        head, tokens = list("A €".encode()), list("".join(dice.choices(SIGNS[:-1], k=dice.randint(1, 8))).encode())
        for _ in range(dice.choice([0, 0, 1, 2])):
            tokens.insert(dice.randint(0, len(tokens)), END)
        masked, tokens = [True, *(dice.random() < 0.7 for _ in tokens[1:]), False], [*tokens, *b"B"]
        canvas = [*head, *(MASK if hidden else token for token, hidden in zip(tokens, masked, strict=True))]
        follower = AnswerText.of(Request(canvas, [token == MASK for token in canvas]), decoded, {END}, ("A",))
        pieces = ""
        while any(masked):
            masked[dice.choice([at for at, hidden in enumerate(masked) if hidden])] = False
            seen = [MASK if hidden else token for token, hidden in zip(tokens, masked, strict=True)]
            new, ending = follower.follow(seen, masked.index(True) if True in masked else len(tokens))
            pieces += new
            assert ending is None and "\N{REPLACEMENT CHARACTER}" not in pieces
        text = decoded([*head, *(token for token in tokens if token != END)])
        new, ending = follower.finish(Finished(text, tokens, "length"))  # type: ignore[arg-type]
        assert pieces + new == ending.text == text


def test_where_stop_strings_begin() -> None:
    assert first_stop("abcabc", ("c", "bc")) == 1 and first_stop("abc", ("d",)) is None
    assert open_tail("aab", ("abc", "bd")) == 1 and open_tail("abx", ("abc",)) == 3 and open_tail("", ()) == 0


def test_a_text_that_changes_is_a_fault() -> None:
    follower = AnswerText(decoded, {END})
    follower.follow(list(b"ab"), 2)
    with pytest.raises(AssertionError, match="has changed"):
        follower.follow(list(b"xb"), 2)
