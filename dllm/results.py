"""What a decode gives back: one ``Result`` per sample, the same in Python, on disk and in the tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dllm.trace import Trace


@dataclass(frozen=True)
class Result:
    """One decoded sample.

    text and tokens: the answer up to its end (first stop id, stop string or the canvas's end), stop excluded.
    canvas: the whole answer as decoded, mask ids where it was cut. nfe: forwards in which this row took part.
    query_tokens: query rows of those forwards, averaged over layers. seconds: wall time from the start of its batch to
    its last turn. stop_reason: ``eos``, ``stop_string``, ``length``. turns: the turn (from 1) that fixed each canvas
    position, 0 where none did. given_tokens: positions of the canvas that were given (infilling); then ``tokens`` is
    the whole canvas without end-of-text tokens, and ``text`` begins with the prompt.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str
    canvas: list[int]
    nfe: int
    query_tokens: int
    seconds: float
    stop_reason: str
    seed: int
    turns: list[int]
    prompt: str = ""
    given_tokens: int = 0
    trace: Trace | None = field(default=None, repr=False)

    @property
    def useful_tokens(self) -> int:
        """Tokens of the answer that were decoded, without what infilling had given."""
        return max(0, len(self.tokens) - self.given_tokens)

    @property
    def tpf(self) -> float:
        """Useful tokens per forward."""
        return self.useful_tokens / self.nfe if self.nfe else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Useful tokens per second of the batch this sample was decoded in."""
        return self.useful_tokens / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Everything but the trace, which goes to a file of its own."""
        row = {key: value for key, value in asdict(self).items() if key != "trace"}
        return {**row, "useful_tokens": self.useful_tokens}
