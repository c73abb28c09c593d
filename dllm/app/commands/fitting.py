"""What of a model fits a memory: the table of ``dllm check MODEL gpu=24 rows=8 length=4096``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from dllm.app.command_line.options import Options, checked_sampling
from dllm.app.commands.checkpoint import BYTES, Report
from dllm.app.commands.checkpoint_table import kinds_with_head, named_kind
from dllm.common.coerce import coerce
from dllm.common.errors import UserError, in_range, name_of
from dllm.common.ranks import Ranks
from dllm.common.terminal import as_text
from dllm.compose.fitted import Parts
from dllm.models.config import ModelConfig
from dllm.models.network.networks import network_of
from dllm.models.text.ids import Ids
from dllm.models.text.tokenizer import Tokenizer
from dllm.models.weights.cut import share_of
from dllm.models.weights.footprint import PROCESS, Footprint, in_gib
from dllm.record.decode_memory import MemoryModel, MemoryUse, longest_fit, most_rows, refuse_other_layers

USUAL_LENGTH = 4096  # columns, where none is given
FIT_OPTIONS = {"gpu": "float | None", "rows": "int | None", "length": "int | None"}
FIT_HEADS = ("GiB", "weights", "cache", "activations", "logits", "at most", "", "longest", "most rows")


@dataclass(frozen=True)
class ModelFacts:
    """A model by its description alone (``dllm.compose.fitted.Described``)."""

    config: ModelConfig  # its shape
    tokenizer: Tokenizer | None  # None: the folder has none
    ids: Ids  # of the mask and the ends of a text
    name: str  # as reports call it


@dataclass(frozen=True)
class FitQuestion:
    gpu: float | None  # GiB of a card; None: this machine's memory
    rows: int  # decoded together
    length: int  # columns of each, prompt and answer
    answer: int  # of them, masks at the start

    @staticmethod
    def of(task: Mapping[str, Any], config: ModelConfig, answer: int) -> FitQuestion | None:
        """From the settings of the task; None: nothing is asked. Raises UserError for numbers that none can be."""
        values = {name: coerce(f"task.{name}", task.get(name), kind) for name, kind in FIT_OPTIONS.items()}
        if all(value is None for value in values.values()):
            return None
        rows = 1 if values["rows"] is None else values["rows"]
        length = min(USUAL_LENGTH, config.max_length) if values["length"] is None else values["length"]
        for name, value, least in (("gpu", values["gpu"], 0.1), ("rows", rows, 1), ("length", length, 1)):
            in_range(f"task.{name}", value, least)
        if length > config.max_length:
            raise UserError(f"length={length} is more than the {config.max_length} positions that the model has.")
        return FitQuestion(values["gpu"], rows, length, min(answer, length))

    @property
    def room(self) -> float:
        """Bytes that a decode may take."""
        return psutil.virtual_memory().available - PROCESS if self.gpu is None else self.gpu * 2**30


def print_fitting(report: Report, config: Mapping[str, Any], name: str) -> bool:
    """Print what fits, if that is asked; whether something does. Raises UserError for parts that do not fit, and for
    models whose forwards are not counted."""
    assert report.config is not None
    question = FitQuestion.of(config["task"], report.config, Options.of(config).gen_length)
    if question is None:
        return True
    refuse_other_layers(report.config)
    if report.ids is None:
        raise UserError(f"{name}: its mask and the end of its texts are not known, so no parts can be fitted to it.")
    model = ModelFacts(report.config, report.tokenizer, report.ids, name)
    parts = Parts.of(config, checked_sampling(config["sampling"])).fitted(model, question.answer)
    tp = int(config["model"]["tp"])
    table, fits = Table(box=None, padding=(0, 1, 0, 0)), list[str]()
    for column in FIT_HEADS:
        table.add_column(column, justify="left" if column in ("GiB", "") else "right")
    for kind, use, columns, rows in fitting_rows(report.config, parts, question, tp, bool(config["model"]["ep"])):
        fits += [kind] if use.most <= question.room else []
        cells = (use.weights, use.kept, use.activations, use.logits, use.most)
        table.add_row(
            kind,
            *map(in_gib, cells),
            "fits" if use.most <= question.room else "too much",
            f"{columns:,}" if columns else "none",
            f"{rows:,}" if rows else "none",
        )
    console = Console()
    for line in heading(question, parts, name, tp):
        console.print(as_text(line))
    console.print(table)
    where = f"{question.gpu:g} GiB" if question.gpu is not None else "this machine"
    answer = f"fits {where}: {'; '.join(fits)}" if fits else f"does not fit {where} in any kind"
    console.print(as_text(answer, "green" if fits else "red"))
    return bool(fits)


def heading(question: FitQuestion, parts: Parts, name: str, tp: int) -> Iterator[str]:
    cache, blocks = name_of(parts.cache), name_of(parts.blocks)
    yield (
        f"{name}: {question.rows} rows of {question.length:,} columns, the last {question.answer} of them masks; "
        f"cache={cache} blocks={blocks}{f'; each of {tp} ranks' if tp > 1 else ''}"
    )
    yield (
        f"Room: {in_gib(question.room)} GiB"
        f"{', of which CUDA itself takes a part that is not counted here' if question.gpu is not None else ' free'}. "
        "At most: weights, cache, and the larger of activations and logits, by plain operations: kernels of ours hold "
        "less. Longest: with these rows; most rows: of this length."
    )
    if parts.cache.kept() == ():
        yield "No cache: cache=dual keeps keys and values, and later forwards then compute a block alone."


def fitting_rows(
    config: ModelConfig, parts: Parts, question: FitQuestion, tp: int, ep: bool
) -> Iterator[tuple[str, MemoryUse, int, int]]:
    """By kind of the weights, what a decode takes, the longest columns and the most rows. tp, ep: ranks that share the
    model, of which the largest counts."""
    share = config if tp == 1 else share_of(config, Ranks(tp - 1, tp), ep)
    with torch.device("meta"):
        network = network_of(share)
    for kind, head in kinds_with_head(config):
        if head is not None and (question.gpu is not None or tp > 1):
            continue  # narrow heads are for CPUs
        weights = Footprint.of_model(network, kind, head).file_bytes
        model = MemoryModel(share, parts, weights, BYTES.get(kind, 2), question.answer)
        room = question.room
        yield (
            named_kind("", kind, head).strip(),
            model.use(question.rows, question.length),
            longest_fit(model, room, question.rows),
            most_rows(model, room, question.length),
        )
