"""Log-probabilities of given tokens at given columns of given canvases: a forward that commits nothing.

A masked column has no draw, or the noise of seed 0, so a reading is deterministic. Canvases that are equal are computed
once for all that ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.contract.process import Uniform
from dllm.models.bundle import Model
from dllm.models.network.experts import at_least_float32
from dllm.scoring.decisions.shared_beginnings import Beginnings, beginnings, encode_behind

HEAD_ROWS = 128  # rows of logits at a time: of 126,464 columns in float32 they take 65 MB, three to five times
ReadTarget = tuple[int, tuple[int, ...]]  # a column, and the tokens whose log-probabilities there are read


@dataclass(frozen=True)
class ReadCanvas:
    """One row of a forward."""

    tokens: tuple[int, ...]  # its ids, the mask's where undecided
    masked: frozenset[int]  # its undecided columns
    start: int  # column where the answer begins


@dataclass(frozen=True)
class ReadQuery:
    """What to read of one canvas."""

    canvas: ReadCanvas  # the canvas to compute
    targets: tuple[ReadTarget, ...]  # the log-probabilities to read of it


@dataclass(frozen=True)
class Reading:
    """What a query found. Work on a canvas that several queries share is counted for the first of them."""

    log_p: tuple[tuple[float, ...], ...]  # of every target's tokens, in nats, over the whole vocabulary
    top: tuple[int, ...]  # the likeliest token of every target's column
    forwards: int  # of the network, begun for this query
    rows: int  # canvases of these forwards
    query_tokens: int  # columns of these canvases that were computed
    cached_tokens: int = 0  # columns that another canvas had computed


def read_canvases(
    model: Model,
    queries: Sequence[ReadQuery],
    max_rows: int = 64,
    max_columns: int | None = None,
    guidance: float = 0.0,
) -> list[Reading]:
    """The readings in the order of the queries. max_rows, max_columns: canvases, and their columns with padding, in a
    forward; a canvas that is longer goes alone. guidance w > 0: logits are u + (w + 1) (c - u), u those of a canvas
    whose columns before ``start`` are masked."""
    groups = dict[ReadCanvas, list[int]]()
    for number, query in enumerate(queries):
        groups.setdefault(query.canvas, []).append(number)
    readings = dict[int, Reading]()
    for chunk in in_chunks(list(groups), max_rows, max_columns):
        places = [(row, number) for row, canvas in enumerate(chunk) for number in groups[canvas]]
        targets = [(row, *pair) for row, number in places for pair in queries[number].targets]
        logs, cached, calls = _forward(model, chunk, targets, guidance)
        values, rows_read = iter(logs), set[int]()
        for row, number in places:
            pairs = [next(values) for _ in queries[number].targets]
            fresh = int(row not in rows_read)
            width = fresh * (len(chunk[row].tokens) - cached[row]) * (2 if guidance else 1)
            readings[number] = Reading(
                tuple(p for p, _ in pairs), tuple(top for _, top in pairs), calls, fresh, width, fresh * cached[row]
            )
            rows_read.add(row)
            calls = 0
    return [readings[number] for number in range(len(queries))]


def in_chunks(
    canvases: Sequence[ReadCanvas], max_rows: int, max_columns: int | None = None
) -> Iterator[list[ReadCanvas]]:
    """The canvases in order, cut into forwards."""
    chunk: list[ReadCanvas] = []
    for canvas in canvases:
        widest = max(len(member.tokens) for member in [*chunk, canvas])
        full = max_columns is not None and (len(chunk) + 1) * widest > max_columns
        if chunk and (full or len(chunk) == max_rows):
            yield chunk
            chunk = []
        chunk.append(canvas)
    if chunk:
        yield chunk


@torch.inference_mode()
def _forward(
    model: Model, canvases: Sequence[ReadCanvas], targets: Sequence[tuple[int, int, tuple[int, ...]]], guidance: float
) -> tuple[list[tuple[tuple[float, ...], int]], list[int], int]:
    """Log-probabilities and the likeliest token of each target (row, column, tokens), the columns of each canvas that
    were not computed for it, and calls of the network."""
    network, mask = model.transformer, model.ids.placeholder
    length = max(len(canvas.tokens) for canvas in canvases)
    rows = torch.tensor([[*each.tokens, *[mask] * (length - len(each.tokens))] for each in canvases])
    masked = torch.tensor([[at in each.masked for at in range(length)] for each in canvases])
    ends, start = (
        torch.tensor([len(each.tokens) for each in canvases]),
        torch.tensor([each.start for each in canvases]),
    )
    valid = None if bool((ends == length).all()) else torch.arange(length) < ends[:, None]
    if guidance:
        before = torch.arange(length) < start[:, None]
        rows = torch.cat([rows, rows.masked_fill(before, mask)])
        masked, start = torch.cat([masked, masked]), torch.cat([start, start])
        valid = None if valid is None else torch.cat([valid, valid])
    rows = with_noise(model, rows, masked)
    sources = model.config.sources(masked, start).tolist()
    cells = [(row, sources[row][column], tokens) for row, column, tokens in targets]
    shared = None if guidance else _shared(model, canvases, rows, masked, start, cells)
    if shared is not None:
        hidden, cut = encode_behind(model, rows, ends, shared), shared.cut.tolist()
        cells = [(row, source - cut[row], tokens) for row, source, tokens in cells]
    else:
        device = network.device
        hidden = network.encode(
            rows.to(device), None if valid is None else valid.to(device), masked.to(device), start.to(device)
        )
    out: list[tuple[tuple[float, ...], int]] = []
    for at in range(0, len(targets), HEAD_ROWS):
        out += _log_p(model, hidden, len(canvases), cells[at : at + HEAD_ROWS], guidance)
    return out, [0] * len(canvases) if shared is None else shared.saved_columns.tolist(), 1 if shared is None else 2


def with_noise(model: Model, rows: Tensor, masked: Tensor) -> Tensor:
    """The rows [B, L] as the network sees them: undecided columns of a model of noise show that of seed 0."""
    if model.config.process != "uniform":
        return rows
    return torch.where(masked, Uniform(model.config.vocab).ids(0, torch.arange(rows.shape[1])[None], 0), rows)


def _shared(
    model: Model,
    canvases: Sequence[ReadCanvas],
    rows: Tensor,
    masked: Tensor,
    start: Tensor,
    cells: Sequence[tuple[int, int, tuple[int, ...]]],
) -> Beginnings | None:
    """Where the canvases may be cut before the first row that is read."""
    first_read = torch.full((len(canvases),), rows.shape[1])
    for row, source, _ in cells:
        first_read[row] = min(int(first_read[row]), source)
    prompts = [canvas.tokens[: canvas.start] for canvas in canvases]
    return beginnings(model, rows, masked, start, first_read, prompts)


def _log_p(
    model: Model, hidden: Tensor, free: int, cells: Sequence[tuple[int, int, tuple[int, ...]]], guidance: float
) -> list[tuple[tuple[float, ...], int]]:
    """The same, of the hidden states that predict the columns. free: the first row whose prompt is masked."""
    network = model.transformer
    row, column = (torch.tensor([entry[which] for entry in cells]) for which in (0, 1))
    logits = network.logits(hidden[row, column])
    if guidance:
        unconditional = network.logits(hidden[free + row, column]).to(logits.dtype)
        logits = unconditional + (guidance + 1) * (logits - unconditional)
    log_p = F.log_softmax(logits.to(at_least_float32(logits.dtype)), -1)
    widest = max(len(tokens) for _, _, tokens in cells)
    ids = torch.tensor([[*tokens, *[0] * (widest - len(tokens))] for _, _, tokens in cells])
    values = log_p.gather(1, ids.to(log_p.device)).double().tolist()
    tops = logits.argmax(-1).tolist()
    return [(tuple(line[: len(tokens)]), top) for (_, _, tokens), line, top in zip(cells, values, tops, strict=True)]
