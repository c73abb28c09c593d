"""Fields that other servers have and that change nothing here: in which objects, which values ask for nothing, and why
no other value is served. From this table bodies are read, and ``/openapi.json`` and docs/serving_fields.md are made.

The names are those of OpenAI's, Anthropic's, vLLM's, SGLang's, llama.cpp's and Ollama's protocols, as their sources
list them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OtherField:
    """A field that other servers have, in one object."""

    neutral: tuple[Any, ...] | None = None  # values that ask for nothing; None: whatever it says, it has no effect
    why: str = "nothing else is served"  # no other value; empty: other values are read

    def passes(self, value: Any) -> bool:
        """Whether a value asks for nothing."""
        return self.neutral is None or is_one_of(value, self.neutral)

    @property
    def refusal(self) -> str:
        """The end of a sentence about another value."""
        words = all(isinstance(value, bool | str) for value in self.neutral or ())
        usual = [json.dumps(value) if value not in ("", [], {}) else "empty" for value in self.neutral or ()]
        rule = f"must be {' or '.join(usual if words else usual[:1])}" if usual else "is not served"
        return f"{rule}: {self.why}. Drop it."


ANSWERS = "chat completions responses"  # the bodies that share OpenAI's and vLLM's fields
_TABLE: dict[str, dict[str, OtherField]] = {}  # object, and name


def _row(objects: str, names: str, neutral: tuple[Any, ...] | None = None, why: str = "nothing else is served") -> None:
    """Fields of objects with what passes; a second row of a field adds values."""
    for place in objects.split():
        for name in names.split():
            row = _TABLE.setdefault(place, {}).get(name)
            values = neutral if row is None else (*(row.neutral or ()), *(neutral or ()))
            _TABLE[place][name] = OtherField(values, why)


_LIKELIEST = "top_p and top_k choose what is drawn from"
_PENALTY = "no token is made less likely"
_TEXT = "there is only text"
_NO_PART = "there are only texts"
_UNCUT = "a prompt is never cut"
_STOPS = "stop takes texts"
_ALIKE = "all requests are served alike"
_BEAMS = "there is no beam search"
_STOP_IN = "an answer ends before a stop string"
_NO_BAN = "no token is kept from an answer. response_format forces its form"
_FORM = 'response_format says it: {"type": "grammar", "grammar": TEXT} takes a grammar in Lark\'s syntax'
_UNPACK = "its entries are fields of the request itself. Write them there"
_NO_STORE = "nothing is stored. Send the turns before in input"
NO_TOOLS = "no tool runs here. Offer functions of your own: name, description, input_schema"
_NO_HISTORY = "nothing is stored. Send the messages before"
_THOUGHT = (
    "chat_template_kwargs switches a thought where the chat template can, and reasoning_effort or "
    "thinking_token_budget bounds it"
)

# OpenAI
_row(f"{ANSWERS} options", "presence_penalty frequency_penalty", (0,), _PENALTY)
_row(
    ANSWERS,
    "echo",
    (False,),
    "a masked diffusion model has no log-probabilities of a prompt from left to right. "
    "lm-eval measures likelihoods with --model dllm",
)
_row(ANSWERS, "suffix", ("",), 'diffusion.canvas holds text after an answer: {"diffusion": {"canvas": [40, " so."]}}')
_row(ANSWERS, "best_of", (1, 0))
_row("chat completions", "store", (False,))
_row("responses", "store", (True, False), "nothing is stored")
_row(ANSWERS, "logit_bias", ({}, []), "no token is made likelier. response_format forces the form of an answer")
_row(ANSWERS, "service_tier", ("auto", "default"), _ALIKE)
_row(ANSWERS, "modalities", (["text"],), _TEXT)
_row(ANSWERS, "verbosity", ("medium",), "max_tokens says how long an answer may be")
_row("response_text", "verbosity", ("medium",), "max_output_tokens says how long an answer may be")
_row(ANSWERS, "prediction", ({},), "diffusion.canvas gives parts of an answer")
_row(ANSWERS, "audio", ({},), _TEXT)
_row(ANSWERS, "web_search_options", ({},), "nothing is looked up")
_row(ANSWERS, "functions", ([],), "tools took its place")
_row(ANSWERS, "function_call", ("none",), "tool_choice took its place")
_row(ANSWERS, "moderation", ({},), "no text is judged here")
_row("chat responses", "parallel_tool_calls", (True, False), "a forced answer makes one call")
_row("responses", "background", (False,), "an answer comes in its own reply")
_row("responses", "truncation", ("disabled", "auto"), _UNCUT)
_row("responses", "top_logprobs", (0,), "log-probabilities are returned by /v1/chat/completions")
_row("responses", "previous_response_id conversation", (), _NO_STORE)
_row("responses", "prompt", (), "there are no stored prompts")
_row("responses", "max_tool_calls", (), "no tool runs here: functions are yours")
_row("responses", "context_management", ([],), _UNCUT)
_row("reasoning", "exclude", (False,), "a reply tells its thoughts")
_row("message", "function_call", (), "tool_calls took its place")
_row("message", "refusal", (), "a refusal is a text. Write it into content")
_row("message", "tools", (), "tools are those of the whole request. Write them beside messages")
_row("message", "annotations", ([],), "nothing here reads them")
_row("message", "audio images", (), _NO_PART)
_row("part item_part", "image_url input_audio audio_url video_url file image audio video source", (), _NO_PART)
# Anthropic
_row("messages", "container", (), NO_TOOLS)
_row("messages", "mcp_servers", ([],), NO_TOOLS)
# vLLM
_row(ANSWERS, "repetition_penalty length_penalty", (1,), _PENALTY)
_row(f"{ANSWERS} options", "min_p", (0,), _LIKELIEST)
_row(ANSWERS, "skip_special_tokens", (True,), "special tokens write nothing")
_row(ANSWERS, "use_beam_search early_stopping", (False,), _BEAMS)
_row(ANSWERS, "num_beams", (1,), _BEAMS)
_row(ANSWERS, "stop_token_ids", ([],), _STOPS)
_row(ANSWERS, "include_stop_str_in_output no_stop_trim", (False,), _STOP_IN)
_row(ANSWERS, "spaces_between_special_tokens", (True,))
_row(ANSWERS, "truncate_prompt_tokens", (-1,), _UNCUT)
_row(ANSWERS, "prompt_logprobs", (0,), "log-probabilities are those of the answer")
_row(ANSWERS, "allowed_token_ids", ([],), _NO_BAN)
_row(ANSWERS, "bad_words", ([],), "no text is kept from an answer. response_format forces its form")
_row(ANSWERS, "add_generation_prompt", (True,), "a chat asks for an answer")
_row(
    ANSWERS,
    "continue_final_message",
    (False,),
    "a chat asks for a new message. diffusion.canvas gives the beginning of an answer",
)
_row(ANSWERS, "add_special_tokens", (False,), "the chat template writes them")
_row("completions", "add_special_tokens", (True,), "nothing writes them")  # no chat template writes any there
_row(ANSWERS, "documents", ([],), "the chat template reads messages. Write them there")
_row(ANSWERS, "mm_processor_kwargs media_io_kwargs images_config", ({},), _TEXT)
_row(ANSWERS, "logits_processors response_fields", ([],))
_row(ANSWERS, "priority", (0,), _ALIKE)
_row(ANSWERS, "return_tokens_as_token_ids", (False,), "logprobs names tokens by their text")
_row(ANSWERS, "kv_transfer_params vllm_xargs session_params custom_params", ({},))
_row(ANSWERS, "structural_tag ebnf grammar", ("",), _FORM)
_row(ANSWERS, "guided_whitespace_pattern", ("",), 'diffusion.constraint says it: {"whitespace": "none"}')
_row(
    "outputs",
    "disable_fallback disable_any_whitespace disable_additional_properties",
    (False,),
    "diffusion.constraint says how a form is meant",
)
# SGLang
_row(ANSWERS, "stop_regex", ("", []), _STOPS)
_row(ANSWERS, "custom_logit_processor", ("",))
_row(ANSWERS, "return_hidden_states return_routed_experts return_cached_tokens_details", (False,))
_row(ANSWERS, "routed_experts_start_len n_indent", (0,))
# llama.cpp
_row(f"{ANSWERS} options", "repeat_penalty", (1,), _PENALTY)
_row(f"{ANSWERS} options", "typical_p tfs_z", (1,), _LIKELIEST)
_row(ANSWERS, "typ_p", (1,), _LIKELIEST)
_row(f"{ANSWERS} options", "mirostat", (0,), _LIKELIEST)
_row(ANSWERS, "xtc_probability min_keep", (0,), _LIKELIEST)
_row(ANSWERS, "n_keep n_discard num_keep", (0,), _UNCUT)
_row(ANSWERS, "dry_multiplier no_repeat_ngram_size", (0,), _PENALTY)
_row(ANSWERS, "top_n_sigma", (-1, 0), _LIKELIEST)
_row(ANSWERS, "dynatemp_range", (0,), "temperature is one number")
_row(ANSWERS, "samplers", ([], ""), _LIKELIEST)
_row(ANSWERS, "n_probs", (0,), "logprobs and top_logprobs tell them")
_row(ANSWERS, "id_slot reasoning_budget", (-1,))
_row(ANSWERS, "lora", ([],), "the server's own adapter is in its model")
_row(ANSWERS, "timings_per_token return_progress post_sampling_probs grammar_lazy", (False,))
_row(ANSWERS, "return_tokens", (False,), "return_token_ids=true tells the ids of prompt and answer")
_row(ANSWERS, "images image_data", ([],), _TEXT)
_row(ANSWERS, "grammar_triggers", ([],))
_row(ANSWERS, "t_max_predict_ms", (0, -1), "task.timeout of the server bounds an answer")
# Ollama, text-generation-inference, and OpenAI's client, whose argument extra_body is
_row("options", "repeat_penalty", (1.1,), _PENALTY)  # what Ollama does unless told otherwise
_row("options", "typical_p", (0.7,), _LIKELIEST)
_row(ANSWERS, "format", ("",), 'response_format says it: {"type": "json_object"}, or {"type": "json_schema", ...}')
_row(ANSWERS, "think", (False,), _THOUGHT)
_row(ANSWERS, "thinking", ({"type": "disabled"},), _THOUGHT)
_row(ANSWERS, "raw", (False,), "/v1/completions uses no chat template")
_row(ANSWERS, "context", ([],), _NO_HISTORY)
_row(ANSWERS, "system", ("",), 'it is a message: {"role": "system", "content": TEXT}')
_row(ANSWERS, "template", ("",), "the chat template is the checkpoint's. /v1/completions uses none")
_row(ANSWERS, "options parameters sampling_params extra_body", ({},), _UNPACK)
_row("ollama ollama_message", "images", ([],), _NO_PART)
_row("ollama ollama_message", "template", ("",), "the chat template is the checkpoint's; raw=true uses none")
_row("ollama ollama_message", "context", ([],), f"{_NO_HISTORY} to /api/chat")
# What other programs write for a field that is not set: without a limit, drawn, or all. Other values are read.
_row(ANSWERS, "max_tokens max_completion_tokens max_output_tokens", (-1,), "")
_row(ANSWERS, "n_predict num_predict", (-1, -2), "")
_row(f"{ANSWERS} options", "seed", (-1,), "")
_row(f"{ANSWERS} options", "top_k", (-1, 0), "")
# Without effect, whatever they say: names of a request, hints to a cache or a router, numbers of samplers that are
# switched off above, and what a client sends back of what a server told it.
_row(
    ANSWERS,
    "safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options client_metadata "
    "request_id rid cache_prompt extra_key session_id custom_labels guided_decoding_backend include_reasoning "
    "separate_reasoning stream_reasoning reasoning_format parse_tool_calls keep_alive data_parallel_rank "
    "routed_dp_rank ngram_corpus_id repeat_last_n mirostat_tau mirostat_eta xtc_threshold dry_base "
    "dry_allowed_length dry_penalty_last_n dry_sequence_breakers dynatemp_exponent penalize_nl "
    "n_cache_reuse",
)
_row("stream_options", "include_obfuscation", (False, True), "nothing is padded")
_row("reasoning", "summary generate_summary")
_row("message", "reasoning_details cache_control")
_row("part block tool messages", "cache_control")
_row("call ollama_function", "index")
_row("item", "id status")
_row("message_item", "phase reasoning_details cache_control")
_row("reasoning_item", "summary encrypted_content")
_row("item_part", "annotations logprobs cache_control")
_row("text_block document", "citations")
_row("document", "title context")
_row("source", "media_type")
_row("tool_use", "caller toolset_name")
_row("thought", "signature")
_row("hidden_thought", "data")
_row("tool", "input_examples eager_input_streaming defer_loading allowed_callers")
_row("tool_choice", "disable_parallel_tool_use")
_row("thinking", "display")
_row("output", "effort task_budget")
_row("messages", "metadata service_tier context_management inference_geo speed user_profile_id diagnostics betas")
_row("ollama", "truncate shift")
_row(
    "options",
    "num_ctx num_keep num_batch num_gpu main_gpu num_thread numa low_vram use_mmap use_mlock vocab_only "
    "f16_kv logits_all embedding_only penalize_newline repeat_last_n mirostat_tau mirostat_eta",
)
_row("ollama_call", "type")
_row("ollama_function", "description")
_row("decision", "safety_identifier prompt_cache_key prompt_cache_options metadata user")
_row("judged", "phase reasoning_details cache_control")


def others_of(*places: str) -> dict[str, OtherField]:
    """The fields of other servers in an object, by their names. places: what the table calls it."""
    return {name: row for place in places for name, row in _TABLE[place].items()}


def is_one_of(value: Any, values: Iterable[Any]) -> bool:
    """Whether a value of JSON is one of ``values``; true is not 1."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)
