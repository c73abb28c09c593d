"""A layer that reads the next position: a model whose output at i predicts the token at i becomes one whose output at
i - 1 does, as Dream's, without a step of training."""

from __future__ import annotations

import torch
from torch import nn

from dllm.models.transformer import Layer, Transformer

SHARPNESS, DECAY = 200.0, 0.65  # of all frequencies together; from one to the next, slower one
LOUDNESS = 100.0  # root mean square of what is read: that of states behind mini-llada's last layer is 0.3 to 3


@torch.no_grad()
def read_next(model: Transformer) -> None:
    """Let the last layer of ``model`` add the next position's state, so loud that its own is 3 % of the sum at most.

    Scores do not depend on what stands there. Rotated by their positions n and m, constant queries a and keys b give
    sum_f Re a_f conj(b_f) exp(i w_f (n - m)), which is largest at m = n + 1 for a_f conj(b_f) = s_f exp(i w_f). With
    s_f = 70 * DECAY**f the next position leads by 7 nats or more up to a distance of 768, and by no more than 66: in
    float32 exp(-88) and less are denormal numbers, which took training from 0.4 s a step to 1.3. Values are the
    normalised states as they are, a part of them in every head. The model needs as many heads for keys as for queries,
    biases, and no norms of both.
    """
    layer = model.layers[-1]
    assert isinstance(layer, Layer)
    attention, half = layer.attn, model.rotary.dim // 2
    places = torch.arange(half)
    angles, share = model.rotary.theta ** -(places / half), DECAY**places
    size = (SHARPNESS * share / share.sum()) ** 0.5
    query = torch.cat([size * angles.cos(), size * angles.sin()])
    key = torch.cat([size, torch.zeros(half)])
    for part, bias in ((attention.q, query), (attention.k, key)):
        part.bias.copy_(bias.repeat(len(part.bias) // len(bias)))
        nn.init.zeros_(part.weight)
    nn.init.eye_(attention.v.weight)
    nn.init.eye_(attention.o.weight).mul_(LOUDNESS)
