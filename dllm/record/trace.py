"""What a decode did, turn by turn: enough to redraw it, to check it, and to compute limits from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm.common.atomic_write import write_or_refuse
from dllm.common.errors import Refusal, UserError
from dllm.constraints.kinds import Constraint
from dllm.contract.canvas import Request
from dllm.record.trace_data import NoTrace, data_frame, entries_of, json_of, jsonable, turn_of
from dllm.record.turns import TurnRecord

if TYPE_CHECKING:
    from pandas import DataFrame

ADVICE = "Name a file of a run's traces folder, or of Trace.save; decode with trace=true to get one."
# What a file says of a trace that was made by hand: there are no settings to decode it with.
NO_ORIGIN = {"id": "1", "sample": 0, "seed": 0, "batch": [["1", 0]], "config": None}


def viewer(module: str) -> Any:
    """A module of ``dllm.view`` by its name, imported when something is shown: results and traces need none of it, and
    it draws them, so that it imports this package and not the reverse."""
    return import_module(f"dllm.view.{module}")


@dataclass
class Trace:
    """All turns of one request."""

    prompt: list[int]  # ids of its canvas at the start, with the first noise where undecided positions show noise
    given: list[int]  # 1 where a column of it is given, else 0
    mask_id: int | None  # the mask's id (None: undecided positions show noise)
    eos_id: int  # of the end of the text
    start: int  # the answer's first position
    length: int  # columns at the start, without padding
    turns: list[TurnRecord] = field(default_factory=list)  # in their order
    words: dict[int, str] = field(default_factory=dict)  # the text of every token id that occurs
    # what the size of its gap was found by before the first turn: sizes, and the mean probability of the likeliest
    # tokens of each (empty: it was given)
    probes: list[list[float]] = field(default_factory=list)
    # what its file says beside these: its sample and prompt, its seed, and the settings of its decode, with
    # which ``task=replay`` decodes it again (empty: not known)
    origin: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def path(self) -> list[tuple[TurnRecord, int]]:
        """The decode's path: every turn with the number of the candidate that the row went on with."""
        numbers = [record.kept for record in self.turns[1:]] + [0]
        return list(zip(self.turns, numbers[: len(self.turns)], strict=True))

    def answers(self) -> Iterator[list[int]]:
        """The answer's tokens before every turn and at the end, by position: as everywhere, from the answer's start."""
        return (canvas[self.start :] for canvas in self.canvases())

    def canvases(self) -> Iterator[list[int]]:
        """The canvas before every forward, then the final one: ids, with the mask id where undecided, or with what is
        shown there."""
        candidates = [list(self.prompt)]
        for record in self.turns:
            canvas = candidates[record.kept]
            yield list(canvas)
            candidates = [self._after(canvas, record, number) for number in range(len(record.candidates))]
        yield candidates[0]

    def _after(self, canvas: list[int], record: TurnRecord, number: int) -> list[int]:
        canvas = list(canvas)
        for position in record.remasked[number]:
            canvas[self.start + position] = self._mask
        for commits in record.written(number):
            for position, token in zip(commits.positions, commits.tokens, strict=True):
                canvas[self.start + position] = token
        for position in record.filled[number]:
            canvas[self.start + position] = self.eos_id
        for position in record.rolled[number]:
            canvas[self.start + position] = self._mask
        for noise in record.shown[number : number + 1]:
            for position, token in zip(noise.positions, noise.tokens, strict=True):
                canvas[self.start + position] = token
        if record.length is not None:
            canvas = record.length.canvas(canvas, self.start, self._mask, self.eos_id)
        return canvas

    def _repr_html_(self) -> str:
        """In a notebook: the answer forward by forward, each token in the colour of the forward that fixed it."""
        page: str = viewer("notebook").trace_html(self)
        return page

    @property
    def _mask(self) -> int:
        """The mask's id. Raises TypeError for a decode without masks, whose turns take nothing back."""
        if self.mask_id is None:
            raise TypeError("undecided positions show noise")
        return self.mask_id

    def to_json(self) -> dict[str, Any]:
        """The turns as dictionaries and lists, without the origin: what a trace file has under ``trace``. No text:
        ``save`` writes a file."""
        content = {name: value for name, value in asdict(self).items() if name != "origin"}
        for turn in content["turns"]:
            if turn["mixtures"] is None:
                del turn["mixtures"]
        return content

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Trace:
        """The trace in the object of a trace file, or in what it has under ``trace`` (``to_json``). Raises UserError
        for anything else."""
        try:
            return trace_in(data)
        except NoTrace as reason:
            raise UserError(f"this {reason}. Trace.load(FILE) reads a file. {ADVICE}") from None

    @staticmethod
    def load(path: str | Path) -> Trace:
        """The trace in a file.

        Args:
            path: a file of ``save``, of a run's traces folder, or of a server's reply.

        Returns:
            The trace, with the settings of its decode (``Trace.origin``).

        Raises:
            UserError: any other file.

        >>> from dllm import Decoder, Trace, load
        >>> result = Decoder(load("mini-llada"), gen_length=32)('Copy the list:\\n["Kai"]', trace=True)[0]
        >>> Trace.load(result.trace.save("copied.json")) == result.trace
        True
        """
        return read_trace(Path(path).expanduser())[1]

    def content(self) -> dict[str, Any]:
        """The content of its file, as JSON can hold it."""
        content: dict[str, Any] = jsonable({**NO_ORIGIN, **self.origin, "trace": self.to_json()})
        return content

    def save(self, path: str | Path) -> Path:
        """Write the file that ``load``, ``python -m dllm.view`` and ``task=replay`` read, whole or not at all.

        Args:
            path: where; its folder exists.

        Returns:
            The path, without ``~``.

        Raises:
            UserError: it cannot be written.
        """
        return write_or_refuse(Path(path).expanduser(), json.dumps(self.content(), allow_nan=False))

    def to_html(self, path: str | Path, other: Trace | None = None) -> Path:
        """Write a page that plays it, beside an ``other`` trace if there is one. Returns where it is. Raises UserError
        where it cannot be written."""
        page = viewer("page")
        panes = [page.Pane.of("", trace.content(), trace) for trace in (self, other) if trace is not None]
        return write_or_refuse(Path(path).expanduser(), page.trace_page(panes))

    def to_frame(self) -> DataFrame:
        """One row per committed token, and per token that replaced another (``edited``). Raises UserError where pandas
        is not installed, the extra ``frame``."""
        columns = ["turn", "candidate", "position", "token", "word", "confidence", "entropy", "forced", "edited",
                   "own_logprob", "drawn_logprob"]  # fmt: skip
        rows = [
            (record.turn, number, position, token, self.words.get(token), *facts, is_edit > 0, *logprobs)
            for record in self.turns
            for number in range(len(record.candidates))
            for is_edit, commits in enumerate(record.written(number))
            for (position, token, *facts), logprobs in zip(commits.rows(), commits.log_probabilities(), strict=True)
        ]
        return data_frame("to_frame", rows, columns)


