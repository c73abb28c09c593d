"""What a rule is, found out by trying it: of ours as they say, of a user's own as they do."""

from __future__ import annotations

import pytest
import torch
from harness import build
from own_parts import Above, Alternate, Calmest, Drawing, Steady, Surest, Twice

from dllm import UserError
from dllm.compose.parts import choices
from dllm.contract.process import Uniform
from dllm.contract.setting import replaced
from dllm.contract.traits import SamplerTraits
from dllm.samplers.adas import Adas
from dllm.samplers.base import Sampler
from dllm.samplers.confidence import Confidence
from dllm.samplers.credit import Credit
from dllm.samplers.dream import Dream
from dllm.samplers.ete import ETE
from dllm.samplers.freedave import FreeDave
from dllm.samplers.frontier import Frontier
from dllm.samplers.prior import Prior
from dllm.samplers.prophet import Prophet
from dllm.samplers.scout import Scout
from dllm.samplers.spaced import Spaced
from dllm.samplers.static import Static
from dllm.samplers.trial import goes_by, is_free_of_scale, puts_last, repeats_itself
from dllm.samplers.wrapper import Wrapper

# What each rule is, by its definition: whether it goes by confidence alone, puts -1 last, repeats itself, and whether
# it compares confidences with nothing but each other.
OWN: dict[type[Sampler], tuple[bool, bool, bool, bool]] = {
    Above: (True, True, True, False), Surest: (True, True, True, True), Alternate: (False, False, True, True),
    Calmest: (False, False, True, True), Drawing: (False, False, False, True), Steady: (False, False, True, True),
}  # fmt: skip


@pytest.mark.parametrize("kind", OWN)
def test_a_rule_is_what_it_does(kind: type[Sampler]) -> None:
    rule = kind()
    assert (goes_by(rule, None), puts_last(rule), repeats_itself(rule), is_free_of_scale(rule)) == OWN[kind]
    assert goes_by(Calmest(), "entropy") and rule.traits.stateless == (kind is not Steady)
    assert (rule.by_confidence, rule.deterministic) == OWN[kind][1:3]


@pytest.mark.parametrize("name", choices("sampler"))
def test_what_our_rules_say_of_themselves_is_so(name: str) -> None:
    """Saying less than a rule does is no harm; saying more would be."""
    rule = build("sampler", name)
    rule = replaced(rule, process=Uniform(16)) if rule.traits.renoises else rule
    said = {trait for kind in type(rule).__mro__[:-2] for trait in vars(kind)} | vars(rule).keys()
    if name == "learn2pd" or isinstance(rule, Wrapper):  # it wants a filter; they say what is said inside
        return
    assert "by_confidence" not in said or not rule.by_confidence or puts_last(rule)
    assert "deterministic" not in said or not rule.deterministic or repeats_itself(rule)


def test_random_rules_do_not_repeat_themselves() -> None:
    assert not Static(score="random").deterministic and not Dream("origin").deterministic
    assert build("sampler", "order").deterministic  # drawn once for each row


def test_a_trial_draws_nothing_from_the_users_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert not repeats_itself(Drawing())
    assert torch.equal(torch.rand(4), expected)


def test_a_rule_that_cannot_be_tried_is_taken_for_nothing() -> None:
    class Wants(Sampler):
        traits = SamplerTraits(stateless=False)

        def start(self, canvas, blocks):  # type: ignore[no-untyped-def]
            raise UserError("sampler.file=x is no file.")

    assert not Wants().deterministic and not Wants().by_confidence


# A user's rule in every wrapper: taken, or refused for the reason that is true of it.
TAKEN, STATE, STATS = "", "must be deterministic and carry no state", "changes token and confidence only"
INSIDE: dict[type[Sampler], dict[str, str]] = {
    Above: {"prior": "compares it with a threshold"},
    Surest: {},
    Calmest: {"credit": STATS, "prior": "changes confidences only"},
    Alternate: {"adas": "goes by something else", "prior": "changes confidences only"},
    Drawing: {"adas": "goes by something else", "prior": "changes confidences only", "freedave": STATE, "scout": STATE},
    Steady: {"adas": "goes by something else", "prior": "changes confidences only", "freedave": STATE, "scout": STATE},
}
WRAPPERS = {"adas": Adas, "credit": Credit, "freedave": FreeDave, "frontier": Frontier, "prior": Prior,
            "prophet": Prophet, "scout": Scout, "spaced": Spaced}  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", INSIDE)
def test_a_users_rule_in_every_wrapper(kind: type[Sampler], wrapper: str) -> None:
    words = INSIDE[kind].get(wrapper, TAKEN)
    if words:
        with pytest.raises(UserError, match=f"^sampler={wrapper} .*sampler/inner={kind.__name__}\\b"):
            WRAPPERS[wrapper](kind())
        with pytest.raises(UserError, match=words):
            WRAPPERS[wrapper](kind())
        return
    assert isinstance(WRAPPERS[wrapper](kind()), Wrapper)


def test_the_tests_know_every_wrapper() -> None:
    from dllm.compose.parts import wrappers

    assert set(wrappers()) == set(WRAPPERS)


def test_a_wrapper_of_the_users_passes_on_what_is_inside() -> None:
    pair = Twice(ETE())
    assert pair.traits.branches and pair.traits.lookahead == 1 and not pair.traits.stateless
    assert Twice(Twice(Drawing())).deterministic is False and Twice(Confidence()).by_confidence
