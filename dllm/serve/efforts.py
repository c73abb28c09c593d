"""OpenAI's ``reasoning_effort`` and OpenRouter's ``reasoning`` as the budget of a thought, in tokens.

Shares of an answer's tokens as OpenRouter has them (openrouter.ai, reasoning tokens). As with vLLM, an effort is no
error where a model has no thoughts: clients send it to every model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllm.common.coerce import is_whole
from dllm.serve.api_errors import ApiError
from dllm.serve.request_parts import Defaults

SHARES = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95}  # of the answer's tokens
ANSWERS = ("max_output_tokens", "max_completion_tokens", "max_tokens")  # fields that say how long an answer is
OWN_KEYS = ("effort", "max_tokens", "enabled", "exclude")  # of ``reasoning``


def with_budget(body: Mapping[str, Any], defaults: Defaults) -> Mapping[str, Any]:
    """The body with ``thinking_token_budget`` in place of efforts; a budget that was given stays. Raises ApiError."""
    told = body.get("reasoning")
    told = told if isinstance(told, Mapping) else {}
    if body.get("reasoning_effort") is None and not any(told.get(key) is not None for key in OWN_KEYS):
        return body
    if told.get("exclude"):
        raise ApiError(400, "reasoning.exclude=True must be false: a reply tells its thoughts. Drop it.", "reasoning")
    left = {key: value for key, value in body.items() if key not in ("reasoning_effort", "reasoning")}
    others = {key: value for key, value in told.items() if key not in OWN_KEYS}
    budget = _tokens(told["max_tokens"]) if told.get("max_tokens") is not None else _share(body, told, defaults)
    known = defaults.model.tokenizer is not None and defaults.model.tokenizer.thought_marks is not None
    wanted = budget is not None and (known or budget > 0)  # nothing to end, where no thought can come
    return {
        **({"thinking_token_budget": budget} if wanted else {}),
        **left,
        **({"reasoning": others} if others else {}),
    }


def _tokens(value: Any) -> int:
    if not is_whole(value) or value < 0:
        raise ApiError(400, f"reasoning.max_tokens={value!r} must be a whole number from 0 on.", "reasoning")
    return int(value)


def _share(body: Mapping[str, Any], told: Mapping[str, Any], defaults: Defaults) -> int | None:
    """The budget of an effort; None: no effort is named."""
    name = "reasoning.effort" if told.get("effort") is not None else "reasoning_effort"
    effort = told["effort"] if name == "reasoning.effort" else body.get("reasoning_effort")
    if told.get("enabled") is False:
        effort = "none"
    if effort is None:
        return None
    if not isinstance(effort, str) or effort not in SHARES:
        raise ApiError(400, f"{name}={effort!r} must be one of {', '.join(SHARES)}.", name.partition(".")[0])
    lengths = [body[key] for key in ANSWERS if is_whole(body.get(key)) and body[key] > 0]
    return round(SHARES[effort] * (lengths[0] if lengths else defaults.gen_length))
