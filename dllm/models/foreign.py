"""Models that publish under the architecture of another one and compute something else: refused by their own names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dllm.common.coerce import is_whole
from dllm.common.errors import UserError
from dllm.models.keys import quote


@dataclass(frozen=True)
class Foreign:
    """A model that is not of our families, and how its file tells."""

    name: str  # the model's true one
    differs: str  # in what it differs
    instead: str  # what to take
    signs: Mapping[str, Callable[[Any], bool]]  # values of keys that tell it


def _is_set(value: Any) -> bool:
    return value is not None and value is not False


def _below_4(value: Any) -> bool:
    return is_whole(value) and 1 <= value <= 3  # noqa: PLR2004


# thuEcstasy/I-DLM, training/model/Qwen3-8B-b{1,2,3}-allmasked; no SDAR has blocks below 4
I_DLM = Foreign(
    "I-DLM (or Uno)",
    "its attention is strictly causal and its predictions are shifted",
    "a checkpoint of SDAR (JetLM/SDAR-8B-Chat), whose blocks have 4 columns or more",
    {"block_size": _below_4, "block_length": _below_4, "use_regular_causal": _is_set},
)
DREAM_REASONER = Foreign(
    "DreamReasoner",
    "its attention goes by blocks and its predictions are not shifted",
    'its own config.json, which names "architectures": ["DreamForCausalLM"]',
    {"block_size": _is_set},
)
LLADA22 = Foreign(  # the keys as sglang 0.5.23 reads them
    "LLaDA2.2",
    "its blocks share one set of experts, and it inserts and deletes tokens",
    "LLaDA2.0 or LLaDA2.1",
    dict.fromkeys(("expert_capacity", "delete_token_id", "split_token_id"), _is_set),
)

# Architectures that no family here computes: what they are, and what to take instead.
OTHER_ARCHITECTURES = {
    "VLMModel": ("a Nemotron-Labs-Diffusion with a tower for images", "the text model (NemotronLabsDiffusionModel)"),
    "NemotronHTwoTowerForCausalLM": (
        "Nemotron-Labs-TwoTower, two networks with state-space layers",
        "Nemotron-Labs-Diffusion",
    ),
    "LlavaLLaDAModelLM": ("LLaDA-V, which reads images", "LLaDA (GSAI-ML/LLaDA-8B-Instruct)"),
    "MMadaModelLM": ("MMaDA, which reads and draws images", "LLaDA (GSAI-ML/LLaDA-8B-Instruct)"),
}

# Stock classes that predict the next token and are not read, by what was made of their bodies for masked diffusion.
AUTOREGRESSIVE = {
    "Qwen3MoeForCausalLM": ("RND1", "RND1LM"),
    "Ministral3ForCausalLM": ("Nemotron-Labs-Diffusion", "NemotronLabsDiffusionModel"),
}
TOWERS = ("vision_config", "audio_config")


def refuse_other_architecture(published: Mapping[str, Any], file: str) -> None:
    """Raise UserError, with the model's own name, for an architecture that is known not to work here."""
    names = published.get("architectures") or []
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name in OTHER_ARCHITECTURES:
        what, instead = OTHER_ARCHITECTURES[name]
        raise UserError(
            f"{file} names architectures={quote(names)}: that is {what}, which is not supported. Take {instead}."
        )
    if name in AUTOREGRESSIVE:
        model, kin = AUTOREGRESSIVE[name]
        raise UserError(
            f"{file} names architectures={quote(names)}: that class predicts the next token, and a mask means nothing "
            f'to it. Take {model}, which has its body; a model of your own that was trained so names "{kin}" there.'
        )
    if any(published.get(key) is not None for key in (*TOWERS, "text_config")):
        raise UserError(
            f"{file} names architectures={quote(names)} and describes towers beside the text model, which "
            "are not supported. Take the family's text model."
        )


def refuse_foreign(architecture: str, kin: Iterable[Foreign], published: Mapping[str, Any], file: str) -> None:
    """Raise UserError, with the model's own name, for a file that a model of another kind publishes. kin: models that
    publish under this architecture."""
    towers = [f"{key}={quote(published[key])}" for key in TOWERS if published.get(key) is not None]
    if towers:
        raise UserError(
            f"{file} has {', '.join(towers)} under {architecture}: that is a model with towers for images or sound, "
            "which are not supported. Take the family's text model."
        )
    for other in kin:
        signs = [f"{key}={quote(published[key])}" for key, tells in other.signs.items() if tells(published.get(key))]
        if signs:
            raise UserError(
                f"{file} has {', '.join(signs)} under {architecture}: that is {other.name}, which is not supported, "
                f"since {other.differs}. Take {other.instead}."
            )
