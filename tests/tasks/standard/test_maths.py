"""Answers that mean the same, and answers that do not."""

from __future__ import annotations

import threading

import pytest

from dllm.parts import box_content, equivalent, same

pytest.importorskip("math_verify", reason="the extra [eval] is not installed")


@pytest.mark.parametrize(
    ("answer", "text", "equal"),
    [
        ("\\frac{1}{2}", "So it is $0.5$.", True),
        ("\\frac{3}{4}", "\\boxed{\\frac{6}{8}}", True),
        ("2\\sqrt{2}", "the answer is $\\sqrt{8}$", True),
        ("[2,5)", "Final Answer: The final answer is $[2,5)$. I hope it is correct.", True),
        ("\\{1, 2\\}", "\\boxed{\\{2, 1\\}}", True),
        ("x^2 + 2x + 1", "$\\boxed{(x+1)^2}$", True),
        ("1{,}000", "\\boxed{1000}", True),
        ("\\frac{1}{2}", "\\boxed{\\frac{1}{3}}", False),
        ("[2,5)", "$[2,5]$", False),
        ("7", "I do not know.", False),
        ("7", "", False),
    ],
)
def test_equivalence(answer: str, text: str, equal: bool) -> None:
    assert equivalent(answer, text) is equal


def test_a_thread_that_may_set_no_signal_grades_too() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(equivalent("2", "$\\boxed{2}$")))
    thread.start()
    thread.join(30)
    assert found == [True]


def test_the_last_box_is_read_with_its_braces() -> None:
    assert box_content("\\boxed{1} then \\boxed{\\frac{a}{b}} end") == "\\frac{a}{b}"
    assert box_content("none") is None and box_content("\\boxed{open") is None
    assert same("\\frac{a}{b}", "\\boxed{ \\frac{a}{b} }") and not same("2", "2")
