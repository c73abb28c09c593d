"""Options of samplers that do not go together: one sentence with the option, its value, the rule and the way out.

Bounds of numbers and words that are no choice: ``tests/compose/test_option_bounds.py``."""

from __future__ import annotations

from typing import Any

import pytest

from dllm import UserError, part

# sampler: options that are refused, and what the sentence says (a pattern)
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "bacd": [({"lower": 0.95}, "sampler.lower=0.95 must not exceed sampler.upper=0.9")],
    "localleap": [
        ({"relaxed_threshold": 0.95}, "sampler.relaxed_threshold=0.95 must not exceed sampler.threshold=0.9"),
        ({"threshold": [0.9, 0.8], "relaxed_threshold": 0.85}, "must not exceed sampler.threshold"),
    ],
    "order": [({"positions": "rnd"}, "left_to_right or a list"), ({"positions": [0, 0]}, "position twice")],
    "prophet": [
        ({"thresholds": [1, 2]}, "sampler.thresholds needs 3 numbers"),
        ({"region": "offset"}, "needs sampler.start"),
        ({"region": "offset", "start": 1, "length": 0}, "sampler.length=0 must be at least 1"),
        ({"region": "anchor"}, "needs sampler.anchor_text"),
        ({"breakpoints": [0.3, 1.7]}, "sampler.breakpoints=.* must lie in"),
    ],
    "static": [({"score": "entrophy"}, "Did you mean 'entropy'")],
}
CASES = [(name, options, words) for name, rows in REFUSED.items() for options, words in rows]


@pytest.mark.parametrize(("name", "options", "words"), CASES, ids=[f"{name}-{options}" for name, options, _ in CASES])
def test_an_option_outside_its_range_is_a_sentence(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        part("sampler", name, **options)