def origin_of(
    request: Request, key: tuple[str, int], batch: Sequence[tuple[str, int]], config: Mapping[str, Any]
) -> dict[str, Any]:
    """What a trace file says beside the turns: the sample and its prompt; those that were decoded beside it;
    the settings, and what was the request's own."""
    constraint = request.constraint
    return {
        "id": key[0],
        "sample": key[1],
        "seed": request.seed,
        "batch": batch,
        "config": config,
        "constraint": constraint.to_json() if isinstance(constraint, Constraint) else None,
        "begun": request.answer_prefix,
        "start": request.start,
    }


def trace_in(data: Any) -> Trace:
    """The trace in the object of a file, or in what it has under ``trace``. Raises NoTrace for anything else."""
    whole = isinstance(data, Mapping) and "trace" in data
    inner = data["trace"] if whole else data
    entries = entries_of(Trace, {**inner, "origin": {}} if isinstance(inner, Mapping) else inner, "it")
    entries["origin"] = {name: value for name, value in data.items() if name != "trace"} if whole else {}
    try:
        entries["turns"] = [turn_of(turn) for turn in entries["turns"]]
        entries["words"] = {
            int(token): word for token, word in entries.get("words", {}).items()
        }  # JSON's keys are strings
        trace = Trace(**entries)
        for _ in trace.canvases():
            pass
    except NoTrace:
        raise
    except (TypeError, ValueError, LookupError, AttributeError):
        raise NoTrace("is not a whole trace (its turns do not fit its canvas)") from None
    return trace


def read_trace(file: Path) -> tuple[dict[str, Any], Trace]:
    """The data of a trace file, and its trace. Raises UserError, which names the file, for any other file."""
    try:
        data = json_of(file)
        trace = trace_in(data)
        if trace.origin:
            check_origin(trace.origin)
    except NoTrace as reason:
        raise Refusal(f"{{trace:quoted}} {reason}. {ADVICE}", [str(file)]) from None
    return {**NO_ORIGIN, **trace.origin, "trace": data.get("trace", data)}, trace


def check_origin(origin: Mapping[str, Any]) -> None:
    """Raise NoTrace where what a file says of its sample is missing, or of another kind."""
    kinds = {"id": str, "sample": int, "seed": int, "batch": list, "config": Mapping | None}
    for name, kind in kinds.items():
        if name not in origin:
            raise NoTrace(f"is not a trace of this program (it has no {name!r})")
        if not isinstance(origin[name], kind):
            raise NoTrace(f"is not a trace of this program (its {name!r} is {origin[name]!r})")
