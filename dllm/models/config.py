"""The sizes and conventions of a transformer, read from a published ``config.json``.

One dataclass covers all families. Every size comes from the checkpoint's own file. ``dllm.models.families`` lists
the keys of each, with type and range, and says what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from dllm.common.errors import Refusal, Set, nearest
from dllm.common.ranks import ALONE, Ranks
from dllm.models.agreement import BLOCK_KEYS, FILE
from dllm.models.families import ARCHITECTURE, FIRST_FAMILIES, LLADA, Family
from dllm.models.families_2026 import FAMILIES_2026
from dllm.models.families_ar import NEXT_TOKEN_FAMILIES
from dllm.models.foreign import refuse_other_architecture
from dllm.models.formats.layouts import PackedSettings
from dllm.models.formats.packed_settings import packed_settings
from dllm.models.formats.prequantized import stored_kinds
from dllm.models.gemma_config import DIFFUSION_GEMMA, GEMMA, GemmaConfig
from dllm.models.keys import printed, quote, read_keys
from dllm.models.network import rope
from dllm.models.network.attention_order import FULL, AttentionKind, columns_of
from dllm.models.network.masked_lm_class import MASKED_LM, is_masked_lm
from dllm.models.network.moe import MoEConfig
from dllm.models.network.rope_ntk import NtkReach, RopeSetting
from dllm.models.network.rope_scaling import Scaling
from dllm.models.network.visibility import AnswerBlocks, InBlocks, PipelinedBlocks

FAMILIES: Mapping[str, Family] = {
    **FIRST_FAMILIES,
    **FAMILIES_2026,
    DIFFUSION_GEMMA: GEMMA,
    **NEXT_TOKEN_FAMILIES,
}  # by architecture
# For repackaged checkpoints without ``architectures``.
MODEL_TYPES = {family.model_type: name for name, family in FAMILIES.items() if family.model_type}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and conventions of one model."""

    family: str  # which published layout its files have
    width: int  # D, of hidden states
    layers: int  # how many
    heads: int  # H, of queries
    kv_heads: int  # H_kv, of keys and values
    head_dim: int  # h, of one head
    mlp_width: int  # F, inside a dense MLP
    vocab: int  # V, columns of the logits
    max_length: int  # prompt and answer together
    eps: float  # of the norms
    theta: float  # base of the rotary embeddings
    mask_id: int | None  # the mask; None: the file names none
    eos_id: int | None  # the end of a text; None: the file names none
    pad_id: int | None  # padding; None: the file names none
    rotary_dim: int = 0  # how much of a head rotates; 0: all
    scaling: Scaling | None = None  # how rotary embeddings are scaled; None: not at all
    ntk: NtkReach | None = None  # by which ``theta`` was multiplied here; None: it is the file's
    rope_float32: bool = False  # rotate in float32 (LLaDA's ``rope_full_precision``)
    qkv_bias: bool = False  # projections of queries, keys and values have a bias
    output_bias: bool = False  # the projection of attention's output has one
    mlp_bias: bool = False  # those of the MLP have one
    tied: bool = False  # the head's weights are the embedding's
    qk_norm: bool = False  # heads of queries and keys are normed
    logit_scale: float = 1.0  # multiplies logits
    embed_scale: float = 1.0  # multiplies embeddings
    prediction_shift: int = 0  # position i is read from hidden state i - shift
    # the shift where attention is causal, and of a column that a forward commits alone; None: no other one
    seed_shift: int | None = None
    attention: AttentionKind = FULL  # who sees whom
    # what undecided positions show: ``absorbing``, a mask, or ``uniform``, ids that are drawn
    process: str = "absorbing"
    unsaid: str = ""  # a sentence about the attention where the file does not tell it
    usual_mask_id: int | None = None  # where neither file nor tokenizer names the mask; None without one
    window: int | None = None  # columns that a layer with a window sees, its own included; None: no layer has one
    windowed: frozenset[int] = frozenset()  # the numbers of these layers; Gemma's are in ``gemma``
    gemma: GemmaConfig | None = None  # DiffusionGemma's layers; None: all layers are alike
    moe: MoEConfig | None = None  # routed experts; None: every layer is dense
    # those that hold the model together: heads and widths are then this rank's share (``weights.cut.share_of``)
    ranks: Ranks = field(default=ALONE, compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False)  # sentences about what of a GGUF file is not read
    published: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # config.json as it is
    # ``model.family``; None: that of the file's architecture
    described_by: Family | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def from_published(published: Mapping[str, Any], family: Family | str | None = None) -> ModelConfig:
        """From the parsed ``config.json``.

        family: whose keys and tensors these are, whatever architecture the file names (``model.family``). Raises
        UserError when the architecture is unknown, a key has a wrong type, is outside its range, contradicts another or
        asks for something no published checkpoint uses.
        """
        name, description = architecture_of(published), named_family(family)
        layout = description or MASKED_LM if is_masked_lm(name) else description or FAMILIES.get(name)
        if layout is None:
            refuse_other_architecture(published, FILE)
            raise Refusal(
                f"{FILE} names architectures={quote(published.get('architectures'))} and "
                f"model_type={quote(published.get('model_type'))}; known architectures are "
                f"{', '.join(sorted(FAMILIES))}. Use a checkpoint of one of these; if it is one by another name, say "
                "which by {model.family=LLaDAModelLM}; if it is like one, describe it and name the description by "
                "{model.family=my_module.FAMILY}."
            )
        if layout is not MASKED_LM:
            packed_settings(published, FILE)
            stored_kinds(published, FILE)
        return ModelConfig(
            **layout.fields(published, name or layout.name), described_by=description, published=dict(published)
        )

    def with_attention_block(self, block: int | None, names: Sequence[str] = ()) -> ModelConfig:
        """With attention blocks of ``block`` columns, where the file does not say them (None: the family's usual ones).

        names: names of the folder, the most telling first, by which an A2D checkpoint counts as one with blocks or
        without, unless ``block`` says it; 0 is full attention. LLaDA's and Dream's bodies attend by blocks under D2F's
        adapters, whose files do not say so. Raises UserError for a block that the file contradicts, or that this
        attention cannot have.
        """
        if self.layout.answer_block:
            return self._a2d(block, names)
        if block is None:
            return self
        if self.layout.pipelined:
            self._check_block(block, 0)
            return replace(self, attention=PipelinedBlocks(block) if block else FULL)
        lengths = {key: self.published[key] for key in BLOCK_KEYS if self.published.get(key) is not None}
        if self.gemma is not None:
            lengths = {"canvas_length": self.attention.block}
        unset = Set("model.attention_block", None)
        if not isinstance(self.attention, InBlocks):
            kind = f"the attention of {self.architecture} is {self.attention.is_called}, which has no blocks"
            raise Refusal(f"{{model.attention_block}}: {kind}.", [block], [unset])
        if lengths and block != self.attention.length:
            key, value = next(iter(lengths.items()))
            raise Refusal(f"{{model.attention_block}}, but {FILE} says {key}={value}.", [block], [unset])
        self._check_block(block, 1)
        return replace(self, attention=replace(self.attention, length=block), unsaid="")

    def with_rope(self, rope: Mapping[str, Any] | RopeSetting | None) -> ModelConfig:
        """With a larger base of the rotary embeddings, for longer texts (``network.rope_ntk``). Raises UserError
        for numbers that reach no further, and where the file scales its embeddings itself."""
        setting = RopeSetting.of(rope)
        if setting == RopeSetting():
            return self
        if self.scaling is not None or self.gemma is not None or not self.rotary_dim:
            how = "scales them itself" if self.scaling is not None else "has other rotary embeddings"
            raise Refusal(
                f"{{model.rope:name}} stretches unscaled rotary embeddings, and {self.architecture} of {FILE} {how}. "
                "Leave it {null}."
            )
        reach = setting.reach(self.theta, self.rotary_dim, self.max_length)
        return replace(self, theta=self.theta * reach.factor, max_length=max(self.max_length, reach.target), ntk=reach)

    def _a2d(self, block: int | None, names: Sequence[str]) -> ModelConfig:
        """A2D's files do not tell whether they attend fully (-mdlm) or by blocks from the answer's start (-bd3lm)."""
        if block is not None:
            self._check_block(block, 0)
            return replace(self, attention=AnswerBlocks(block) if block else FULL, unsaid="")
        name = next((name for name in names if re.search("mdlm|bd3lm", name, re.IGNORECASE)), "")
        usual = self.layout.answer_block
        kind = AnswerBlocks(usual) if "bd3lm" in name.lower() else FULL
        choice = "full attention is taken" if kind is FULL else f"blocks of {usual} columns are taken"
        why = f"since the name {printed(name)} says so" if name else "as the -mdlm checkpoints have it"
        unsaid = (
            f"{FILE} does not say which attention the weights were trained for: {choice}, {why}. Say it by "
            f"model.attention_block: 0 (full, -mdlm) or {usual} (blocks from the answer's start, -bd3lm)."
        )
        return replace(self, attention=kind, unsaid=unsaid)

    def _check_block(self, block: int, least: int) -> None:
        if not least <= block <= self.max_length:
            raise Refusal(
                f"{{model.attention_block}} must be from {least} to the model's {self.max_length} positions.", [block]
            )

    def shifts(self, masked: Tensor, start: Tensor) -> Tensor | int:
        """How many rows before each column [B, L] its prediction is; a number where that is the same for all.
        masked [B, L], start [B]: as in ``dllm.models.network.attention_order``."""
        rows = None if self.seed_shift is None else self.attention.block_rows(masked, start)
        if rows is None or self.seed_shift is None:
            return self.prediction_shift
        return rows.long() * (self.prediction_shift - self.seed_shift) + self.seed_shift

    def sources(self, masked: Tensor, start: Tensor) -> Tensor:
        """The row [B, L] that predicts each column. The first column of all predicts itself."""
        return (columns_of(masked) - self.shifts(masked, start)).clamp(min=0)

    @property
    def architecture(self) -> str:
        """The architecture that the file names, or the known one that ``model.family`` says it is."""
        if self.described_by is None:
            return architecture_of(self.published)
        names = self.published.get("architectures") or [self.family]
        return next((name for name, entry in FAMILIES.items() if entry is self.described_by), str(names[0]))

    @property
    def layout(self) -> Family:
        """The family whose keys and tensors these are."""
        family = self.described_by or FAMILIES.get(architecture_of(self.published))
        return family or next((entry for entry in (*FAMILIES.values(), MASKED_LM) if entry.name == self.family), LLADA)

    @property
    def stored_kind(self) -> str | None:
        """The kind in which ``task=quantize`` has written the weights; None: they are plain."""
        return stored_kinds(self.published, FILE)[0]

    @property
    def stored_head(self) -> str | None:
        """The same of embedding and head."""
        return stored_kinds(self.published, FILE)[1]

    @property
    def packed(self) -> PackedSettings | None:
        """How another program has packed the weights; None: they are plain."""
        return packed_settings(self.published, FILE)

    @property
    def ends(self) -> tuple[int, ...]:
        """All ids that end a text, where the file lists several."""
        ids = (self.published.get("text_config") or self.published).get("eos_token_id")
        return tuple(ids) if isinstance(ids, list) else ()

    @property
    def carries(self) -> bool:
        """Whether a forward gives the next one of its rows something on the way (``Transformer.soft``)."""
        return self.gemma is not None

    @property
    def rotates_by_length(self) -> bool:
        """Whether rotary embeddings depend on how long a row is, prompt and answer together."""
        return self.scaling is not None and self.scaling.by_length

    @property
    def unread(self) -> tuple[str, ...]:
        """The keys of the file that nothing here knows."""
        return self.layout.unread(self.published)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what the file leaves open, and what of it is not read."""
        sentences = []
        if self.unread:
            names = ", ".join(map(printed, self.unread))
            sentences.append(f"{FILE} has keys that are not known here, and so are not read: {names}.")
        sentences += self.layout.warnings(self.published)
        longest = self.published.get("max_position_embeddings") or self.max_length
        if self.family == "dream" and (sentence := rope.differs(self.scaling, longest)):
            sentences.append(f"{FILE}: {sentence}")
        return (*sentences, *self.notes, self.unsaid) if self.unsaid else (*sentences, *self.notes)

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    def attention_widths(self, layer: int) -> tuple[int, int]:
        """Features of the queries of a layer, and of its keys, H h and H_kv h."""
        heads, size = self.key_heads(layer)
        return self.heads * size, heads * size

    def key_heads(self, layer: int) -> tuple[int, int]:
        """Heads of the keys of a layer and their size, H_kv and h."""
        kind = self if self.gemma is None else self.gemma.layers[layer]
        return kind.kv_heads, kind.head_dim

    @property
    def column_numbers(self) -> int:
        """How many numbers the keys and values of a column have in all layers."""
        return sum(2 * heads * size for heads, size in map(self.key_heads, range(self.layers)))

    @property
    def sizes(self) -> dict[str, int]:
        """Rows and columns that some stored tensor must have, by the keys of config.json that imply them."""
        sizes = self.layout.sizes(self.published)
        if self.gemma is not None:
            return sizes
        if self.moe is not None and len(self.moe.sparse_layers) < self.layers:
            sizes[self.layout.mlp] = self.mlp_width
        if self.moe is not None and self.moe.shared_width:
            sizes["num_shared_experts x moe_intermediate_size"] = self.moe.shared_width
        return {**sizes, "attention heads x head_dim": self.heads * self.head_dim}

    @property
    def least_tensors(self) -> int:
        """The least number of tensors in a checkpoint: six per layer, and three per expert that has its own."""
        routed = 0 if self.moe is None or self.gemma is not None else 3 * self.moe.experts * len(self.moe.sparse_layers)
        return 6 * self.layers + routed


def named_family(family: Family | str | None) -> Family | None:
    """A family, or that of a known architecture by its name. Raises UserError for an unknown one."""
    if not isinstance(family, str):
        return family
    if family not in FAMILIES:
        raise Refusal(
            f"{{model.family:quoted}} is no known architecture ({', '.join(sorted(FAMILIES))}) and no "
            f"MODULE.FAMILY.{nearest(family, FAMILIES)}",
            [family],
        )
    return FAMILIES[family]


def architecture_of(published: Mapping[str, Any]) -> str:
    """The key of ``FAMILIES``: ``architectures[0]``, because LLaDA and LLaDA-MoE share one ``model_type``. An empty
    string where the file names no architecture that we know."""
    values = read_keys(ARCHITECTURE, published, FILE)
    names = values["architectures"]
    if names and names[0] == "LlamaForCausalLM" and "SeedDiffcoderForCausalLM" in str(published.get("auto_map")):
        return "StableDiffcoderForCausalLM"  # as its older files say
    if names and (names[0] in FAMILIES or is_masked_lm(names[0])):
        return str(names[0])
    return MODEL_TYPES.get(str(values["model_type"]), "") if not names else ""
