"""A perfect model of one list operation: when a sampler decodes it, every error is the sampler's.

Its network is the exact conditional distribution: at every masked position the marginal over the valid answers that
agree with what is committed. ``theory`` says what must come out.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from dllm.models.bundle import Model
from dllm.models.config import ModelConfig
from dllm.models.network.conditioning import Conditioning
from dllm.models.network.layer import RunLayer, run_layer
from dllm.models.network.memory import Memory
from dllm.models.network.transformer import Transformer
from dllm.models.text.ids import Ids
from dllm.tasks.parallelbench.theory import outputs

PROMPT = [0]  # there is one question only, so any prompt will do
IMPOSSIBLE = -80.0  # log-probability of a token that no valid answer has here; e^-80 is never drawn


class IdealNetwork(Transformer):
    """Its hidden states are the logits [B, L, V] themselves, and its head is the identity."""

    valid: Tensor
    one_hot: Tensor

    def __init__(self, valid: Tensor, config: ModelConfig) -> None:
        super().__init__(config)
        self.double().requires_grad_(False)
        nn.init.eye_(self.lm_head.weight)
        self.register_buffer("valid", valid)  # [Y, n]
        self.register_buffer("one_hot", nn.functional.one_hot(valid, config.vocab).double())  # [Y, n, V]

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
        """Logits of every column; those of the prompt are zero."""
        answer = tokens[:, len(PROMPT) :]
        agrees = (answer[:, None] == self.valid) | (answer[:, None] == self.config.mask_id)
        weight = agrees.all(-1).double()  # [B, Y]
        none_fits = weight.sum(1, keepdim=True) == 0  # no valid answer is left: all count
        marginal = torch.einsum("by,ynv->bnv", torch.where(none_fits, 1.0, weight), self.one_hot)
        logits = (marginal / marginal.sum(-1, keepdim=True)).log().clamp(min=IMPOSSIBLE)
        prompt = logits.new_zeros(len(tokens), len(PROMPT), logits.shape[-1])
        return torch.cat([prompt, logits], 1), columns


def ideal(operation: str, n: int) -> Model:
    """The perfect model of an operation on n items; decode PROMPT with ``gen_length=length(operation, n)``."""
    valid = torch.tensor(outputs(operation, n))
    mask, eos = n + 1, n + 2
    config = ModelConfig(
        family="ideal", width=eos + 1, layers=0, heads=1, kv_heads=1, head_dim=2, mlp_width=1, vocab=eos + 1,
        max_length=len(PROMPT) + valid.shape[1], eps=0.0, theta=1.0, mask_id=mask, eos_id=eos, pad_id=eos,
        rotary_dim=2,
    )  # fmt: skip
    return Model(IdealNetwork(valid, config), config, None, Ids(mask, eos, (eos,)), f"ideal-{operation}", Path())


def length(operation: str, n: int) -> int:
    """Tokens of an answer."""
    return len(outputs(operation, n)[0])
