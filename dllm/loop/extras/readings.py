"""Readouts that are computed once the layers have run, and the hidden states of inner layers for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from dllm.contract.readouts import HeadInput, LogitLookup, Readout
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.hidden import CallStates, HiddenStates
from dllm.models.network.layer import Layer, run_layer
from dllm.models.network.memory import Memory, summed
from dllm.models.network.packed_calls import Inputs
from dllm.models.network.rope import Angles
from dllm.models.network.transformer import Transformer
from dllm.parts.cache.passes import Call, ForwardPass


@dataclass(frozen=True)
class Readings(Extra):
    """What the readouts of all parts find."""

    readouts: Mapping[Readout[Any], Readout[Any]]  # each as its part names it, and on the model's device
    stores_logits: bool  # one of them reads all logits
    looks_up: bool  # one of them reads some

    @staticmethod
    def of(readouts: Sequence[Readout[Any]], model: Transformer) -> Readings:
        """Of readouts that the loop does not make while layers run."""
        stores_logits = any(readout.stores_logits(model.local_head_weight) for readout in readouts)
        looks_up = any(isinstance(readout, LogitLookup) for readout in readouts)
        return Readings({readout: readout.on(model.device) for readout in readouts}, stores_logits, looks_up)

    def finish(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        scores = result.scores
        values = {readout: reader.read(source) for readout, reader in self.readouts.items()}
        return replace(result, scores=replace(scores, readings={**scores.readings, **values}))


@dataclass(frozen=True)
class InnerLayers(Extra):
    """Keeps what leaves some inner layers of the network."""

    layers: tuple[int, ...]  # which ones, from 0
    taps: list[tuple[Call, LayerTap]] = field(default_factory=list)  # of this forward, call by call

    sequential = True

    def start(self, work: Work) -> InnerLayers:
        return InnerLayers(self.layers)

    def at_call(self, work: Work, forward: ForwardPass, call: Call, inputs: Inputs) -> Inputs:
        tap = LayerTap(self.layers)
        self.taps.append((call, tap))
        return replace(inputs, run=tap)

    def states(self, layer: int, work: Work) -> HiddenStates:
        runs = [
            CallStates(call, hidden, columns, rows)
            for call, tap in self.taps
            for rows, hidden, columns in tap.outputs[layer]
        ]
        return HiddenStates.of(runs, work.shown, work.plan.shadows.shape[1])


class LayerTap:
    """Runs the layers of one call, and keeps what leaves some of them."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = layers
        # By layer, run by run: which rows of the call [b] (None: all), what leaves it [b, n, D], its columns [b, n].
        self.outputs: dict[int, list[tuple[Tensor | None, Tensor, Tensor | None]]] = {layer: [] for layer in layers}

    def __call__(
        self,
        layer: Layer,
        x: Tensor,
        residual: Tensor | None,
        angles: Angles,
        columns: Tensor | None,
        memory: Memory,
        index: int,
    ) -> tuple[Tensor, Tensor]:
        x, residual = run_layer(layer, x, residual, angles, columns, memory, index)
        if index in self.layers:
            self.outputs[index].append((memory.rerun, summed(x, residual), columns))
        return x, residual
