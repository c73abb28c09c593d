"""The parameters of a recorded case: which of them a mapping reads, and which mean nothing.

A parameter that is not read is a failure: else a mapping could leave one out and nobody would see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

QUOTAS = "the quotas that follow from it are recorded"
# Values under which a parameter does nothing, in every method.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0.0, None), "cfg_scale": (0.0,), "remasking": ("low_confidence", "none"), "alg_temp": (None, 0.0),
    "mask_id": (60,), "eos_id": (61,), "eos_token_id": (61,), "token_per_step": (1,), "eager_acceptance": (False,),
    "verify": (True,), "slide_window": (True,), "top_p": (None, 1.0), "top_k": (None,), "eos_penalty": (0.0,),
    "mask_bias": (0.0,),
}  # fmt: skip
# Parameters that the published code does not use, where a mapping does not read them, and why.
UNUSED: Mapping[str, Mapping[str, str]] = {
    "a2d_bd3lm": dict.fromkeys(("steps", "steps_per_block"), QUOTAS), "a2d_mdlm": {"steps": QUOTAS},
    "d3llm": {"decoded_token_threshold": "no value up to 1 has an effect in the published code",
              "refresh_interval": "without a cache nothing is refreshed", "stale_mask": "a note on the case"},
    "dkv_greedy": {"remasking": "the order that was drawn is recorded"},
    "dllm_cache": {"num_transfer_tokens": "a threshold goes before it"},
    "dparallel": {"steps": "of divisibility alone"},
    "dsb": {"prefix_window": "without a cache there is none"},
    "dus": {"steps": "of divisibility alone"},
    "eb": {"steps": "a bound that no case reaches"},
    "entropy": {"per_step": "a threshold goes before it"},
    **dict.fromkeys(("fastdllm_dual", "fastdllm_prefix"),
                    dict.fromkeys(("eps", "steps"), "a threshold goes before it")),
    "focus": {"focus_alpha": "focus is off"},
    "freedave": {"draft_mode": "both ways decide the same; here drafts lie along the sequence, as in tree_attention"},
    "klass": {"alg": "the only one here", "steps": "a bound that no case of Dream reaches"},
    "learn2pd": {"accept_threshold": "there is no filter"},
    "nemotron": {"block_length": "one token a forward has no blocks", "threshold": "one token a forward has none"},
    "lopa": {"block_add_threshold": "one block is open", "decoded_token_threshold": "one block is open"},
    "prior": {"num_transfer_tokens": "a factor goes before it", "threshold": "a factor goes before it"},
    "rcr": {"form": "both programs have one rule"},
    "saber": {"alg": "Dream's program takes the probability whatever it says",
              "steps": "of the penalty's grid alone"},
    "sliding": {"factor": "a threshold goes before it"},
    "suffix": {"steps": "a threshold goes before it"} | dict.fromkeys(
        ("dropout", "k_sigma", "scale", "preserved_tokens", "window"), "the draws that it makes are recorded"),
    "tacg": {"alg": "the only one here", "steps": "a bound that no case reaches",
             "kl_threshold": "Dream's program does not test it here"},
    "window_diffusion": {"eps": "one token a step has no grid"},
}  # fmt: skip
# Numbers that are no parameter of a rule: tokens, what was drawn, how long the answer is.
CANVAS = frozenset({
    "gen_length", "max_new_tokens", "max_tokens", "max_token", "final_tokens", "temperature", "mask_id",
    "mask_token_id",
    "eos_id", "eos_token_id", "stop_token_ids", "delimiter_ids", "denoising_order", "marker", "insert",
    "end_think_token_id", "suppress_tokens", "order", "seed", "torch_seed", "new",
})  # fmt: skip


class Params(dict[str, Any]):
    """A case's parameters, which remember who was read."""

    def __init__(self, values: Mapping[str, Any], read: set[str] | None = None) -> None:
        super().__init__(values)
        self.read = set[str]() if read is None else read

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def more(self, **values: Any) -> Params:
        """The same with other values beside, which note in the same place."""
        return Params({**self, **values}, self.read)

    def unread(self) -> Iterator[str]:
        return (name for name in self if name not in self.read)


def left_out(method: str, params: Params) -> str | None:
    """A sentence about parameters that the mapping of a method neither reads nor may leave out."""
    known = UNUSED.get(method, {})
    wrong = [name for name in params.unread()
             if name not in known and dict.__getitem__(params, name) not in NEUTRAL.get(name, ())]  # fmt: skip
    values = ", ".join(f"{name}={dict.__getitem__(params, name)}" for name in wrong)
    return f"{values} would be left out: the mapping of {method} does not read it" if wrong else None
