"""Which extras the forwards of a decode have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dllm.compose.fitted import Parts
from dllm.contract import Need
from dllm.contract.needs import readouts_of
from dllm.contract.process import Uniform
from dllm.contract.readouts import AttentionMap, Shadow
from dllm.loop.extras.base import Extra
from dllm.loop.extras.capture import AttentionReadout
from dllm.loop.extras.extra_queries import Drafts, ShadowQueries
from dllm.loop.extras.guidance import DoubtGuidance, Guidance
from dllm.loop.extras.mixed_inputs import MixedInputs
from dllm.loop.extras.readings import InnerLayers, Readings
from dllm.loop.extras.row_facts import Noise, RowLengths, RuleTemperature, Waiting
from dllm.loop.extras.self_conditioning import CarriedEmbeddings
from dllm.models.network.transformer import Transformer
from dllm.models.text.ids import Ids


def extras_of(model: Transformer, ids: Ids, parts: Parts, needs: Sequence[Need]) -> Iterator[Extra]:
    """In the order in which they take part."""
    readouts, traits, sampling = readouts_of(needs), parts.sampler.traits, parts.sampling
    if model.config.process == "uniform":
        yield Noise(Uniform(model.config.vocab))
    if traits.renoises:
        yield RuleTemperature(parts.sampler)
    yield Waiting()
    if Shadow() in readouts:
        yield ShadowQueries(model, ids.placeholder)
    if traits.verifies:
        yield Drafts(ids.placeholder)
    yield from (AttentionReadout(readout, model.config) for readout in readouts if isinstance(readout, AttentionMap))
    if model.config.carries:
        yield CarriedEmbeddings(model)
    if traits.soft is not None:
        yield MixedInputs(model, traits.soft, parts.blocks, ids.placeholder)
    if model.config.rotates_by_length:
        yield RowLengths()
    layers = {readout.layer % model.config.layers for readout in readouts if readout.layer is not None}
    if layers:
        yield InnerLayers(tuple(sorted(layers)))
    behind = [readout for readout in readouts if readout.behind_head]
    if behind:
        yield Readings.of(behind, model)
    if sampling.doubts:
        yield DoubtGuidance(sampling.guidance, sampling.guidance_ratio, model, ids.placeholder)
    elif sampling.guidance:
        yield Guidance(sampling.guidance, ids.placeholder)
