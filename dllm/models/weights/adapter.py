"""A LoRA adapter in peft's format, merged into the weights as they are read: ``model.adapter=FOLDER``.

W + scale * B A for every matrix that it adapts, as peft's ``merge_and_unload`` computes it; scale is alpha / r, or
alpha / sqrt(r) with ``use_rslora``. Decoding is then as fast as without an adapter. Names in the file are those of the
published model, so adapters that others trained with peft load, and peft loads those of ``experiments.distill``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor

from dllm.common.errors import Refusal, UserError
from dllm.models.formats.expressions import RULE, Expression, expression
from dllm.models.keys import KeyRule, boolean, integer, quote, read_keys, real
from dllm.models.network.experts import at_least_float32
from dllm.models.network.layer import LowRank
from dllm.models.network.transformer import Transformer
from dllm.models.weights.files import StoredTensor, broken, headers, read_json
from dllm.models.weights.names import Source, parameter_source

ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
MODULE_PREFIX = "base_model.model."  # peft's, before the published name of a module
DIGEST = "dllm.base"  # metadata of the weights' file: ``base_digest`` of the base; peft reads no metadata


def _patterns(value: Any) -> bool:
    """Numbers by regular expressions of modules' names."""
    if not isinstance(value, dict) or not all(isinstance(number, int | float) for number in value.values()):
        return False
    try:
        return bool([_ends_in(number) for number in value]) or not value
    except UserError:
        return False


def _ends_in(pattern: str) -> Expression:
    """Matches the modules whose name ends in a pattern, by peft's rule."""
    return expression(rf"(.*\.)?({pattern})$")


_PATTERN = KeyRule(f"an object to numbers from patterns of names, each {RULE}", _patterns, {})
KEYS = {
    "base_model_name_or_path": KeyRule("a name", lambda value: isinstance(value, str), ""),
    "r": integer(1, 2**16, 8),
    "lora_alpha": real(0, 1e6, 8),
    "use_rslora": boolean(),
    "rank_pattern": _PATTERN,
    "alpha_pattern": _PATTERN,
}
# With any of these on, the adapter is more than W + scale * B A.
OFF = (
    "use_dora", "bias", "lora_bias", "modules_to_save", "fan_in_fan_out", "layer_replication", "target_parameters",
    "trainable_token_indices", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "kasa_config",
    "monteclora_config",
)  # fmt: skip
SAME_BASE = (None, True, False, "gaussian", "eva")  # ``init_lora_weights`` that leave the base's weights as they are


@dataclass(frozen=True)
class Pair:
    """The two low-rank factors of one matrix."""

    a: StoredTensor  # A [r, in]
    b: StoredTensor  # B [out, r]
    scale: float  # their product is multiplied by it

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.b.shape[:1], *self.a.shape[1:])


@dataclass(frozen=True)
class Adapter:
    """The headers of an adapter."""

    folder: Path  # the adapter's
    base: str  # the model that its config names
    pairs: Mapping[str, Pair]  # by the published name of the weight
    digest: str | None  # of the base's weights; None: other programs write none

    @staticmethod
    def read(folder: str | Path) -> Adapter:
        """Reads the headers only. Raises UserError for a folder that holds no LoRA which can be merged."""
        place = Path(folder).expanduser()
        config = _read_config(place)
        file = place / ADAPTER_WEIGHTS
        if not file.is_file():
            pickled = (place / "adapter_model.bin").exists()
            never = " A pickle (adapter_model.bin) can run code, so it is never read." if pickled else ""
            sentence = f"{{model.adapter:quoted}} lacks {ADAPTER_WEIGHTS}.{never} Save the adapter as safetensors."
            raise Refusal(sentence, [str(place)])
        pairs = _pairs(file, config)
        with safe_open(file, framework="pt") as weights:
            digest = (weights.metadata() or {}).get(DIGEST)
        return Adapter(place, config["base_model_name_or_path"], pairs, digest)

    def check_fits(self, shapes: Mapping[str, tuple[int, ...]], path: str | Path) -> None:
        """Raise UserError where a weight that it adapts is not in the model ``path``, or has another shape, and where
        both are hub ids of different names. shapes: of the model's weights, by published name."""
        if is_hub_id(self.base) and is_hub_id(str(path)) and Path(self.base).name != Path(path).name:
            raise self._other(path, f"its config names {self.base}")
        for name, pair in self.pairs.items():
            if name not in shapes:
                raise self._other(path, f"it adapts {quote(name)}, which this model does not have")
            if pair.shape != shapes[name]:
                sizes = f"{list(pair.shape)}, and this model's has {list(shapes[name])}"
                raise self._other(path, f"its {quote(name)} has shape {sizes}")

    def check_base(self, tensors: Mapping[str, StoredTensor], path: str | Path) -> None:
        """Raise UserError where the adapter was trained on other weights than ``tensors``, as far as it notes
        them. Reads a row per matrix, which proves nothing of weights in few bits."""
        if any(tensors[name].packing is not None for name in self.pairs):
            return
        if self.digest is not None and self.digest != base_digest(self.pairs, tensors):
            raise self._other(path, "the weights that it adapts are not those it was trained on")

    def _other(self, path: str | Path, why: str) -> UserError:
        advice = f"{{model.path={self.base}}}" if self.base else "{model.path:name} to the model that it was trained on"
        return Refusal(
            f"{{model.adapter:quoted}} was made for another base than {{model.path:quoted}}: {why}. Set {advice}, or "
            "{model.adapter=null}.",
            [str(self.folder), str(path)],
        )

    def merged(self, name: str, weight: Tensor, part: Source, dtype: torch.dtype) -> Tensor:
        """The ``part`` of a stored weight with what the adapter adds to it; ``dtype``: what the model
        computes in. The sum is made in float32 or wider and rounded once."""
        pair = self.pairs.get(name)
        if pair is None:
            return weight
        wide = at_least_float32(dtype)
        with safe_open(pair.a.file, framework="pt", device=str(weight.device)) as file:
            a, b = (file.get_tensor(half.name).to(wide) for half in (pair.a, pair.b))
        a, b = a[:, slice(*(part.columns or (None,)))], b[slice(*(part.rows or (None,)))]
        return weight.to(wide) + b @ a * pair.scale


