"""MATH-500, graded by math-verify: answers are equal when they mean the same."""

from __future__ import annotations

import threading
from typing import Any

from dllm.common.installing import not_installed
from dllm.tasks.base import Item
from dllm.tasks.standard.harness import Harness

ANSWER_SECONDS = 5  # of parsing or comparing one answer


class Math500(Harness):
    """lm-eval's minerva_math500 (questions, four worked examples), but not its grader: that needs a version of antlr
    with which Hydra cannot run. A local file has columns problem and answer."""

    stock = "minerva_math/minerva_math500.yaml"

    def __init__(self, harness: str = "math500", **options: Any) -> None:
        try:
            import math_verify  # noqa: F401
        except ImportError:
            raise not_installed("task=math500", "math-verify", "eval") from None
        super().__init__(harness, **options)

    def config(self, place: Any) -> dict[str, Any]:
        return super().config(place) | {
            "doc_to_text": "Problem:\n{{problem}}\n\nSolution:",
            "doc_to_target": "{{answer if solution is undefined else solution}}",
        }

    def judge(self, item: Item, text: str) -> tuple[dict[str, float | None], dict[str, Any]]:
        answer = item.truth["doc"]["answer"]
        return {"math_verify": float(equivalent(answer, text)), "exact_match": float(same(answer, text))}, {}


def equivalent(answer: str, text: str) -> bool:
    """Whether the last answer in ``text`` means ``answer`` (LaTeX)."""
    from math_verify import parse, verify

    # math-verify keeps time by a signal, which only the main thread may set.
    seconds = ANSWER_SECONDS if threading.current_thread() is threading.main_thread() else None
    truth = parse(f"${answer}$", parsing_timeout=seconds)
    return bool(verify(truth, parse(text, parsing_timeout=seconds), timeout_seconds=seconds))


def same(answer: str, text: str) -> bool:
    """Whether what is boxed last is ``answer`` letter by letter, but for spaces."""
    return "".join((box_content(text) or "").split()) == "".join(answer.split())


def box_content(text: str) -> str | None:
    """The content of the last ``\\boxed{...}``, whose braces balance; None without one."""
    start = text.rfind("\\boxed{")
    depth = 0
    for at in range(start + len("\\boxed"), len(text) if start >= 0 else 0):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : at]
    return None
