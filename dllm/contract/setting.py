"""What is known before weights are read: the model, lengths, and how a token is proposed. Parts check themselves
against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from dllm.contract.canvas import Canvas, PerRequest, Request
from dllm.contract.needs import Need, readouts_of
from dllm.contract.readouts import Readout
from dllm.contract.traits import Rule, Schedule
from dllm.errors import UserError, in_choices, in_range, name_of
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

    def check_process(self, sampler: Rule) -> None:
        """Raise UserError for a rule of masks under a model of noise, for one of noise under a model of masks, for a
        temperature beside the rule's own, and for blocks that are not the canvas of the model."""
        name, temperature = f"sampler={name_of(sampler)}", self.sampling.temperature
        if self.model.process == "uniform" and not sampler.traits.renoises:
            raise UserError(
                f"{name} decides masks for good, but {self.model.architecture} was trained to undo noise: it has no "
                "mask, and what a position shows is decided again in every forward. Use sampler=renoise."
            )
        if self.model.process != "uniform" and sampler.traits.renoises:
            raise UserError(
                f"{name} undoes noise, but {self.model.architecture} was trained to fill masks. Use sampler=confidence."
            )
        if sampler.traits.renoises and not (isinstance(temperature, int | float) and temperature == 0):
            raise UserError(
                f"sampling.temperature={temperature}: {name} sets the temperature of every forward itself. Set "
                "sampling.temperature=0, and the options of the sampler."
            )
        canvas, schedule = self.model.attention.block, self.blocks
        whole = schedule.fixed_length == canvas and schedule.traits.one_at_a_time and not schedule.traits.rolls_back
        if sampler.traits.renoises and canvas is not None and not whole:
            own = "" if schedule.fixed_length is None else f" blocks.block_length={schedule.fixed_length}"
            raise UserError(
                f"blocks={name_of(schedule)}{own}: {self.model.architecture} denoises canvases of {canvas} columns, "
                f"each whole and one after the other. Use blocks=fixed blocks.block_length={canvas}."
            )

    def check_attention(self, sampler: Rule, needs: Sequence[Need]) -> None:
        """Raise UserError for parts that read what a model of this attention does not tell."""
        kind, name = self.model.attention, f"sampler={name_of(sampler)}"
        called = f"this model's attention is {kind.is_called}"
        if kind.causal and self.sampling.guidance:
            raise UserError(
                f"sampling.guidance={self.sampling.guidance:g} needs a prompt of masks, which means nothing where, as "
                f"here, {called}. Set sampling.guidance=0."
            )
        readouts = readouts_of(needs)
        if kind.causal and any(read.extra_queries for read in readouts):
            raise UserError(
                f"{name} computes extra queries that stand in for committed tokens, but {called}. Use "
                "sampler=confidence."
            )
        if kind.sealed and any(one.reads_attention or one.extra_queries or one.reads_hidden for one in readouts):
            raise UserError(
                f"{name} reads attention or hidden states, or computes extra queries beside the canvas, but this model "
                f"is {kind.is_called}. Use sampler=confidence."
            )
        if not kind.judges and any(need.committed for need in needs):
            raise UserError(f"{name} scores committed tokens, but {called}, and it predicts masks alone. Use "
                            "sampler=confidence.")  # fmt: skip
        if kind.everywhere:
            return
        if sampler.traits.edits:
            raise UserError(f"{name} goes on with a block that is full, but {called}, and a full block is predicted no "
                            "more. Use sampler=confidence.")  # fmt: skip
        if sampler.traits.branches or sampler.traits.lookahead:
            raise UserError(f"{name} tries tokens of several blocks, but {called}, and it predicts one block at a time."
                            " Use sampler=confidence.")  # fmt: skip

    def check_regions(self, needs: Mapping[str, tuple[str, Sequence[Need]]]) -> None:
        """Raise UserError for parts that read what is after the block that a model predicts alone. needs: by the part,
        the choice that reads nothing there, and what the part reads."""
        kind = self.model.attention
        ahead = {part: other for part, (other, own) in needs.items()
                 if any(need.region not in ("block", "before") for need in own)}  # fmt: skip
        if ahead and not kind.everywhere:
            raise UserError(
                f"{' and '.join(ahead)} {'read' if len(ahead) > 1 else 'reads'} what is after the open block, but this "
                f"model's attention is {kind.is_called}, and it predicts one block at a time. Use "
                f"{' and '.join(ahead.values())}."
            )

    def check_layers(self, sampler: Rule, readouts: Sequence[Readout[Any]]) -> None:
        """Raise UserError for readouts of layers that this model does not have, or does not show."""
        count = self.model.layers
        for one in readouts:
            if one.layer is None:
                continue
            if self.model.carries:
                raise UserError(
                    f"sampler={name_of(sampler)} reads {one}, but {self.model.architecture} runs its layers in two "
                    "passes, and shows what leaves the last one only. Use HiddenState()."
                )
            if not -count <= one.layer < count:
                raise UserError(
                    f"sampler={name_of(sampler)} reads {one}, and this model has layers 0 to {count - 1}, or "
                    f"-{count} to -1 from the last. Name one of these."
                )

    def require_steps(self, name: str, steps: int | None) -> None:
        """Raise UserError if ``steps`` do not divide evenly over the blocks (the published loops assert the same)."""
        if steps is None or self.gen_length is None:
            return
        count = self._block_count()
        if count is None:
            raise UserError(
                f"{name}={steps} cannot be split over blocks whose number is known only after decoding. "
                f"Use {name}=null (one token per step) or blocks=fixed."
            )
        if steps < count:
            raise UserError(f"{name}={steps} is too few for {count} blocks. Use a multiple of {count}.")
        if steps % count:
            raise UserError(
                f"{name}={steps} does not divide evenly over the {count} blocks of gen_length={self.gen_length}. "
                f"Use a multiple of {count}."
            )

    def require_layers(self, name: str, layers: int | None) -> None:
        """Raise UserError if the model has fewer than ``layers`` layers to read attention from."""
        in_range(name, layers, 1, advice="It counts layers from the last one; {null} is the last quarter of them.")
        if layers is not None and layers > self.model.layers:
            raise UserError(
                f"{name}={layers} is more than the {self.model.layers} layers of this model. Use a smaller number, or "
                f"{name}=null for the last quarter of them."
            )

    def _block_count(self) -> int | None:
        length, block = self.gen_length or 0, self.blocks.fixed_length
        if block is not None and length % block:
            raise UserError(
                f"gen_length={length} must be a multiple of blocks.block_length={block} if the number of steps is "
                "fixed. Change one of them, or set the steps to null."
            )
        count = self.blocks.count(Canvas.of([Request.answer([0], length, 0)], 0))
        return None if count is None else int(count[0])


def replaced(part: P, **changes: Any) -> P:
    """A copy of ``part`` with ``changes`` to its attributes. Parts never change: other decodes may use them."""
    new = copy(part)
    vars(new).update(changes)
    return new
