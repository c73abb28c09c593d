"""Random folders of transformers' own classes that predict the next token, and what ``generate`` makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

SIZES = {
    "vocab_size": 89,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e3,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
# What a folder has beside ``SIZES``, by its class.
TRAITS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "tied": ("llama", {"tie_word_embeddings": True}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "ungrouped": ("llama", {"num_key_value_heads": None}),
    "one_key_head": ("llama", {"num_key_value_heads": 1, "head_dim": 20}),
    "window": ("mistral", {"sliding_window": 5}),
    "narrowest_window": ("mistral", {"sliding_window": 1}),
    "tied_yarn": ("mistral", {"sliding_window": None, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "late_windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "window_off": ("qwen2", {"use_sliding_window": False, "sliding_window": 4, "num_key_value_heads": 4}),
    "named_windows": (
        "qwen3",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "biased_yarn": (
        "qwen3",
        {"head_dim": 12, "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": YARN},
    ),
}


def next_token_folder(
    folder: Path, trait: str | tuple[str, dict[str, Any]], tokens: int = 14, lengths: Sequence[int] = (4, 46)
) -> Path:
    """A folder with weights and reference.json, as ``tests/autoregressive.py`` reads them. trait: one of ``TRAITS``, or
    such a pair. lengths: of the prompts."""
    import transformers

    kind, own = TRAITS[trait] if isinstance(trait, str) else trait
    config = getattr(transformers, f"{CLASSES[kind]}Config")(**{**SIZES, **own})
    torch.manual_seed(len(str(trait)))
    model = getattr(transformers, f"{CLASSES[kind]}ForCausalLM")(config).float().eval()
    with torch.no_grad():  # biases and gains begin at 0 and 1, which would hide them
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    cases = [generated(model, torch.randint(3, 89, (length,)).tolist(), tokens) for length in lengths]
    (folder / "reference.json").write_text(json.dumps({"cases": cases}))
    return folder


def generated(model: Any, prompt: list[int], tokens: int) -> dict[str, Any]:
    """What the model's own ``generate`` gives, and log-probabilities of whole sequences, without its cache: with it,
    transformers 5.23 gives other tokens under a window of one column."""
    whole = model.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, use_cache=False)[0]
    with torch.inference_mode():
        logits = model(whole[None]).logits[0].log_softmax(-1)
    new = range(len(prompt), len(whole))
    return {
        "prompt": prompt,
        "tokens": whole[len(prompt) :].tolist(),
        "logprobs": [float(logits[at - 1, whole[at]]) for at in new],
    }
