"""What settings are called in requests: the words of each form that a server reads, for ``Refusal.text``."""

from __future__ import annotations

from dllm.common.errors import Wording

OPTIONS_OF_CONSTRAINTS = ("confidence", "whitespace", "depth", "words", "additional")
_FORMAT = "response_format"
CHAT_WORDS = Wording(typed=("constraint",), form="json").but({
    "sampling.temperature": "temperature", "sampling.top_p": "top_p", "sampling.top_k": "top_k",
    "sampling.guidance": "diffusion.guidance", "sampling.guidance_against": "diffusion.guidance_against",
    "sampling.guidance_ratio": "diffusion.guidance_ratio", "sampling.eos_last": "diffusion.eos_last",
    "sampling.min_tokens": "min_tokens",
    "sampling.thinking_budget": "thinking_token_budget", "sampling.forbid_eos": "ignore_eos",
    **{name: name for name in ("prompt", "seed", "stop")}, "samples": "n", "gen_length": "max_tokens",
    "infill": "diffusion.canvas",
    "sampler/inner": "diffusion.sampler.inner", "sampler": "diffusion.sampler", "blocks": "diffusion.blocks",
    "cache": "diffusion.cache", "eos": "diffusion.eos",
    "constraint.pattern": f"{_FORMAT}.pattern", "constraint.grammar": f"{_FORMAT}.grammar",
    "constraint.options": f"{_FORMAT}.options", "constraint.schema": f"{_FORMAT}.json_schema.schema",
    "constraint": _FORMAT,
    **{f"constraint.{name}": f"diffusion.constraint.{name}" for name in OPTIONS_OF_CONSTRAINTS},
})  # fmt: skip
# Of Anthropic's Messages, and of Ollama: what they call fields that chat has under another name.
MESSAGES_WORDS = CHAT_WORDS.but(
    {
        "max_completion_tokens": "max_tokens",
        "stop": "stop_sequences",
        "thinking_token_budget": "thinking.budget_tokens",
        f"{_FORMAT}.json_schema": "output_config.format",
        f"{_FORMAT}": "output_config.format",
    }
)
OLLAMA_WORDS = CHAT_WORDS.but(
    {
        **{name: f"options.{name}" for name in ("temperature", "top_p", "top_k", "seed", "stop")},
        "max_completion_tokens": "options.num_predict",
        "max_tokens": "options.num_predict",
        f"{_FORMAT}.json_schema.schema": "format",
        f"{_FORMAT}.json_schema": "format",
        _FORMAT: "format",
        "reasoning_effort": "think",
    }
)
