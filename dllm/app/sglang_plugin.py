"""Our samplers in sglang's server: ``--dllm-algorithm dllm --dllm-algorithm-config FILE.yaml``.

sglang (0.5.23) finds ``register`` by the entry point ``sglang.srt.plugins`` in each of its processes. Its scheduler
runs the network on the open block of every request, and asks the algorithm what to write there; keys, blocks, stops and
streams are its own. B requests, k columns of a block, V tokens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from dllm.common.coerce import is_number, is_whole
from dllm.common.errors import UserError, nearest
from dllm.common.installing import not_installed
from dllm.common.noise import mixed
from dllm.compose.parts import part, part_of
from dllm.contract.setting import Sampling
from dllm.loop.given_logits import GivenLogits
from dllm.loop.rows import Rows
from dllm.serve.http.offered import choice_and_options, validated_options

ALGORITHM = "dllm"
ARCHITECTURES = ("LLaDA2MoeModelLM", "SDARForCausalLM", "SDARMoeForCausalLM")
YAML_KEYS = ("block_size", "sampler", "sampling")  # of the YAML file; the first is sglang's own
OPTIONS_OF_SAMPLING = ("temperature", "top_p", "top_k", "tempered", "suppress_mask")  # of ``Sampling``, what is served
OF_REQUEST = "request"  # ``sampling.temperature`` that each request names itself
REQUEST_FIELDS = ("sampler", "seed")  # what a request may choose, in custom_params["dllm"]
MOST_RULES = 256  # of requests, that are kept
# What a request may ask of sglang, and what it is where it asks nothing; an algorithm never sees these.
UNASKED = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
    "min_new_tokens": 0,
    "logit_bias": None,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
}
_log = logging.getLogger(__name__)


def register() -> None:
    """Make ``--dllm-algorithm dllm`` known in this process. Raises UserError where sglang has no such algorithms."""
    try:
        from sglang.srt.dllm.algorithm import algo_name_to_cls
    except ImportError as error:
        raise not_installed(f"--dllm-algorithm {ALGORITHM}", "sglang>=0.5.23", "sglang") from error
    algo_name_to_cls[ALGORITHM] = algorithm_class()


def algorithm_class() -> type[Any]:
    """The class that sglang makes from its settings."""
    from sglang.srt.dllm.algorithm.base import DllmAlgorithm

    class Algorithm(DllmAlgorithm):  # type: ignore[misc]
        """One denoising loop's samplers."""

        supported_architectures = ARCHITECTURES
        served: ServedBlocks | None = None  # of this process: sglang asks the class whether a request is served

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.blocks = ServedBlocks.of(config.algorithm_config or {}, config.mask_id, config.block_size)
            type(self).served = self.blocks

        def max_steps(self, block_size: int) -> int:
            return self.blocks.max_steps

        def init_step_state(self, forward_batch: Any) -> list[OpenBlock]:
            return self.blocks.opened(forward_batch, self._prompt_mask(forward_batch))

        def step(self, forward_batch: Any, full_logits: Tensor, states: list[OpenBlock]) -> list[bool]:
            return self.blocks.step(forward_batch.input_ids, full_logits, states)

        @classmethod
        def validate_request(cls, req: Any) -> str | None:
            return request_refusal(req, cls.served)

    return Algorithm


@dataclass
class OpenBlock:
    """The block of a request, which sglang hands back in every round until it is done."""

    rule: GivenLogits  # what decides in it
    rows: Rows  # blocks that were decided together, this one among them
    index: int  # its place there
    done: bool  # nothing is left to decide


@dataclass(frozen=True)
class RequestChoice:
    sampler: str = ""  # the rule and its options, as JSON; empty: the server's
    seed: int = 0  # of its draws


