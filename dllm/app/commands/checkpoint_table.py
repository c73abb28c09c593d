"""The facts of a checkpoint as a table: sizes, memory, times, tokens, and what applies to it."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dllm.app.commands.checkpoint import BYTES, Report
from dllm.common.errors import UserError
from dllm.common.terminal import as_text
from dllm.models.config import ModelConfig
from dllm.models.fastest import AUTO_KIND, Kinds, Residence, settled_kinds
from dllm.models.forward_time import ESTIMATED_ROWS, forward_seconds
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY
from dllm.models.text.tokenizer import Tokenizer
from dllm.models.weights.footprint import NARROW_WITH_HEAD, PROCESS, Footprint, in_gib
from dllm.models.weights.quantize import BITS, check_head, check_quantize

TIMED = 300_000_000  # weights from which a forward is worth an estimate
ROW_WORDS = " / ".join(map(str, ESTIMATED_ROWS))


def fact_rows(report: Report) -> Iterator[tuple[str, str]]:
    """Name and text of every fact, in the order of the table."""
    yield "folder" if report.folder.is_dir() else "file", str(report.folder)
    if report.config is None:
        return
    yield from _size_rows(report, report.config)
    yield from _token_rows(report, report.config)
    yield from _feature_rows(report.config)


def _size_rows(report: Report, config: ModelConfig) -> Iterator[tuple[str, str]]:
    yield "family", f"{config.family} ({(config.published.get('architectures') or ['no architectures'])[0]})"
    active = f", {_count(report.active)} active per token" if report.active != report.parameters else ""
    parameters = _count(report.parameters) + active
    yield "parameters", parameters if report.parameters else "not counted: config.json and weights do not fit"
    yield (
        "shape",
        (
            f"{config.layers} layers, width {config.width}, {config.heads} heads of {config.head_dim}, "
            f"{config.kv_heads} key-value heads"
        ),
    )
    files = f"{report.shards} file{'s' * (report.shards != 1)}, {in_gib(report.stored_bytes)} GiB"
    dtypes = ", ".join(f"{count} tensors {dtype}" for dtype, count in report.dtypes)
    kind = f"{config.stored_kind} of task=quantize, " if config.stored_kind else ""
    kind += f"embedding and head {config.stored_head}, " if config.stored_head else ""
    yield "stored", f"{kind}{files}: {dtypes}" if report.dtypes else "no readable weights"
    if report.parameters:
        yield from _memory_rows(report, config)
    ntk = config.ntk
    stretched = (
        "" if ntk is None else f", {ntk.trained} of them trained: model.rope multiplies theta by {ntk.factor:.4g}"
    )
    yield "max length", f"{config.max_length} tokens, prompt and answer together{stretched}"
    if config.scaling is not None:
        scaling = config.scaling
        yield "rotary scaling", f"{type(scaling).__name__} by {scaling.factor:g} from {scaling.trained} tokens"


def _memory_rows(report: Report, config: ModelConfig) -> Iterator[tuple[str, str]]:
    """What the model takes by the kind of its weights, and whether this machine has it."""
    free = psutil.virtual_memory().available
    is_sealed = config.family == MASKED_LM_FAMILY
    for dtype in BYTES if is_sealed else ():
        yield f"memory {dtype}", f"{in_gib(report.weight_bytes(dtype))} GiB of weights"
    for kind, head in () if is_sealed else kinds_with_head(config):
        footprint = Footprint.of(config, kind, head)
        most = footprint.loading if config.stored_kind is None else footprint.weights
        fits = "fits" if most <= free else "does not fit"
        yield (
            named_kind("memory", kind, head),
            (f"{in_gib(footprint.file_bytes)} GiB of weights, {in_gib(most - PROCESS)} while they load; {fits} here"),
        )
    yield (
        "free memory",
        f"{in_gib(free)} GiB on this machine's CPU, of which Python and PyTorch take {in_gib(PROCESS)}",
    )
    for dtype in BYTES:
        yield f"cache {dtype}", f"keys and values of 1,024 tokens: {in_gib(1024 * report.kv_bytes(dtype))} GiB"
    block = config.attention.block if config.process == "uniform" else None
    yield "logits", f"of a block of {block or 32}, in float32: {in_gib((block or 32) * 4 * config.vocab)} GiB"
    if report.parameters >= TIMED and not is_sealed:
        for kind in dict.fromkeys(kind for kind, _ in kinds_with_head(config)):
            yield from _time_rows(config, report.active, kind)
        yield f"quantize={AUTO_KIND}", _auto_words(config)


def _time_rows(config: ModelConfig, numbers: int, kind: str) -> Iterator[tuple[str, str]]:
    """How long a forward takes, with rows of bfloat16 and of eight bits."""
    for rounds in (False, True) if kind in BITS else (False,):
        if (seconds := forward_seconds(config, numbers, kind, rounds)) is not None:
            times = " / ".join(f"{value:.2g}" for value in seconds)
            name = f"forward {kind}, rows in int8" if rounds else f"forward {kind}"
            yield name, f"about {times} s of products for {ROW_WORDS} rows, one thread of this CPU"


def _auto_words(config: ModelConfig) -> str:
    """What ``model.quantize=auto`` takes here."""
    try:
        return f"takes {settled_kinds(config, Kinds(AUTO_KIND), Residence(torch.bfloat16, torch.device('cpu')))}"
    except UserError as error:
        return str(error).removeprefix(f"model.quantize={AUTO_KIND}: ")


def kinds_with_head(config: ModelConfig) -> list[tuple[str, str | None]]:
    """The kinds of weights that the folder can be loaded in on a CPU, each with those that embedding and head can have
    beside it."""
    if config.stored_kind is not None:
        return [(config.stored_kind, config.stored_head)]
    narrow = [(kind, head) for kind, head in NARROW_WITH_HEAD if _narrows(config, kind, head)]
    return [("bfloat16", None), ("float32", None), *narrow]


def named_kind(what: str, kind: str, head: str | None) -> str:
    """``what`` with the kinds of layers and head."""
    return f"{what} {kind}" if head is None else f"{what} {kind}, head {head}"


def _narrows(config: ModelConfig, kind: str, head: str | None) -> bool:
    """Whether ``model.quantize=kind model.quantize_head=head`` takes this model on a CPU."""
    cpu = torch.device("cpu")
    try:
        check_quantize(kind, config, torch.bfloat16, cpu, False)
        check_head(head, kind, config, cpu)
    except UserError:
        return False
    return True


def _token_rows(report: Report, config: ModelConfig) -> Iterator[tuple[str, str]]:
    tokenizer = report.tokenizer
    if config.process == "uniform":
        yield "mask id", "none: undecided positions show noise"
    elif config.attention.next_token:
        yield "mask id", "none: it predicts the next token"
    else:
        yield "mask id", _spell(config.mask_id, tokenizer)
    yield "eos id", _spell(config.eos_id, tokenizer)
    yield "pad id", _spell(config.pad_id, tokenizer)
    yield "stops", ", ".join(_spell(number, tokenizer) for number in report.ids.stops) if report.ids else "unknown"
    length = "no tokenizer" if tokenizer is None else f"{len(tokenizer)} ids in the tokenizer"
    yield "vocabulary", f"{length}, {config.vocab} logit columns"
    yield "chat template", "yes" if tokenizer is not None and tokenizer.has_chat_template else "no"


def _spell(number: int | None, tokenizer: Tokenizer | None) -> str:
    """An id with its string, if both are known."""
    if number is None:
        return "unknown"
    text = None if tokenizer is None else tokenizer.token(number)
    return str(number) if text is None else f"{number} {text}"


def _feature_rows(config: ModelConfig) -> Iterator[tuple[str, str]]:
    shift, seed = config.prediction_shift, config.seed_shift
    source = f"position i is read from position i-{shift}" if shift else "position i is read from itself"
    yield "prediction", source if seed is None else f"{source}, a block's first one from position i-{seed}"
    yield "attention", config.attention.text
    yield "caches", config.attention.advice
    if not config.attention.causal:
        yield "guidance", "sampling.guidance applies; it doubles the rows of a forward"


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the facts, then every note and problem, then the verdict."""
    console = console or Console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in fact_rows(report):
        table.add_row(as_text(name, "bold"), as_text(text))
    console.print(table)
    for note in report.notes:
        console.print(Text.assemble(("note ", "yellow"), as_text(note)))
    for problem in report.problems:
        console.print(Text.assemble(("problem ", "red"), as_text(problem)))
    if report.problems:
        console.print(as_text("not usable", "red"))  # what is wrong is printed above
    else:
        console.print(as_text(report.verdict, "yellow" if report.bare else "green"))
