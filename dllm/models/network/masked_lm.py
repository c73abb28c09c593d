"""Masked language models that transformers has natively (BERT, ModernBERT and kin), through their own class.

A forward is a call of that class over whole canvases: ``cache=none`` alone. Its logits stand for hidden states, so
that the head is nothing. Weights are read from safetensors alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dllm.common.errors import UserError, first_line
from dllm.models.agreement import FILE
from dllm.models.network.conditioning import Conditioning
from dllm.models.network.experts import at_least_float32
from dllm.models.network.layer import RunLayer, run_layer
from dllm.models.network.masked_lm_class import transformers_class
from dllm.models.network.memory import Memory
from dllm.models.network.transformer import Transformer

PADDING_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # of logits; half precision: a tenth
PROBED_TOKENS = 5  # tokens of the canvas on which padding is tried


class MaskedLM(Transformer):
    """The network as the loop calls it. Its weights are those of ``lm``, an object of transformers' class, which may be
    in training meanwhile: forwards run in evaluation mode, and leave the object in the mode in which it was."""

    def __init__(self, lm: nn.Module, config: Any) -> None:
        nn.Module.__init__(self)
        self.config, self.lm = config, lm

    streams = False

    @property
    def dtype(self) -> torch.dtype:
        return next(self.lm.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.lm.parameters()).device

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        memory: Memory,
        columns: Tensor | None = None,
        run: RunLayer = run_layer,
        totals: Tensor | None = None,
        *,
        conditioning: Conditioning | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, n, V] instead of hidden states, and their columns. What is computed of a row are its first
        columns, so that the class counts positions as we do."""
        return self._logits(tokens, memory.access().visible.mask), columns

    def _logits(self, tokens: Tensor, attention_mask: Tensor | None) -> Tensor:
        attention_mask = torch.ones_like(tokens) if attention_mask is None else attention_mask.long()
        with evaluating(self.lm):
            return self.lm(input_ids=tokens, attention_mask=attention_mask).logits

    def encode(
        self,
        tokens: Tensor,
        valid: Tensor | None = None,
        masked: Tensor | None = None,
        start: int | Tensor = 0,
        *,
        run: RunLayer = run_layer,
    ) -> Tensor:
        return self._logits(tokens, valid)

    def head(self, hidden: Tensor) -> Tensor:
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden.to(at_least_float32(hidden.dtype))

    @property
    def local_head_weight(self) -> None:
        """There is no matrix apart from the class."""
        return None


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode; afterwards it is in the mode in which it was."""
    if not module.training:
        yield
        return
    module.eval()
    try:
        yield
    finally:
        module.train()


@contextmanager
def without_progress() -> Iterator[None]:
    """No bars of transformers, which writes one for every file."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def load_masked_lm(folder: Path, config: Any, device: torch.device, dtype: torch.dtype) -> MaskedLM:
    """The checkpoint through its own class. Raises UserError for tensors that are missing or have another shape, and
    where padding changes what a row computes."""
    kind = transformers_class(config.architecture)
    lm_config = kind.config_class.from_dict(json.loads((folder / FILE).read_text(encoding="utf-8")))
    if hasattr(lm_config, "reference_compile"):  # ModernBERT would compile itself on a GPU
        lm_config.reference_compile = False
    try:
        with without_progress():
            lm, report = kind.from_pretrained(
                folder,
                config=lm_config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers raises all kinds
        raise UserError(f"{folder}: transformers' {kind.__name__} cannot read it: {first_line(error)}.") from error
    for what, names in (("is missing", report["missing_keys"]), ("has another shape", report.get("mismatched_keys"))):
        if names:
            raise UserError(
                f"{folder}: tensor {sorted(map(str, names))[0]} {what}, so transformers would draw it at "
                "random. Copy the checkpoint again."
            )
    return checked_padding(MaskedLM(lm.eval().requires_grad_(False).to(device), config))


def checked_padding(model: MaskedLM) -> MaskedLM:
    """The model, if rows compute the same beside padding as alone. Raises UserError else: rows of a batch would depend
    on one another."""
    tokens = torch.arange(2 * PROBED_TOKENS, device=model.device)[None] % model.config.vocab
    attention_mask = (torch.arange(2 * PROBED_TOKENS, device=model.device) < PROBED_TOKENS)[None]
    with torch.no_grad():
        alone, padded = model.encode(tokens[:, :PROBED_TOKENS]), model.encode(tokens, attention_mask)
    name = type(model.lm).__name__
    if alone.shape != (1, PROBED_TOKENS, model.config.vocab):
        raise UserError(
            f"{name} gives logits of the shape {list(alone.shape)} for {PROBED_TOKENS} tokens, and must give "
            f"a row of {model.config.vocab} for each. Use another model."
        )
    apart = float((alone - padded[:, :PROBED_TOKENS]).abs().max())
    if not apart <= PADDING_TOLERANCE.get(model.dtype, 0.1) * float(alone.abs().max().clamp(min=1)):
        raise UserError(
            f"{name} computes other logits beside padding than alone (by {apart:.1g}), so rows of a batch would "
            "depend on one another. Use a model that attends by its mask alone."
        )
    return model
