"""A decode as it happens: the answer after every turn, its committed tokens and the guesses at the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from dllm.contract import Turn

HOLE = "\N{LIGHT SHADE}"  # stands for a mask in texts


@dataclass(frozen=True)
class Guess:
    """The model's proposal for a position that is still masked, and its probability."""

    token: int  # its id
    confidence: float  # its probability
    word: str  # its text


@dataclass(frozen=True)
class Snapshot:
    """One request after one turn. Positions count from the answer's start."""

    turn: int  # from 1
    tokens: list[int]  # the answer, mask ids or noise where undecided
    words: list[str] = field(repr=False)  # their texts (none for ends of text)
    committed: list[int]  # positions that this turn fixed
    remasked: list[int]  # those that it undid
    edited: list[int]  # those whose token it replaced
    # the model's guesses at masked positions that this turn's forward scored; a later turn
    # may decide otherwise
    provisional: dict[int, Guess]
    done: bool  # nothing is left to decide

    @property
    def text(self) -> str:
        """What is committed, with a shaded box for every mask."""
        return "".join(self.words)

    @property
    def draft(self) -> str:
        """The same with the guesses in place of the masks that have one."""
        return "".join(self.provisional[at].word if at in self.provisional else w for at, w in enumerate(self.words))


def snapshots(
    turns: Iterator[Turn], words: Callable[[Sequence[int]], list[str]], ends: Collection[int]
) -> Iterator[Snapshot]:
    """A snapshot after every turn of a batch of one request; of several candidates the first one is shown.

    ends: token ids that have no text of their own in an answer.
    """
    for turn in turns:
        if not (turn.finished or bool(turn.active[0])):  # the row waited: nothing has changed
            continue
        canvas = turn.candidates
        answer = slice(int(canvas.start[0]), int(canvas.initial_end[0]))
        tokens, masked = canvas.tokens[0, answer].tolist(), canvas.masked[0, answer].tolist()
        before, old, scored, guess_tokens, sure = (
            turn.followed(value, blank)[0, answer].tolist()
            for value, blank in (
                (turn.canvas.masked, 1),
                (turn.canvas.tokens, 0),
                (turn.view.scores.scored, 0),
                *((value, 0) for value in turn.guesses),
            )
        )
        yield Snapshot(
            turn=int(turn.view.blocks.turn[0]),
            tokens=tokens,
            words=[
                HOLE if is_mask else "" if token in ends else word
                for is_mask, token, word in zip(masked, tokens, words(tokens), strict=True)
            ],
            committed=[at for at, is_mask in enumerate(masked) if before[at] and not is_mask],
            remasked=[at for at, is_mask in enumerate(masked) if is_mask and not before[at]],
            edited=[at for at, is_mask in enumerate(masked) if not (is_mask or before[at]) and tokens[at] != old[at]],
            provisional={
                at: Guess(guess_tokens[at], sure[at], "" if guess_tokens[at] in ends else words([guess_tokens[at]])[0])
                for at, is_mask in enumerate(masked)
                if is_mask and scored[at]
            },
            done=0 in turn.finished,
        )
