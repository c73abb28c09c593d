"""The numbers of routed experts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Routed experts in place of a layer's MLP.

    router: ``softmax`` (LLaDA-MoE, Qwen3-MoE) or ``sigmoid`` (LLaDA2: a choice limited to groups, with a bias, and
    weights renormalised). renormalised: under softmax the weights of a token's experts are divided by their sum
    (Qwen3-MoE's ``norm_topk_prob``). sparse_layers: the layers that have experts. The others keep a dense MLP.
    """

    experts: int
    top_k: int
    width: int
    router: str
    shared_width: int = 0
    groups: int = 1
    top_groups: int = 1
    scale: float = 1.0
    expert_bias: bool = False
    sparse_layers: tuple[int, ...] = ()
    renormalised: bool = False