class ServedBlocks:
    """The rules that a server decides by: its own, and those that requests name."""

    def __init__(self, sampler: Any, sampling: Sampling, per_request: bool, mask_id: int, length: int) -> None:
        """per_request: each request's temperature counts. Raises UserError as ``GivenLogits``."""
        self.sampling, self.per_request, self.mask_id, self.length = sampling, per_request, mask_id, length
        self.rules = {"": GivenLogits(part_of("sampler", sampler), sampling, mask_id, length)}
        if not per_request:
            _log.warning(
                "requests' temperature, top_p and top_k have no effect; sampling.temperature: request serves "
                "the first of them"
            )

    @staticmethod
    def of(config: Mapping[str, Any], mask_id: int, length: int) -> ServedBlocks:
        """From the YAML file. Raises UserError for keys and values that it cannot have."""
        for key in config:
            if key not in YAML_KEYS:
                raise UserError(
                    f"{key}: {ALGORITHM}'s YAML lacks this key; it has {', '.join(YAML_KEYS)}.{nearest(key, YAML_KEYS)}"
                )
        sampling = config.get("sampling") or {}
        if not isinstance(sampling, Mapping):
            raise UserError(f"sampling={sampling!r} must be a mapping, such as {{temperature: 0}}.")
        for key in sampling:
            if key not in OPTIONS_OF_SAMPLING:
                raise UserError(
                    f"sampling.{key} is not served through sglang; {', '.join(OPTIONS_OF_SAMPLING)} are."
                    f"{nearest(key, OPTIONS_OF_SAMPLING)}"
                )
        per_request = sampling.get("temperature") == OF_REQUEST
        options = {**sampling, "temperature": 1.0} if per_request else dict(sampling)
        if not is_number(options.get("temperature", 0.0)):
            raise UserError(f"sampling.temperature={options['temperature']!r} must be a number, or {OF_REQUEST}.")
        return ServedBlocks(config.get("sampler", "confidence"), Sampling(**options), per_request, mask_id, length)

    @property
    def max_steps(self) -> int:
        """The most steps of a block: sglang sends what there is after these, masks included, so they must suffice."""
        return 2 + self.length * max(1 + rule.parts.sampler.traits.patience for rule in self.rules.values())

    def opened(self, batch: Any, prompt: Tensor) -> list[OpenBlock]:
        """The blocks of a batch before their first step. prompt [B, k]: which columns are text."""
        tokens, rows = batch.input_ids.view(prompt.shape), len(prompt)
        info = batch.sampling_info
        choices = [request_choice(params) for params in (getattr(info, "custom_params", None) or [None] * rows)]
        seeds = torch.tensor([choice.seed for choice in choices], device=tokens.device)
        seeds = mixed(seeds, batch.positions.view(prompt.shape)[:, 0])  # the draws of each block are its own
        warmth = self._temperatures(info, seeds)
        blocks: dict[int, OpenBlock] = {}
        for word in dict.fromkeys(choice.sampler for choice in choices):
            members = [row for row, choice in enumerate(choices) if choice.sampler == word]
            rule, at = self.rule(word), torch.tensor(members, device=tokens.device)
            rows_of_rule = rule.opened(tokens[at], prompt[at], seeds[at], warmth[at])
            is_done = rows_of_rule.blocks.done.tolist()
            blocks |= {row: OpenBlock(rule, rows_of_rule, place, is_done[place]) for place, row in enumerate(members)}
        return [blocks[row] for row in range(rows)]

    def rule(self, word: str) -> GivenLogits:
        """The rule of a ``RequestChoice``. Raises UserError for one that is not served."""
        if word not in self.rules:
            rule_of_word = GivenLogits(offered_part(json.loads(word)), self.sampling, self.mask_id, self.length)
            if len(self.rules) > MOST_RULES:  # the first is the server's own
                del self.rules[list(self.rules)[1]]
            self.rules[word] = rule_of_word
        return self.rules[word]

    def _temperatures(self, info: Any, like: Tensor) -> Tensor:
        """Of each request [B]. sglang writes greedy decoding as ``top_k`` 1."""
        if not self.per_request:
            return like.new_full(like.shape, float(self.sampling.temperature), dtype=torch.float64)  # type: ignore[arg-type]
        temperatures = info.temperatures.view(-1).to(like.device).double()
        return temperatures.masked_fill(info.top_ks.view(-1).to(like.device) == 1, 0.0)

    def step(self, input_ids: Tensor, full_logits: Tensor, states: Sequence[OpenBlock]) -> list[bool]:
        """One decision for every block that has something to decide, written into ``input_ids`` [B k] in place.
        full_logits [B k, V]. Returns which blocks may be sent: those whose keys the forward has made from their last
        tokens."""
        ids, logits = input_ids.view(len(states), -1), full_logits.view(len(states), self.length, -1)
        is_sendable = [state.done for state in states]
        for rule, members, rows in gathered(states):
            at = torch.tensor(members, device=ids.device)
            rows, is_done, changed = rule.step(rows, logits if members == list(range(len(states))) else logits[at])
            ids.index_copy_(0, at, rows.candidates.tokens.to(ids.dtype))
            for place, row in enumerate(members):
                state = states[row]
                state.rows, state.index, state.done = rows, place, is_done[place]
                is_sendable[row] = is_done[place] and not changed[place]
        return is_sendable


