"""How much memory a decode takes, from the model's description and what its cache declares that it keeps.

    weights + kept + max(activations, logits)

Weights are those of ``Footprint``, what is kept that of ``Cache.kept``. Activations are what the rows of the widest
forward hold at its narrowest place: every cache begins with a forward of whole canvases. Logits follow the layers, so
of both the larger counts. All is that of the plain operations: our kernels hold less. ``experiments.bench.memory``
compares this with what PyTorch's allocator gave out.

Letters: D width, F inner width of an MLP, q and k features of queries and keys, V logit columns; all by column of the
canvas, in numbers of the rows' kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dllm.common.errors import UserError
from dllm.compose.fitted import Parts
from dllm.kernels.head_statistics import CHUNK_ROWS
from dllm.models.config import ModelConfig
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY

INPUT_TENSORS = 3  # tensors [.., D] that a layer holds besides its own: embeddings, and what entered it as a sum of two
CANVAS_BYTES = 110  # of a column's ids, masks and positions, measured
FLOAT = 4  # bytes of a logit, and of an angle
ROW_LIMIT = 1 << 16  # rows
# Logits that exist at once, in float32: with the argmax's probability alone, with a second one, with an entropy.
USUAL_VALUES, STATISTIC_VALUES = 2, {"second": 4, "gap": 4, "entropy": 5}
SAMPLING_VALUES = 7  # the same where they are stored, tempered and drawn from


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a decode at its largest."""

    weights: int  # when they are loaded
    kept: int  # by the cache
    activations: int  # of the widest forward, besides what the cache keeps
    logits: int  # of the positions that are scored at once, and the hidden states that they are made of

    @property
    def most(self) -> int:
        """At once: logits are made after the layers."""
        return self.weights + self.kept + max(self.activations, self.logits)


def refuse_other_layers(config: ModelConfig) -> None:
    """Raise UserError for a network whose forwards are not counted."""
    if config.family == MASKED_LM_FAMILY or config.gemma is not None:
        raise UserError(f"{config.architecture}: what its forwards hold is not counted here, weights alone.")


@dataclass(frozen=True)
class MemoryModel:
    """The memory of decodes of one model with one choice of parts."""

    config: ModelConfig  # of the model, or of a rank's share
    parts: Parts  # fitted to the model
    weights: int  # bytes of the weights
    size: int  # bytes of a number of the rows: 2 or 4
    answer: int  # masks after the prompt

    def __post_init__(self) -> None:
        """Raises UserError for networks whose layers are others."""
        refuse_other_layers(self.config)

    def use(self, rows: int, length: int) -> MemoryUse:
        """Of ``rows`` of ``length`` columns each, prompt and answer together."""
        columns = rows * length * (2 if self.parts.sampling.guidance else 1)
        cache_bytes = rows * self.parts.kept_numbers(length, self.config) * self.size
        angle_bytes = 2 * FLOAT * (self.config.rotary_dim or self.config.head_dim)  # cosines and sines of a column
        layer_bytes = columns * (self.layer_numbers * self.size + angle_bytes + CANVAS_BYTES)
        return MemoryUse(self.weights, cache_bytes, int(layer_bytes), self._logits(rows, length, columns))

    @property
    def layer_numbers(self) -> float:
        """The most that the rows of a layer hold at once, in its attention or in its MLP."""
        config = self.config
        query, key = max(config.attention_widths(layer) for layer in range(config.layers))
        inputs = (INPUT_TENSORS + 2) * config.width  # and their sum, and its norm
        return inputs + max(self._rotation(query, key), query + config.width + self._mlp())

    def _rotation(self, query: int, key: int) -> float:
        """Projections, and what turns them: three tensors of queries and keys, four of float32 where these are wide."""
        projections = query + 2 * key
        if self.config.qk_norm:  # queries and keys are normed, then turn one after the other
            return projections + query + key + self._rotation_tensors() * query
        return projections + self._rotation_tensors() * (query + key)

    def _rotation_tensors(self) -> float:
        return 4 * FLOAT / self.size if self.config.rope_float32 and self.size < FLOAT else 3

    def _mlp(self) -> int:
        """Gate and up, what the gate lets through, and their product; with experts those of all of a row's."""
        config, moe = self.config, self.config.moe
        dense = (
            0
            if moe is not None and len(moe.sparse_layers) == config.layers
            else self._gate(config.mlp_width, config.width)
        )
        if moe is None:
            return dense
        own, inner = moe.top_k * config.width, moe.top_k * moe.width  # a row of a column for each of its experts
        between = max(2 * own + 3 * inner + own // moe.experts, own + self._gate(inner, 0))  # as they leave, or inside
        experts = max(between, 3 * own)  # as they left, in order, and weighed
        shared = config.width + self._gate(moe.shared_width, config.width)
        return max(dense if len(moe.sparse_layers) < config.layers else 0, experts, shared)

    def _gate(self, inner: int, out: int) -> int:
        """Of ``inner`` features, and of the ``out`` features of the product that follows."""
        return max(4 * inner, 3 * inner + out)

    def _logits(self, rows: int, length: int, columns: int) -> int:
        """Of all that is scored, or of a chunk."""
        parts = self.parts
        readers = (parts.sampler, parts.blocks, parts.eos, parts.cache, parts.length)
        needs = [need for part in readers for need in part.needs()]
        answer = min(self.answer, length)
        block = all(need.region == "block" for need in needs)
        scored_rows = rows * (min(parts.blocks.widest(answer), answer) if block else answer)
        statistics = {name for need in needs for name in need.statistics}
        numbers = SAMPLING_VALUES
        if parts.sampling.plain:
            scored_rows = min(scored_rows, CHUNK_ROWS)
            numbers = max((STATISTIC_VALUES.get(name, USUAL_VALUES) for name in statistics), default=USUAL_VALUES)
        hidden = columns * (self.config.width * self.size + CANVAS_BYTES)
        return int(hidden + scored_rows * self.config.vocab * numbers * FLOAT)


def longest_fit(model: MemoryModel, room: float, rows: int) -> int:
    """The most columns of ``rows`` rows that fit ``room`` bytes, at most what the model takes; 0: not one."""
    return _last(lambda length: model.use(rows, length).most <= room, model.config.max_length)


def most_rows(model: MemoryModel, room: float, length: int) -> int:
    """The most rows of ``length`` columns that fit ``room`` bytes, at most ``ROW_LIMIT``; 0: not one."""
    return _last(lambda rows: model.use(rows, length).most <= room, ROW_LIMIT)


def _last(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` that fits, where all below it do, too; 0: none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
