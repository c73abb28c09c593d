"""What a cache takes from parts is what its forwards compute: traits against every forward of a decode.

Laws take their cases from what parts allow, so a cache that refuses too much would leave them unseen.
"""

from __future__ import annotations

import pytest

from dllm.parts import (
    TRIAL_OPTIONS,
    Cache,
    Confidence,
    FullLength,
    Need,
    Parts,
    Sampling,
    Selection,
    Setting,
    choices,
    first_clash,
    network,
    part,
    requests,
    turns_of_rows,
)

NEEDS = {
    "block": Need(),
    "suffix": Need("suffix"),
    "answer": Need("answer"),
    "committed": Need(committed=True),
    "at open": Need("answer", first_forward_only=True),
}
SHIFTED = {"dkv_prefill": "dream", "dkv_pd": "dream", "finished": "block_causal"}  # the model, where it is not llada
# Of no use to another rule, or (focus) for rules of one kind alone, which miss masks that leave.
OWN_SAMPLER = {"flash_verify", "linear_spec", "dkv_greedy", "span", "focus"}
# What a policy refuses although the forwards of these short answers compute it; those of others would not.
BY_CHANCE = {"delayed": {"answer"}, "entropy": {"committed"}, "window": {"committed"}}
DAILY = ("dkv_prefill", "dual")
NAMES = [
    pytest.param(name, marks=() if name in DAILY else pytest.mark.program)
    for name in sorted(set(choices("cache")) - OWN_SAMPLER)
]


class Probe(Confidence):
    """Reads everything, a position or two in each turn."""

    def needs(self) -> tuple[Need, ...]:
        return (Need("answer", committed=True), Need(committed=True))


def built(name: str) -> tuple[Cache, Parts, str]:
    policy = part("cache", name, **TRIAL_OPTIONS.get(("cache", name), {}))
    blocks = part("blocks", "sliding", block_length=4) if name == "sliding" else part("blocks", "fixed", block_length=4)
    parts = Parts(Probe(0.99), blocks, policy, FullLength(), Sampling())
    return policy, parts, SHIFTED.get(name, "llada")


def takes(policy: Cache, parts: Parts, kind: str, need: Need) -> bool:
    setting = Setting(network(kind).config, parts.blocks, None, parts.sampling)
    rule = type("Reads", (Confidence,), {"needs": lambda self: (need,)})()
    return first_clash(Selection(setting, rule, policy), [("cache", policy, policy.clashes)]) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_takes_what_its_forwards_compute(name: str) -> None:
    policy, parts, kind = built(name)
    computed = set(NEEDS)
    for turn in turns_of_rows(network(kind), parts, requests()[:2]):
        view = turn.view
        for words in list(computed):
            wanted = NEEDS[words].mask(view.canvas, view.blocks) & ~view.scores.scored
            if NEEDS[words].first_forward_only:
                wanted &= (view.blocks.forwards == 1)[:, None]
            computed -= {words} if bool(wanted.any()) else set()
    taken = {words for words, need in NEEDS.items() if takes(policy, parts, kind, need)}
    assert taken <= computed and computed - taken - {"at open"} == BY_CHANCE.get(name, set())
