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

import torch

from dllm.common.errors import UserError
from dllm.models.config import ModelConfig
from dllm.models.families import Family
from dllm.models.formats.gguf_tokenizer import tokenizer_at
from dllm.models.formats.packed_settings import packed_notes
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
from dllm.models.weights.names import parameter_sources
from dllm.models.weights.narrow_folder import changed_files, checksums, narrow_problems
from dllm.models.weights.weights import contents_of, read_model_config

BYTES = {"bfloat16": 2, "float32": 4}
MAX_COUNTED_TENSORS = 25_000  # a model built without weights; LLaDA2-flash has 24,225 tensors, which take 3.5 s
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
