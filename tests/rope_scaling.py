"""Compare the rotary tables of recorded configs with ours: ``python tests/rope_scaling.py FILE``.

FILE holds ``cases``, configs with the float64 frequencies and the attention factor that transformers makes of them, and
``ntk``, factors of a base for longer texts. The last line is "N of N tables equal"; the exit code is 0 or 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from dllm.models.network import rope, rope_ntk
from dllm.parts import Scaling, plain_frequencies

TOLERANCE = 1e-12  # relative


def table(config: dict[str, Any], length: int | None) -> tuple[list[float], float]:
    """The frequencies and the attention factor of a config, for a sequence of this length."""
    read = rope.flat(config, "config.json")
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta, dim = float(read.get("rope_theta") or 1e4), int(head * (read.get("partial_rotary_factor") or 1.0))
    scaling: Scaling | None = rope.scaling_of(read, "config.json", theta, dim, config["max_position_embeddings"])
    if scaling is None:
        return plain_frequencies(theta, dim).tolist(), 1.0
    return scaling.frequencies(theta, dim, torch.tensor([length or 1]))[0].tolist(), scaling.attention


def near(found: float, expected: float) -> bool:
    return abs(found - expected) <= TOLERANCE * max(abs(expected), 1e-300)


def compared(content: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The name of each table and whether it is equal."""
    for number, case in enumerate(content["cases"]):
        found, attention = table(case["config"], case["seq_len"])
        same = len(found) == len(case["inv_freq"]) and all(map(near, found, case["inv_freq"]))
        yield f"case {number} ({case['kind']})", same and near(attention, case["attention_factor"])
    for number, case in enumerate(content["ntk"]):
        sizes = case["theta"], case["head_dim"], case["trained"]
        factor = rope_ntk.factor_for(*sizes, case["target"], case["doubled"])
        same = rope_ntk.features(*sizes, case["doubled"]) == case["critical"] and near(factor, case["factor"])
        # a factor that was rounded reaches at least the columns that it was made for
        same = (
            same
            and rope_ntk.reach_of(*sizes, case.get("published_factor", factor * 1.0001), case["doubled"])
            >= case["target"]
        )
        yield f"ntk {number} ({case['target']} columns)", same and near(case["theta"] * factor, case["new_theta"])


def main() -> int:
    results = list(compared(json.loads(Path(sys.argv[1]).read_text())))
    for name, same in results:
        if not same:
            print(f"{name} differs")
    equal = sum(same for _, same in results)
    print(f"{equal} of {len(results)} tables equal")
    return 0 if equal == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
