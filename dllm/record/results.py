"""The result of a decode: one ``Result`` for each sample, in Python, in files and in tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dllm.common.errors import UserError
from dllm.contract.constrained import ConstraintReport
from dllm.record.final_commits import LogProbs, at_commit
from dllm.record.trace import Trace, viewer

ResultRow = dict[str, Any]  # a line of results.jsonl: ``Result.to_json``, and what the run adds
NOT_STORED = ("trace", "words")  # a trace has a file of its own; words follow from the tokenizer


@dataclass(frozen=True)
class Result:
    """One decoded sample."""

    prompt_tokens: list[int]  # ids of the prompt
    tokens: list[int]  # ids of the answer up to its end, stop excluded
    text: str  # of ``tokens``; the end is the first stop id, stop string or the canvas's end
    canvas: list[int]  # ids of the whole answer as decoded, mask ids where it was cut
    nfe: int  # forwards in which this row took part
    query_tokens: int  # of those forwards, averaged over layers
    seconds: float  # wall time from the start of its batch to its last turn
    stop_reason: str  # ``eos``, ``stop_string`` or ``length``
    seed: int  # of the request
    turns: list[int]  # the turn (from 1) that fixed each canvas position, 0 where none did
    prompt: str = ""  # as text
    # positions given (infilling): ``tokens`` is then the canvas without ends, ``text`` begins with the prompt
    given_tokens: int = 0
    flops: float = 0.0  # of the forwards, if the row is decoded alone (``dllm.record.cost``)
    bytes: float = 0.0  # that they move, if the row is decoded alone
    computed_tokens: int = 0  # query tokens with padding to the batch's shapes and with idle forwards
    idle_forwards: int = 0  # in which the row waited for the host
    began: float = 0.0  # seconds of its batch before the row joined
    cpu_seconds: float = 0.0  # part of ``seconds`` in which the decoding thread had a core
    load: float = 0.0  # processes that had or wanted a core, per core, mean of the last minute
    device: str = "cpu"  # kind of device that decoded
    runtime: str = "eager"  # how turns ran; never ``auto``
    words: list[str] = field(default_factory=list, repr=False)  # text of each token of the canvas by itself
    constraint: ConstraintReport | None = None  # what it did to the row; None: the row was free
    trace: Trace | None = field(default=None, repr=False)  # every turn; None: not asked for

    @property
    def useful_tokens(self) -> int:
        """Tokens of the answer that were decoded; those that infilling gave do not count."""
        return max(0, len(self.tokens) - self.given_tokens)

    @property
    def tpf(self) -> float:
        """Useful tokens per forward."""
        return self.useful_tokens / self.nfe if self.nfe else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Useful tokens per second from its first turn to its last."""
        return self.useful_tokens / self.latency if self.latency else 0.0

    @property
    def latency(self) -> float:
        """Seconds from its first turn to its last."""
        return self.seconds - self.began

    def traced(self) -> Trace:
        """The trace. Raises UserError when none was kept."""
        if self.trace is None:
            raise UserError("this result has no trace; decode with trace=True to keep every turn.")
        return self.trace

    @property
    def commit_logprobs(self) -> LogProbs:
        """Log-probability of each token of the canvas in the forward that committed it, in nats, under the model alone:
        at temperature 1 and unfiltered, even if the draw was not; ``decoder.rescored(result)`` gives those of the
        tokens one at a time. Raises UserError without a trace."""
        return at_commit(self.traced(), lambda commit: commit.own)

    @property
    def drawn_logprobs(self) -> LogProbs:
        """The same under the distribution that each token was drawn from: temperature, top_p, top_k, banned tokens and
        constraint as they were applied. 0 where nothing was drawn, so at temperature 0. Raises UserError without a
        trace."""
        return at_commit(self.traced(), lambda commit: commit.drawn)

    def to_json(self) -> dict[str, Any]:
        """Everything but the trace, which goes to a file of its own, and the words."""
        row = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in NOT_STORED}
        report = None if self.constraint is None else asdict(self.constraint)
        return {**row, "constraint": report, "useful_tokens": self.useful_tokens}

    def _repr_html_(self) -> str:
        """In a notebook: the text, each token in the colour of the turn that fixed it."""
        page: str = viewer("notebook").result_html(self)
        return page


class Results(list[Result]):
    """A list of results, which a notebook shows one below another."""

    def _repr_html_(self) -> str:
        page: str = viewer("notebook").results_html(self)
        return page
