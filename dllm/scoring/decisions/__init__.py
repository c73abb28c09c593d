"""Questions answered by probabilities: a slot on a masked canvas is read, and nothing is decoded.

>>> from dllm.scoring.decisions import Choice, Predicate, Score
>>> Choice(["Cairo", "Lima"], template='"town": "{slot}"') == Choice(["Cairo", "Lima"], template='"town": "{slot}"')
True
"""

from __future__ import annotations

from dllm.scoring.decisions.questions import ChoiceQuestion as Choice
from dllm.scoring.decisions.questions import PredicateQuestion as Predicate
from dllm.scoring.decisions.questions import Question
from dllm.scoring.decisions.questions import ScoreQuestion as Score
from dllm.scoring.decisions.results import Decisions
from dllm.scoring.decisions.results import SlotDecision as Decision

__all__ = ["Choice", "Decision", "Decisions", "Predicate", "Question", "Score"]
