"""How mini models of each kind of attention are decoded, in words of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from dllm import Decoder, Model
from dllm.app.command_line.options import checked_sampling
from dllm.compose.fitted import Parts
from dllm.compose.parts import composed, plain_config
from dllm.models.network.visibility import CausalByRank, ContextCausal

# The first of a kind takes one forward for each token; the others commit what the model is sure of.
LEFT_TO_RIGHT = {"left to right": ("experiment=ar",)}
WEDLM = {
    "left to right": ("experiment=wedlm", "sampler.threshold=0.0", "sampler.penalty=1000.0"),
    **{f"threshold {at:g}": ("experiment=wedlm", f"sampler.threshold={at}") for at in (0.1, 0.4, 0.8)},
}
NBDIFF = {
    "one token": ("experiment=nbdiff", "sampling.temperature=0.0", "sampling.top_p=null", "sampling.tempered=false"),
    **{f"threshold {at:g}": ("experiment=nbdiff_threshold", f"sampler.threshold={at}") for at in (0.9, 0.6, 0.3)},
}
BY_BLOCK = ("blocks.block_length=8",)
CACHES = {
    "no cache": BY_BLOCK,
    **{f"cache={name}": (*BY_BLOCK, f"cache={name}") for name in ("prefix", "dual", "dkv")},
    **{f"cache={name}": (f"cache={name}",) for name in ("elastic", "window")},
}


def settings_of(model: Model) -> Mapping[str, tuple[str, ...]]:
    """The ways to decode a model. Those of full attention: the default sampler with the caches."""
    kind = model.config.attention
    if isinstance(kind, CausalByRank):
        return WEDLM
    if isinstance(kind, ContextCausal):
        return LEFT_TO_RIGHT if kind.block == 1 else NBDIFF
    return CACHES


def decoder(model: Model, words: Sequence[str], length: int, batch: int) -> Decoder:
    """Answers of ``length`` tokens, ``batch`` at a time. Raises UserError for parts that do not fit the model."""
    parts = parts_of(tuple(words))
    return Decoder(
        model,
        parts.sampler,
        parts.blocks,
        parts.cache,
        parts.eos,
        gen_length=length,
        batch_size=batch,
        sampling=parts.sampling,
    )


@cache  # composing takes a tenth of a second
def parts_of(words: tuple[str, ...]) -> Parts:
    config = plain_config(composed(list(words)))
    return Parts.of(config, checked_sampling(config["sampling"]))