def attach_drafts(model: Transformer, adapter: Adapter) -> None:
    """Keep the adapter beside the weights, for rows that draft. Raises UserError where it adapts another product than
    the output of attention (``o_proj``), which is the one that published drafts adapt."""
    rest = dict(adapter.pairs)
    for index, layer in enumerate(model.layers):
        pair = rest.pop(parameter_source(f"layers.{index}.attn.o.weight", model.config).name, None)
        if pair is not None:
            with safe_open(pair.a.file, framework="pt", device=str(next(layer.parameters()).device)) as file:
                a, b = (file.get_tensor(half.name) for half in (pair.a, pair.b))
            attention = cast("Any", layer).attn
            ranks, width = model.ranks, a.shape[1] // model.ranks.size  # inputs of ``o``, by heads
            a = a[:, ranks.rank * width : (ranks.rank + 1) * width]
            attention.draft = LowRank(a.to(model.dtype), (b.double() * pair.scale).to(model.dtype))
    if rest:
        raise Refusal(
            f"{{model.draft_adapter:quoted}} adapts {quote(next(iter(rest)))}, and drafts are adapted at the output "
            "of attention (o_proj) alone. Take an adapter of that, or set {model.draft_adapter=null}.",
            [str(adapter.folder)],
        )
    model.streams = False  # a stream of rows that draft and rows that judge is one product


def _read_config(place: Path) -> dict[str, Any]:
    if not (place / ADAPTER_CONFIG).is_file():
        raise Refusal(
            f"{{model.adapter:quoted}} holds no {ADAPTER_CONFIG}, so it is not an adapter of peft. Point it at a "
            "folder that peft or experiments.distill wrote.",
            [str(place)],
        )
    content = read_json(place / ADAPTER_CONFIG)
    on = [key for key in OFF if content.get(key) not in (None, False, "none", [], {})]
    on += ["peft_type"] * (content.get("peft_type") != "LORA")
    on += ["init_lora_weights"] * (content.get("init_lora_weights") not in SAME_BASE)
    if on:
        raise Refusal(
            f"{{model.adapter:quoted}} has {on[0]}={quote(content.get(on[0]))}, which is more than a plain LoRA. "
            "Merge it into its base with peft's merge_and_unload, and point {model.path:name} at the result.",
            [str(place)],
        )
    return read_keys(KEYS, content, ADAPTER_CONFIG)


def _pairs(file: Path, config: Mapping[str, Any]) -> dict[str, Pair]:
    """The matrices of the file. Raises UserError for a matrix without its pair."""
    halves: dict[str, dict[str, StoredTensor]] = {}
    for tensor in headers(file):
        match = re.fullmatch(re.escape(MODULE_PREFIX) + r"(.+)\.lora_([AB])\.weight", tensor.name)
        if match is None or len(tensor.shape) != 2:
            shape = list(tensor.shape)
            raise broken(f"{file} holds {quote(tensor.name)} of shape {shape}, which is not a matrix of a LoRA")
        halves.setdefault(match[1], {})[match[2]] = tensor
    pairs = {}
    for module, half in halves.items():
        if len(half) < 2 or half["A"].shape[0] != half["B"].shape[1]:
            raise broken(f"{file} has no two matrices that fit for {quote(module)}")
        pairs[f"{module}.weight"] = Pair(half["A"], half["B"], scale_of(module, half["A"].shape[0], config))
    if not pairs:
        raise broken(f"{file} holds no tensors")
    return pairs


def scale_of(module: str, rank: int, config: Mapping[str, Any]) -> float:
    """alpha / r of a module, by peft's rule: the first pattern that ends its name, else ``lora_alpha``. Raises
    UserError where its rank is not the config's."""

    def setting(patterns: Mapping[str, float], usual: float) -> float:
        return next((value for pattern, value in patterns.items() if _ends_in(pattern).matches(module)), usual)

    declared = setting(config["rank_pattern"], config["r"])
    if declared != rank:
        raise broken(f"{ADAPTER_CONFIG} says rank {declared} of {quote(module)}, and its matrices have {rank}")
    alpha = setting(config["alpha_pattern"], config["lora_alpha"])
    return alpha / (sqrt(rank) if config["use_rslora"] else rank)


def is_hub_id(name: str) -> bool:
    """Whether a name is of the form owner/name, and no folder here."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).is_dir()


def base_digest(names: Iterable[str], tensors: Mapping[str, StoredTensor]) -> str:
    """A hash of the first row of each of these weights, as float32: it tells models apart that share all shapes, and
    reads 2 MB of an 8B model's 16 GB."""
    hasher = hashlib.sha256()
    for name in sorted(names):
        with safe_open(tensors[name].file, framework="pt") as file:
            hasher.update(file.get_slice(tensors[name].name)[0:1].to(torch.float32).numpy().tobytes())
    return hasher.hexdigest()[:16]
