"""Rows of narrow products in eight bits, on a CPU: ``model.activations=int8``.

Queries, keys, values, the output of attention and the MLPs round their rows (``dllm.kernels.rounded_rows``). Attention
itself, norms, embedding, head and routed experts stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dllm.common.errors import Refusal, Set, nearest, warn_once
from dllm.common.ranks import Ranks
from dllm.kernels.dispatch import INVARIANT
from dllm.kernels.rounded_linear import left_wide, round_rows
from dllm.kernels.rounded_machine import ROW_LEVELS, Processor, this_processor
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer
from dllm.models.weights.quantize import NARROWING, needs_narrow

ROW_KINDS = ("int8",)


def check_activations(
    kind: str | None, weights: str | None, head: str | None, config: ModelConfig, kernels: str
) -> None:
    """Raises UserError for an unknown kind, for layers that are not in int8 or int4, and with ``kernels=invariant`` for
    products of this model or processor that depend on the batch. weights, head: kinds of layers and head."""
    if kind is None:
        return
    name, plain = f"{{model.activations={kind}}}", Set("model.activations", None)
    if kind not in ROW_KINDS:
        raise Refusal(f"{{model.activations:quoted}} must be {{null}} or int8.{nearest(kind, ROW_KINDS)}", [kind])
    needs_narrow(name, weights, plain)
    if kernels != INVARIANT:
        return
    here = this_processor()
    if config.moe is not None:
        wide = "routed experts"
    elif head is not None:
        wide = "a narrow head"
    elif not here.most or (weights == "int4" and not here.pack):
        wide = "these weights on this processor"
    else:
        return
    raise Refusal(
        f"{{kernels}} with {name}: few rows are multiplied with {wide} in another way than many.",
        [INVARIANT],
        (Set("kernels", "auto"),),
    )


def round_activations(model: Transformer, invariant: bool) -> str | None:
    """Round the rows of all narrow products in place, and say once what runs instead where this cannot be. Returns the
    kind, or None. Raises UserError for products that ``invariant`` kernels do not cover."""
    if model.device.type != "cpu":
        warn_once(
            f"{{model.activations=int8}} is for a CPU, and the model is on {model.device.type}: its kernels multiply "
            "rows of bfloat16 with the narrow weights."
        )
        return None
    here = agreed(this_processor(), model.ranks)
    if not here.most:
        warn_once(
            "{model.activations=int8}: this processor or PyTorch has no exact product of bytes that is faster. "
            "Rows of bfloat16 are multiplied with the narrow weights."
        )
        return None
    round_rows(model.layers, here, NARROWING, model.ranks, invariant)
    if wide := left_wide(model.layers):
        reason = f"{len(wide)} products ({wide[0]}, ...) have sizes that this processor's operators do not take"
        if invariant:
            raise Refusal(
                f"{{kernels}} with {{model.activations=int8}}: {reason}.", [INVARIANT], (Set("kernels", "auto"),)
            )
        warn_once(f"{{model.activations=int8}}: {reason}. Rows of bfloat16 are multiplied with these.")
    if here.most < ROW_LEVELS[0]:
        warn_once(
            "{model.activations=int8}: this processor has no dot product of bytes (VNNI). Rows have seven bits "
            "instead of eight."
        )
    return ROW_KINDS[0]


def agreed(here: Processor, ranks: Ranks) -> Processor:
    """What all ranks can do: a row whose columns they share has one scale."""
    if ranks.size == 1:
        return here
    most, pack = ranks.largest(torch.tensor([-here.most, -here.pack], dtype=torch.float32)).tolist()
    return replace(here, most=int(-most), pack=here.pack if pack else 0)
