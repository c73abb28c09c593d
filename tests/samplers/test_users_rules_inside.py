"""A user's rule in every wrapper: taken, or refused for the reason that is true of it."""

from __future__ import annotations

import pytest
from own_parts import Above, Alternate, Calmest, Drawing, Steady, Surest

from dllm import UserError
from dllm.compose.parts import wrappers
from dllm.samplers.adas import Adas
from dllm.samplers.base import Sampler
from dllm.samplers.credit import Credit
from dllm.samplers.freedave import FreeDave
from dllm.samplers.frontier import Frontier
from dllm.samplers.prior import Prior
from dllm.samplers.prophet import Prophet
from dllm.samplers.scout import Scout
from dllm.samplers.spaced import Spaced
from dllm.samplers.wrapper import Wrapper

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
        with pytest.raises(UserError, match=f"^(?=.*{words})sampler={wrapper} .*sampler/inner={kind.__name__}\\b"):
            WRAPPERS[wrapper](kind())
        return
    assert isinstance(WRAPPERS[wrapper](kind()), Wrapper)


def test_the_tests_know_every_wrapper() -> None:
    assert set(wrappers()) == set(WRAPPERS)
