"""What parts exchange. ``from dllm.contract import Need, Step, View``."""

from dllm.contract.needs import REGIONS, Need
from dllm.contract.setting import Setting, replaced
from dllm.contract.step import State, Step
from dllm.contract.traits import BlocksTraits, CacheTraits, EosTraits, SamplerTraits
from dllm.contract.turn import Ledger, Turn
from dllm.contract.types import BlockState, ForwardCost, ForwardPlan, Scores, View

__all__ = [
    "BlockState",
    "BlocksTraits",
    "CacheTraits",
    "EosTraits",
    "ForwardCost",
    "ForwardPlan",
    "Ledger",
    "Need",
    "REGIONS",
    "SamplerTraits",
    "Scores",
    "Setting",
    "State",
    "Step",
    "Turn",
    "View",
    "replaced",
]
