"""Inspect a checkpoint folder without loading it: whether it can be used, how much memory it needs, what applies to it.

Only JSON files and the headers of the safetensors are read. Every problem is one sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dllm.common.errors import UserError
from dllm.common.terminal import as_text
from dllm.models.config import ModelConfig
from dllm.models.families import Family
from dllm.models.fastest import AUTO_KIND, Kinds, Residence, settled_kinds
from dllm.models.formats.gguf_tokenizer import tokenizer_at
from dllm.models.formats.packed_settings import packed_notes
from dllm.models.forward_time import ESTIMATED_ROWS, forward_seconds
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY
from dllm.models.network.networks import network_of
from dllm.models.network.rope_ntk import RopeSetting
from dllm.models.network.transformer import Transformer
from dllm.models.text.ids import Ids, resolve_ids
from dllm.models.text.tokenizer import Tokenizer
from dllm.models.text.tokenizer_files import generation_ends
from dllm.models.weights.checkpoint_path import locate
from dllm.models.weights.files import Contents, read_contents
from dllm.models.weights.fit import Fit, check_sizes
from dllm.models.weights.footprint import NARROW_WITH_HEAD, PROCESS, Footprint, in_gib
from dllm.models.weights.names import parameter_sources
from dllm.models.weights.narrow_folder import changed_files, checksums, narrow_problems
from dllm.models.weights.quantize import BITS, check_head, check_quantize
from dllm.models.weights.weights import contents_of, read_model_config

BYTES = {"bfloat16": 2, "float32": 4}
MAX_COUNTED_TENSORS = 25_000  # a model built without weights; LLaDA2-flash has 24,225 tensors, which take 3.5 s
TIMED = 300_000_000  # weights from which a forward is worth an estimate
ROW_WORDS = " / ".join(map(str, ESTIMATED_ROWS))
WEIGHT_FILES = ("*.safetensors*", "*.bin", "*.bin.*", "*.pt", "*.pth", "*.gguf")  # weights, or their index
BARE = "config.json alone: no weights to decode with"
MAX_PROBLEMS = 10  # printed ones of tensors; the rest is counted


@dataclass(frozen=True)
class Report:
    """The facts of a checkpoint. With ``problems`` it cannot be used, with ``notes`` it can."""

    folder: Path  # the checkpoint's
    problems: tuple[str, ...]  # a sentence for each reason why it cannot be used
    notes: tuple[str, ...] = ()  # a sentence for each thing to know of it
    config: ModelConfig | None = None  # the description that its config.json gives; None where that has a problem
    tokenizer: Tokenizer | None = None  # None: it brings none, or one that cannot be read
    ids: Ids | None = None  # of the mask and the ends of a text; None where they are not known
    parameters: int = 0  # all weights
    active: int = 0  # the weights that one token uses: fewer with routed experts
    # tensors per dtype in the files. The fields after ``notes`` are None or empty where the files leave them unknown
    dtypes: tuple[tuple[str, int], ...] = ()
    shards: int = 0  # files that hold its weights
    stored_bytes: int = 0  # of these files together

    @property
    def usable(self) -> bool:
        """Whether it can be decoded with."""
        return not self.problems and not self.bare

    @property
    def bare(self) -> bool:
        """Whether it is a description alone, without files of weights."""
        return self.config is not None and without_weights(self.folder)

    @property
    def verdict(self) -> str:
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        if self.problems:
            return f"not usable: {self.problems[0]}{more}"
        return BARE if self.bare else "ready"

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights in ``dtype`` (bfloat16 or float32)."""
        return self.parameters * BYTES[dtype]

    def kv_bytes(self, dtype: str) -> int:
        """Bytes of keys and values that a cache stores per token."""
        if self.config is None:
            return 0
        keys = sum(self.config.attention_widths(layer)[1] for layer in range(self.config.layers))
        return 2 * keys * BYTES[dtype]

    def rows(self) -> Iterator[tuple[str, str]]:
        """Name and text of every fact, in the order of the table."""
        yield "folder" if self.folder.is_dir() else "file", str(self.folder)
        if self.config is None:
            return
        yield from _size_rows(self, self.config)
        yield from _token_rows(self, self.config)
        yield from _feature_rows(self.config)


def inspect_checkpoint(
    path: str | Path,
    mask_id: int | None = None,
    attention_block: int | None = None,
    rope: Mapping[str, Any] | RopeSetting | None = None,
    family: Family | str | None = None,
) -> Report:
    """Inspect a checkpoint: a folder, a shipped model's name or a hub id, whose small files are downloaded.

    mask_id, attention_block, rope, family: as in ``bundle.load``. Raises UserError only where the folder does not
    exist. Whatever is wrong inside becomes a sentence of the report.
    """
    folder = locate(path, weights=False)
    try:
        config = read_model_config(folder, attention_block, rope, family)
    except UserError as error:
        return Report(folder, (str(error),))
    problems, notes, contents, model = _weights(folder, config)
    tokenizer, ids, config, more = _tokens(folder, config, mask_id)
    tensors = contents.tensors.values()
    if config.family == MASKED_LM_FAMILY:
        total = sum(prod(tensor.shape) for tensor in tensors)
    else:
        total = 0 if model is None else sum(parameter.numel() for parameter in model.parameters())
    dtypes, files = Counter(tensor.dtype for tensor in tensors), {tensor.file for tensor in tensors}
    return Report(
        folder,
        (*problems, *more),
        (*config.warnings, *notes, *_notes(config, tokenizer)),
        config,
        tokenizer,
        ids,
        parameters=total,
        active=max(0, total - _idle(config)),
        dtypes=tuple(dtypes.most_common()),
        shards=len(files),
        stored_bytes=sum(file.stat().st_size for file in files),
    )


