"""What all rows share is given by the part, on the device once, and read by every call; no row has a copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import model, requests
from torch import Tensor, nn

from dllm.parts import (
    NOTHING_SHARED,
    Confidence,
    Fixed,
    FullLength,
    Parts,
    Prefix,
    Prophet,
    Sampler,
    Shared,
    State,
    Step,
    UserError,
    View,
    forward_of,
    results,
    turns_of_rows,
)

CPU = torch.device("cpu")


class Judged(Sampler):
    """Commits what a network of its own finds likely, and the best."""

    traits = Confidence.traits.but(ranks_by="")

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)).double()

    def shared(self) -> dict[str, nn.Module | Tensor]:
        return {"network": self.network, "bar": torch.tensor(0.2)}

    def step(self, view: View, state: State) -> Step:
        found = view.shared.module("network")(view.scores.confidence[..., None])[..., 0]
        accepted = view.open & (found > view.shared.tensor("bar"))
        best = Confidence(1.0).step(view, {"threshold": torch.ones(len(view.open))})
        return view.step(accepted | best.commit, accepted=accepted)


def parts(rule: Sampler) -> Parts:
    return Parts(rule, Fixed(8), Prefix(), FullLength())


def test_the_network_of_a_part_is_copied_where_it_must_be_changed_and_never_by_row() -> None:
    rule = Judged()
    forward = forward_of(model("tiny-llada"), parts(rule), parts(rule).sampling)
    found = forward.shared.module("network")
    assert rule.network.training and not found.training and found is not rule.network
    rule.network.eval()
    assert Shared.of(rule.shared(), CPU, "").module("network") is rule.network
    batch = list(requests())
    seen = {id(turn.view.shared) for turn in turns_of_rows(model("tiny-llada"), parts(rule), batch)}
    assert len(seen) == 1  # rows leave after different numbers of turns


@pytest.mark.parametrize("wrap", [lambda rule: rule, lambda rule: Prophet(rule, thresholds=[1e9] * 3)], ids=["", "in"])
def test_a_rule_reads_its_network_alone_and_inside_another(wrap: Any) -> None:
    network, batch = model("tiny-llada"), list(requests())
    own = results(network, parts(Judged()), batch)
    assert [one.canvas for one in results(network, parts(wrap(Judged())), batch)] == [one.canvas for one in own]
    assert own != results(network, parts(Confidence(1.0)), batch)
    for row, one in enumerate(batch):
        assert results(network, parts(wrap(Judged())), [one])[0].canvas == own[row].canvas


def test_names_inside_are_the_rules_own() -> None:
    pair = Prophet(Prophet(Judged()))
    assert set(pair.shared()) == {
        "bars",
        "breaks",
        "inner.bars",
        "inner.breaks",
        "inner.inner.network",
        "inner.inner.bar",
    }
    inside = Shared.of(pair.shared(), CPU, "").inside("inner.").inside("inner.")
    assert inside.tensor("bar") == 0.2 and inside.inside("inner.") is NOTHING_SHARED


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1], "^sampler=x: shared\\(\\) returned list, and must return a dict by name.$"),
        (
            {"table": [1, 2]},
            "^sampler=x: shared\\(\\)\\['table'\\] is list, and must be a tensor or a torch.nn.Module.$",
        ),
    ],
    ids=["list", "entry"],
)
def test_what_cannot_be_shared_is_refused(given: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Shared.of(given, CPU, "sampler=x")


def test_a_name_is_read_as_what_it_is() -> None:
    shared = Shared({"network": nn.Linear(1, 1), "bar": torch.zeros(())})
    with pytest.raises(TypeError, match="'network' is a Linear: read it by module"):
        shared.tensor("network")
    with pytest.raises(TypeError, match="'bar' is a Tensor: read it by tensor"):
        shared.module("bar")
    with pytest.raises(KeyError):
        shared.tensor("other")
