"""OpenAI's ``reasoning_effort`` and OpenRouter's ``reasoning`` as the budget of a thought, in tokens.

Shares of an answer's tokens as OpenRouter has them (openrouter.ai, reasoning tokens). As with vLLM, an effort is no
error where a model has no thoughts: clients send it to every model.
"""

from __future__ import annotations

from dllm.serve.fields import Answered
from dllm.serve.request_parts import Defaults

SHARES = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95}  # of the answer's tokens


def asked_budget(body: Answered, defaults: Defaults) -> int | None:
    """The tokens that a request gives to a thought, by whichever field says so; None: none does."""
    if body.thinking_token_budget is not None:
        return body.thinking_token_budget
    told = body.reasoning
    effort = "none" if told.enabled is False else told.effort or body.reasoning_effort
    budget = told.max_tokens
    if budget is None and effort is not None:
        budget = round(SHARES[effort] * (body.max_completion_tokens or body.max_tokens or defaults.gen_length))
    known = defaults.model.tokenizer is not None and defaults.model.tokenizer.thought_marks is not None
    return budget if known or budget != 0 else None  # nothing to end, where no thought can come
