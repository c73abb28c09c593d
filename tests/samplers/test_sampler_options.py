"""Options of samplers outside their range: one sentence with the option, its value, the rule and the way out."""

from __future__ import annotations

from typing import Any

import pytest

from dllm import UserError, part

# sampler: options that are refused, and what the sentence says (a pattern)
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "adas": [({"weight": -1.0}, r"^sampler\.weight=-1\.0 must lie in .* 0 is the inner rule")],
    "bacd": [
        ({"lower": 0.95}, "sampler.lower=0.95 must not exceed sampler.upper=0.9"),
        ({"upper": 1.1}, "sampler.upper=1.1 must lie in"),
        ({"history": "row"}, "sampler.history='row' must be one of block, sequence"),
    ],
    "credit": [({"beta": 1.5}, r"sampler\.beta=1\.5 must lie in \[0, 1\]")],
    "d3llm": [({"form": "d2f"}, r"sampler\.form='d2f'"), ({"threshold": -1.0}, r"sampler\.threshold=-1\.0 must")],
    "dparallel": [({"threshold": -0.5}, r"sampler\.threshold=-0\.5 must")],
    "dus": [({"base": 1}, r"sampler\.base=1 must be at least 2")],
    "easing": [
        ({"alpha": 1.5}, r"sampler.alpha=1.5 must lie in \[0, 1\]. 0 is a fixed threshold"),
        ({"threshold": -1.0}, r"sampler.threshold=-1.0 must lie in \[0, 1\]"),
        ({"suffix_window": -1}, "sampler.suffix_window=-1 must be at least 0. It counts columns"),
    ],
    "eb": [({"gamma": -1.0}, r"sampler\.gamma=-1\.0 must")],
    "entropy_distance": [({name: -0.1}, rf"sampler\.{name}=-0\.1 must be at least 0\. 0 is")
                         for name in ("threshold", "penalty")],
    "ete": [
        ({"explore_position": "middle"}, "sampler.explore_position='middle' must be one of entropy"),
        ({"cross_threshold": 2.0}, "sampler.cross_threshold=2.0 must lie in"),
        ({"explore_width": 0}, "sampler.explore_width=0 must lie in"),
        ({"lookahead_blocks": -1}, "sampler.lookahead_blocks=-1 must"),
    ],
    "factor": [({"factor": -1.0}, r"sampler\.factor=-1\.0 must")],
    "frechet": [({"margin": one}, rf"sampler\.margin={one} must lie in \[0, 1\]\. 1 is one token")
                for one in (-0.1, 1.1)],
    "freedave": [({"draft_steps": 0}, r"sampler\.draft_steps=0 must be at least 1")],
    "frontier": [({"width": one}, rf"sampler\.width={one} must be at least 1\. It counts masks") for one in (0, -3)],
    "klass": [({"history": 0}, "sampler.history=0 must be at least 1"), ({"kl": -1.0}, "sampler.kl=-1.0 must")],
    "localleap": [
        ({"relaxed_threshold": 0.95}, "sampler.relaxed_threshold=0.95 must not exceed sampler.threshold=0.9"),
        ({"radius": -1}, "sampler.radius=-1 must"),
        ({"threshold": 1.2}, "sampler.threshold=1.2 must lie in"),
    ],
    "lopa": [
        ({"score": "neg_entropy"}, "sampler.score='neg_entropy' must be one of confidence, margin, entropy"),
        ({"branching_factor": -1}, r"sampler.branching_factor=-1 must lie in \[0, 64\]. 0 and 1 mean no lookahead"),
        ({"share": 1.5}, r"sampler.share=1.5 must lie in \[0, 1\]"),
        ({"alpha": -0.1}, r"sampler.alpha=-0.1 must lie in \[0, 1\]"),
        ({"threshold": 2.0}, r"sampler.threshold=2.0 must lie in \[0, 1\]"),
    ],
    "order": [
        ({"positions": "rnd"}, "must be random, left_to_right or a list"), ({"positions": [0, 0]}, "position twice"),
    ],
    "pc": [({"decay": -1.0}, r"sampler\.decay=-1\.0 must")],
    "prior": [({"sigma": one}, rf"sampler\.sigma={one} must be at least 0\.1\. It counts columns")
              for one in (0.0, -1.0)],
    "prophet": [
        ({"thresholds": [1, 2]}, "sampler.thresholds needs 3 numbers"),
        ({"region": "there"}, "sampler.region='there' must be one of"),
        ({"region": "offset"}, "needs sampler.start"),
        ({"region": "offset", "start": 1, "length": 0}, "sampler.length=0 must be at least 1"),
        ({"region": "anchor"}, "needs sampler.anchor_text"),
        ({"region": "anchor", "anchor_text": "x", "anchor_position": -1}, "anchor_position=-1 must be at least 0"),
        ({"breakpoints": [0.3, 1.7]}, "sampler.breakpoints=.* must lie in"),
    ],
    "saber": [
        ({"minimum": 0}, "sampler.minimum=0 must be at least 1"),
        ({"backtrack": 0}, "sampler.backtrack=0 must be at least 1"),
    ],
    "scout": [
        ({"candidates": 0}, r"sampler\.candidates=0 must be at least 1"),
        ({"top_k": 0}, r"sampler\.top_k=0 must be at least 1"),
        ({"min_probability": 2.0}, r"sampler\.min_probability=2\.0 must lie in \[0"),
    ],
    "static": [
        ({"steps": 0}, "sampler.steps=0 must be at least 1"), ({"score": "entrophy"}, "Did you mean 'entropy'"),
    ],
}  # fmt: skip
CASES = [(name, options, words) for name, rows in REFUSED.items() for options, words in rows]


@pytest.mark.parametrize(("name", "options", "words"), CASES, ids=[f"{name}-{options}" for name, options, _ in CASES])
def test_an_option_outside_its_range_is_a_sentence(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        part("sampler", name, **options)
