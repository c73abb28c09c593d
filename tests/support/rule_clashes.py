"""What a rule itself is refused for in a setting."""

from __future__ import annotations

from dllm.parts import Sampler, Selection, Setting, refuse_clashes


def refuse_rule(setting: Setting, rule: Sampler) -> None:
    """Raise Refusal by the rows of the rule's own class."""
    refuse_clashes(Selection(setting, rule), ("sampler", rule, rule.clashes))