def gathered(states: Sequence[OpenBlock]) -> Iterator[tuple[GivenLogits, list[int], Rows]]:
    """The blocks that are not done, by their rules: which of ``states``, and their rows in that order."""
    groups: dict[int, dict[int, list[int]]] = {}
    for number, state in enumerate(states):
        if not state.done:
            groups.setdefault(id(state.rule), {}).setdefault(id(state.rows), []).append(number)
    for batches in groups.values():
        members, batches_of_rule = list[int](), list[Rows]()
        for numbers in batches.values():
            numbers.sort(key=lambda number: states[number].index)
            rows, places = states[numbers[0]].rows, [states[number].index for number in numbers]
            batches_of_rule.append(rows if places == list(range(len(rows))) else rows.select(places))
            members += numbers
        yield states[members[0]].rule, members, reduce(Rows.join, batches_of_rule)


def request_choice(custom: Mapping[str, Any] | None) -> RequestChoice:
    """What a request's ``custom_params`` say under "dllm". Raises UserError for what is not offered."""
    fields = (custom or {}).get(ALGORITHM) or {}
    if not isinstance(fields, Mapping):
        raise UserError(f'custom_params["{ALGORITHM}"]={fields!r} must be a mapping of {", ".join(REQUEST_FIELDS)}.')
    for key in fields:
        if key not in REQUEST_FIELDS:
            raise UserError(
                f'custom_params["{ALGORITHM}"] has no {key!r}; it has {", ".join(REQUEST_FIELDS)}.'
                f"{nearest(key, REQUEST_FIELDS)}"
            )
    seed, sampler = fields.get("seed", 0), fields.get("sampler")
    if not is_whole(seed):
        raise UserError(f"seed={seed!r} must be a whole number.")
    return RequestChoice("" if sampler is None else json.dumps(sampler, sort_keys=True), int(seed))


def offered_part(config: Any) -> Any:
    """The sampler that a request names, if a server may offer it so."""
    choice, options = choice_and_options("sampler", config)
    return part("sampler", choice, **validated_options("sampler", choice, options))


def request_refusal(req: Any, served: ServedBlocks | None) -> str | None:
    """Why a request is refused, as a sentence; None: it is served. served: what it would be decided by (None: not
    known yet)."""
    options = [name for name, value in UNASKED.items() if (getattr(req.sampling_params, name, value) or value) != value]
    options += ["return_logprob"] * bool(getattr(req, "return_logprob", False))
    if options:
        return f"{options[0]} has no effect on --dllm-algorithm {ALGORITHM}. Drop it, or decode with dllm serve."
    try:
        choice = request_choice(getattr(req.sampling_params, "custom_params", None))
        if served is not None:
            served.rule(choice.sampler)
    except UserError as error:
        return str(error)
    return None
