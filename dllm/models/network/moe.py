"""The numbers of routed experts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Routed experts in place of a layer's MLP."""

    experts: int  # of a layer
    top_k: int  # that a token is sent to
    width: int  # inside one expert
    # ``softmax`` (LLaDA-MoE, Qwen3-MoE) or ``sigmoid`` (LLaDA2: a choice limited to groups, with a bias, and weights
    # renormalised)
    router: str
    shared_width: int = 0  # inside the expert that all tokens share; 0 without one
    groups: int = 1  # into which the experts are divided
    top_groups: int = 1  # among which a token's experts are chosen
    scale: float = 1.0  # multiplies the weights of a token's experts under sigmoid
    expert_bias: bool = False  # the choice adds a bias of each expert
    sparse_layers: tuple[int, ...] = ()  # those that have experts; the others keep a dense MLP
    # under softmax the weights of a token's experts are divided by their sum (Qwen3-MoE's ``norm_topk_prob``)
    renormalised: bool = False
    local_experts: tuple[int, int] | None = None  # from and to, those that this rank holds whole; None: all
