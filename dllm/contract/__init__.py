"""What parts exchange. ``from dllm.contract import Need, Step, View``."""

from dllm.contract.types import (
    REGIONS,
    BlockState,
    ForwardCost,
    ForwardPlan,
    Ledger,
    Need,
    Scores,
    State,
    Step,
    Turn,
    View,
)

__all__ = [
    "BlockState",
    "ForwardCost",
    "ForwardPlan",
    "Ledger",
    "Need",
    "REGIONS",
    "Scores",
    "State",
    "Step",
    "Turn",
    "View",
]
