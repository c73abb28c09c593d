"""What is known before weights are read: the model, lengths, and how a token is proposed. Parts check themselves
against it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from dllm.common.errors import in_choices, in_range
from dllm.contract.canvas import PerRequest
from dllm.contract.traits import Rule, Schedule
from dllm.models.config import ModelConfig

P = TypeVar("P")
AGAINST = ("prompt", "doubted")  # what guidance may be against


@dataclass(frozen=True)
class Sampling:
    """How a token is proposed at a position."""

    temperature: PerRequest = 0.0  # of the requests that name none of their own; 0 is the argmax
    top_p: float | None = None  # keep the smallest set of tokens whose probabilities reach this; None is off
    top_k: int | None = None  # keep this many of the likeliest tokens; None is off
    guidance: float = 0.0  # weight of classifier-free guidance; 0 is off
    # what it is against: ``prompt``, the canvas without what is given, or ``doubted``, without the decided tokens that
    # the model now doubts
    guidance_against: str = "prompt"
    guidance_ratio: float = 0.3  # doubted: the share of the decided positions that is masked
    suppress_mask: bool = True  # never propose the mask token
    # never propose what ends a text or a turn (LLaDA's ``logits_eos_inf`` bans the end of text alone)
    forbid_eos: bool = False
    min_tokens: int = 0  # the same in the answer's first positions, this many (vLLM's, transformers' min_new_tokens)
    # commit such proposals after everything else (the intent of LLaDA's ``confidence_eos_eot_inf``)
    eos_last: bool = False
    # confidences come from the tempered and filtered distribution (Dream, NBDiff) instead of the model's own (LLaDA)
    tempered: bool = False
    # the end of thought is written when a block opens that reaches beyond this many tokens of the answer; None is off
    thinking_budget: int | None = None
    end_of_thought: str | None = None  # the token that ends a thought; None: the chat template's

    def __post_init__(self) -> None:
        in_range("sampling.temperature", self.temperature, 0.0, advice="0 is the argmax.")
        in_range("sampling.guidance", self.guidance, 0.0, advice="0 is off.")
        in_choices("sampling.guidance_against", self.guidance_against, AGAINST)
        in_range("sampling.guidance_ratio", self.guidance_ratio, 0.0, 1.0, "One position is masked in any case.")
        in_range("sampling.top_p", self.top_p, 1e-9, 1.0, "{null} switches it off.")
        in_range("sampling.top_k", self.top_k, 1, advice="{null} switches it off.")
        in_range("sampling.thinking_budget", self.thinking_budget, 0, advice="{null} switches it off.")
        in_range("sampling.min_tokens", self.min_tokens, 0, advice="0 is off.")

    def under(self, rule: Rule) -> Sampling:
        """The same under a rule, whose own convention may be tempered confidences, or temperatures of its own."""
        kind = AtRulesTemperature if rule.traits.renoises else Sampling
        return kind(**{**vars(self), "tempered": self.tempered or rule.traits.tempered})

    @property
    def doubts(self) -> bool:
        """Whether guidance takes a second forward, against doubted tokens."""
        return bool(self.guidance) and self.guidance_against == "doubted"

    @property
    def plain(self) -> bool:
        """Whether the proposal is the argmax of the model's own logits."""
        cold = isinstance(self.temperature, int | float) and self.temperature == 0
        return cold and self.top_p is None and self.top_k is None


class SamplingOptions(TypedDict, total=False):
    """The fields of ``Sampling`` as keywords of another call, for type checkers."""

    temperature: PerRequest
    top_p: float | None
    top_k: int | None
    guidance: float
    guidance_against: str
    guidance_ratio: float
    suppress_mask: bool
    forbid_eos: bool
    min_tokens: int
    eos_last: bool
    tempered: bool
    thinking_budget: int | None
    end_of_thought: str | None


@dataclass(frozen=True)
class AtRulesTemperature(Sampling):
    """Tokens are drawn in every forward: the rule sets the temperature before it."""

    @property
    def plain(self) -> bool:
        return False


@dataclass(frozen=True)
class Setting:
    """What is chosen and known before weights are read."""

    model: ModelConfig  # the checkpoint's description: shape, attention, ids
    blocks: Schedule  # the block schedule that is chosen
    gen_length: int | None  # masks after the prompt (None: infilling, where only the prompts tell)
    sampling: Sampling = Sampling()  # how tokens are proposed
    name: str = ""  # the model's
    ids_of: Callable[[str], list[int]] | None = None  # plain token ids of a text (None: there is no tokenizer)
    path: Path | None = None  # the checkpoint's folder or file (None: not known)


def replaced(part: P, /, **changes: Any) -> P:
    """A copy of ``part`` with ``changes`` to its attributes. Parts never change: other decodes may use them."""
    new = copy(part)
    vars(new).update(changes)
    return new
