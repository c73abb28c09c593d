"""Addition digit by digit from the right, carries written down."""

from __future__ import annotations

from dllm.tasks.mini.items import Draw, Make, Sample

DIGITS = (4, 6)


def steps(one: int, other: int) -> str:
    """A line for each digit, then the sum: ``7+5+0=12, carry 1``."""
    carry, lines = 0, []
    for a, b in zip(reversed(str(one)), reversed(str(other)), strict=True):
        total = int(a) + int(b) + carry
        lines.append(f"{a}+{b}+{carry}={total}, carry {total // 10}")
        carry = total // 10
    return "\n".join([*lines, f"{one}+{other}={one + other}"])


def _addition(draw: Draw) -> Sample:
    digits = draw.size(*DIGITS)
    one, other = (draw.rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
    signs = ("{} and {}",) if draw.plain else ("{} and {}", "{} + {}", "{}+{}")
    slots = {"sum": draw.rng.choice(signs).format(one, other)}
    answer = steps(one, other)
    return draw.sample("addition", slots, answer, {"steps": answer}, f"{one}+{other}", digits)


def judge_addition(prediction: str, answer: str) -> dict[str, float]:
    """All lines right: ``score``; the last line alone: ``sum_score``."""
    said, wanted = prediction.strip().split("\n"), answer.split("\n")
    return {"score": float(said == wanted), "sum_score": float(said[-1] == wanted[-1])}


TASKS: dict[str, Make] = {"addition": _addition}