def without_weights(folder: Path) -> bool:
    """Whether a folder has no file that could be one of weights."""
    return folder.is_dir() and not any(file for name in WEIGHT_FILES for file in folder.glob(name))


def _weights(folder: Path, config: ModelConfig) -> tuple[list[str], tuple[str, ...], Contents, Transformer | None]:
    """Problems of the weight files, what is left out, their tensors, and the model without weights (None: it has too
    many to count)."""
    contents, model = Contents({}), None
    if config.family == MASKED_LM_FAMILY:  # its class alone knows its tensors
        try:
            return [], (), read_contents(folder), None
        except UserError as error:
            return [str(error)], (), contents, None
    if without_weights(folder):
        return [], (), contents, _skeleton(config) if config.least_tensors <= MAX_COUNTED_TENSORS else None
    if config.stored_kind is not None:
        return _narrow_weights(folder, config)
    try:
        contents = contents_of(folder, config)
        check_sizes(config, contents.tensors)
        model = _skeleton(config)
        fit = Fit.of(model, contents)
    except UserError as error:
        if not contents.tensors and config.least_tensors <= MAX_COUNTED_TENSORS:
            model = _skeleton(config)
        return [str(error)], (), contents, model
    count, problems = len({source.name for source in parameter_sources(model).values()}), list(fit.problems)
    if len(problems) > MAX_PROBLEMS:
        rest = len(problems) - MAX_PROBLEMS
        problems = [*problems[:MAX_PROBLEMS], f"{rest} further tensors of the {count} expected do not fit"]
    return [f"{problem}." for problem in problems], fit.notes, contents, model


def _narrow_weights(
    folder: Path, config: ModelConfig
) -> tuple[list[str], tuple[str, ...], Contents, Transformer | None]:
    """The same of a folder of ``task=quantize``, whose files are compared with their checksums."""
    try:
        contents = read_contents(folder)
        problems = [*changed_files(folder, checksums(folder)), *narrow_problems(config, contents)]
    except UserError as error:
        return [str(error)], (), Contents({}), None
    return [f"{problem}." for problem in problems[:MAX_PROBLEMS]], (), contents, _skeleton(config)


def _skeleton(config: ModelConfig) -> Transformer:
    with torch.device("meta"):
        return network_of(config)


def _tokens(
    folder: Path, config: ModelConfig, mask_id: int | None
) -> tuple[Tokenizer | None, Ids | None, ModelConfig, list[str]]:
    """Tokenizer and ids, the config with its ids filled in, and their problems."""
    tokenizer = None
    try:
        tokenizer = tokenizer_at(folder)
        config, ids = resolve_ids(config, tokenizer, mask_id, generation_ends(folder))
    except UserError as error:
        return tokenizer, None, config, [str(error)]
    problem = "" if tokenizer is None else tokenizer.template_problem()
    return tokenizer, ids, config, [problem] if problem else []


def _notes(config: ModelConfig, tokenizer: Tokenizer | None) -> Iterator[str]:
    yield from packed_notes(config.published)
    if tokenizer is None:
        yield (
            'No tokenizer files: give prompts=FILE with lines such as {"tokens": [1, 2]}, or in Python lists of token '
            "ids. Answers are token ids."
        )
        return
    if not tokenizer.has_chat_template:
        yield "No chat template: prompts are taken as plain text (base models are meant to be used so)."
    is_named = config.mask_id not in (None, tokenizer.mask_id) and not config.attention.next_token
    if tokenizer.mask_id is not None and is_named:
        yield f"The tokenizer's mask token has id {tokenizer.mask_id}; {config.mask_id} is used."
    if len(tokenizer) < config.vocab:
        rest = config.vocab - len(tokenizer)
        yield f"{rest} logit columns lie beyond the tokenizer's {len(tokenizer)} ids and stand for no text."


def _idle(config: ModelConfig) -> int:
    """Weights of the experts that a token does not use."""
    if config.moe is None:
        return 0
    per_layer = (config.moe.experts - config.moe.top_k) * 3 * config.width * config.moe.width
    return per_layer * len(config.moe.sparse_layers)


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
        for kind in _kinds(config):
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


def _kinds(config: ModelConfig) -> list[str]:
    """The kinds of weights that the folder can be loaded in on a CPU."""
    return list(dict.fromkeys(kind for kind, _ in kinds_with_head(config)))


def kinds_with_head(config: ModelConfig) -> list[tuple[str, str | None]]:
    """The same, each with the kinds that embedding and head can have beside it."""
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
    for name, number in (("mask id", config.mask_id), ("eos id", config.eos_id), ("pad id", config.pad_id)):
        no_mask = (
            ""
            if name != "mask id"
            else (
                "none: undecided positions show noise"
                if config.process == "uniform"
                else "none: it predicts the next token"
                if config.attention.next_token
                else ""
            )
        )
        yield name, no_mask or _spell(number, tokenizer)
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
    for name, text in report.rows():
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
