"""Fields of other servers that change nothing here: the values that ask for nothing, and why no other is served.

The names are those of OpenAI's, vLLM's, SGLang's, llama.cpp's and Ollama's protocols, as their sources list them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

LIKELIEST = "top_p and top_k choose what is drawn from"
CHAINS = "return_token_ids=true tells the ids of prompt and answer"
ALIKE = "all requests are served alike"
FORM = 'response_format says it: {"type": "grammar", "grammar": TEXT} takes a grammar in Lark\'s syntax'
UNPACK = "its entries are fields of the request itself. Write them there"
_PENALTY = "no token is made less likely"
THOUGHT = (
    "chat_template_kwargs switches a thought where the chat template can, and reasoning_effort or "
    "thinking_token_budget bounds it"
)

# The values that ask for nothing; () where every value asks for something. Two fields of one name in two programs have
# the neutral values of both.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    # OpenAI
    "presence_penalty": (0,), "frequency_penalty": (0,), "echo": (False,), "suffix": ("",), "best_of": (1, 0),
    "store": (False,), "logit_bias": ({}, []), "service_tier": ("auto", "default"), "modalities": (["text"],),
    "verbosity": ("medium",), "prediction": ({},), "audio": ({},),
    "web_search_options": ({},), "functions": ([],), "function_call": ("none",), "moderation": ({},),
    # vLLM
    "repetition_penalty": (1,), "min_p": (0,), "skip_special_tokens": (True,), "use_beam_search": (False,),
    "length_penalty": (1,), "stop_token_ids": ([],), "include_stop_str_in_output": (False,),
    "spaces_between_special_tokens": (True,), "truncate_prompt_tokens": (-1,), "prompt_logprobs": (0,),
    "allowed_token_ids": ([],), "bad_words": ([],), "add_generation_prompt": (True,),
    "continue_final_message": (False,), "add_special_tokens": (False,), "documents": ([],),
    "mm_processor_kwargs": ({},), "media_io_kwargs": ({},), "logits_processors": ([],), "priority": (0,),
    "return_tokens_as_token_ids": (False,), "kv_transfer_params": ({},),
    "vllm_xargs": ({},), "structural_tag": ("",), "guided_whitespace_pattern": ("",), "early_stopping": (False,),
    # SGLang
    "ebnf": ("",), "stop_regex": ("", []), "no_stop_trim": (False,), "session_params": ({},), "custom_params": ({},),
    "custom_logit_processor": ("",), "return_hidden_states": (False,), "return_routed_experts": (False,),
    "routed_experts_start_len": (0,), "return_cached_tokens_details": (False,), "images_config": ({},),
    # llama.cpp
    "repeat_penalty": (1,), "typical_p": (1,), "typ_p": (1,), "tfs_z": (1,), "mirostat": (0,), "n_keep": (0,),
    "n_discard": (0,), "n_indent": (0,), "xtc_probability": (0,), "dry_multiplier": (0,), "top_n_sigma": (-1, 0),
    "dynatemp_range": (0,), "samplers": ([], ""), "n_probs": (0,), "min_keep": (0,), "id_slot": (-1,), "lora": ([],),
    "timings_per_token": (False,), "return_progress": (False,), "return_tokens": (False,), "image_data": ([],),
    "post_sampling_probs": (False,), "response_fields": ([],), "t_max_predict_ms": (0, -1), "grammar": ("",),
    "grammar_lazy": (False,), "grammar_triggers": ([],), "reasoning_budget": (-1,),
    # Ollama, text-generation-inference, transformers
    "num_keep": (0,), "format": ("",), "think": (False,), "raw": (False,), "context": ([],), "images": ([],),
    "system": ("",), "template": ("",), "options": ({},), "parameters": ({},), "sampling_params": ({},),
    "num_beams": (1,), "no_repeat_ngram_size": (0,), "thinking": ({"type": "disabled"},),
    # of OpenAI's client, whose argument it is
    "extra_body": ({},),
}  # fmt: skip
# Why another value is not served, where that is not plain.
REASONS = {
    "echo": "a masked diffusion model has no log-probabilities of a prompt from left to right. lm-eval measures "
            "likelihoods with --model dllm",
    "suffix": 'diffusion.canvas holds text after an answer: "diffusion": {"canvas": [40, " and so on."]}',
    "logit_bias": "no token is made likelier. response_format forces the form of an answer",
    "modalities": "there is only text", "audio": "there is only text", "images": "there is only text",
    "image_data": "there is only text", "images_config": "there is only text", "media_io_kwargs": "there is only text",
    "mm_processor_kwargs": "there is only text",
    "think": THOUGHT,
    "thinking": THOUGHT,
    "verbosity": "max_tokens says how long an answer may be",
    "prediction": "diffusion.canvas gives parts of an answer", "web_search_options": "nothing is looked up",
    "documents": "the chat template reads messages. Write them there", "functions": "tools took its place",
    "function_call": "tool_choice took its place", "service_tier": ALIKE, "priority": ALIKE,
    "moderation": "no text is judged here",
    "min_p": LIKELIEST, "typical_p": LIKELIEST, "typ_p": LIKELIEST, "tfs_z": LIKELIEST, "top_n_sigma": LIKELIEST,
    "xtc_probability": LIKELIEST, "mirostat": LIKELIEST, "samplers": LIKELIEST, "min_keep": LIKELIEST,
    "dynatemp_range": "temperature is one number",
    "presence_penalty": _PENALTY, "frequency_penalty": _PENALTY, "repetition_penalty": _PENALTY,
    "repeat_penalty": _PENALTY, "dry_multiplier": _PENALTY, "no_repeat_ngram_size": _PENALTY,
    "length_penalty": _PENALTY,
    "use_beam_search": "there is no beam search", "num_beams": "there is no beam search",
    "early_stopping": "there is no beam search",
    "bad_words": "no text is kept from an answer. response_format forces its form",
    "allowed_token_ids": "no token is kept from an answer. response_format forces its form",
    "stop_token_ids": "stop takes texts", "stop_regex": "stop takes texts",
    "include_stop_str_in_output": "an answer ends before a stop string",
    "no_stop_trim": "an answer ends before a stop string",
    "skip_special_tokens": "special tokens write nothing", "return_tokens": CHAINS,
    "return_tokens_as_token_ids": "logprobs names tokens by their text",
    "prompt_logprobs": "log-probabilities are those of the answer", "n_probs": "logprobs and top_logprobs tell them",
    "truncate_prompt_tokens": "a prompt is never cut", "n_keep": "a prompt is never cut",
    "num_keep": "a prompt is never cut", "n_discard": "a prompt is never cut",
    "add_generation_prompt": "a chat asks for an answer", "add_special_tokens": "the chat template writes them",
    "continue_final_message": "a chat asks for a new message. diffusion.canvas gives the beginning of an answer",
    "structural_tag": FORM, "ebnf": FORM, "grammar": FORM,
    "guided_whitespace_pattern": 'diffusion.constraint says it: {"whitespace": "none"}',
    "format": 'response_format says it: {"type": "json_object"}, or {"type": "json_schema", ...}',
    "system": 'it is a message: {"role": "system", "content": TEXT}', "extra_body": UNPACK, "options": UNPACK,
    "parameters": UNPACK, "sampling_params": UNPACK,
    "template": "the chat template is the checkpoint's. /v1/completions uses none",
    "raw": "/v1/completions uses no chat template", "lora": "the server's own adapter is in its model",
    "context": "nothing is stored. Send the messages before",
    "t_max_predict_ms": "task.timeout of the server bounds an answer",
}  # fmt: skip
# Fields without effect, whatever they say: names of a request, hints to a cache or a router, and numbers of samplers
# that are switched off above.
WITHOUT_EFFECT = (
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    "client_metadata", "request_id", "rid", "cache_prompt", "extra_key", "session_id", "custom_labels",
    "guided_decoding_backend", "include_reasoning", "separate_reasoning", "stream_reasoning", "reasoning_format",
    "parse_tool_calls", "keep_alive", "data_parallel_rank", "routed_dp_rank", "ngram_corpus_id", "repeat_last_n",
    "mirostat_tau", "mirostat_eta", "xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "dynatemp_exponent", "penalize_nl", "n_cache_reuse",
)  # fmt: skip
# Values that other programs write for a field that is not set: without a limit, drawn, or all.
UNSET: dict[str, tuple[Any, ...]] = {
    "max_tokens": (-1,), "max_completion_tokens": (-1,), "max_output_tokens": (-1,), "n_predict": (-1, -2),
    "num_predict": (-1, -2), "seed": (-1,), "top_k": (-1, 0),
}  # fmt: skip
# In completions no chat template writes special tokens, and so none are added in either case.
OF_COMPLETIONS: dict[str, tuple[Any, ...]] = {"add_special_tokens": (False, True)}


def is_one_of(value: Any, values: Iterable[Any]) -> bool:
    """Whether a value of JSON is one of ``values``; true is not 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def is_set(name: str, value: Any) -> bool:
    """Whether a field says something: it is neither null nor what another program writes for that."""
    return value is not None and not (name in UNSET and is_one_of(value, UNSET[name]))


def not_served(name: str, value: Any, chat: bool) -> str | None:
    """What a field must be whose value is not served, and why; None: it asks for nothing."""
    neutral = NEUTRAL[name] if chat else OF_COMPLETIONS.get(name, NEUTRAL[name])
    if is_one_of(value, neutral):
        return None
    usual = json.dumps(neutral[0]) if neutral[0] not in ("", [], {}) else "empty"
    return f"must be {usual}: {REASONS.get(name, 'nothing else is served')}. Drop it."
