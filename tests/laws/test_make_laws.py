"""``make laws`` says what it planned, covered and found, and fails when a law broke or nothing ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import law
import laws
import pytest
from harness import Combination


class Pool:
    """One that works in this process."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def imap_unordered(self, function: Callable[[Any], Any], jobs: list[Any]) -> Any:
        results: Iterator[Any] = map(function, jobs)
        return SimpleNamespace(next=lambda timeout: next(results))


def lengths_are_even(case: Combination) -> None:
    assert len(case.sampler) % 2 == 0, f"{case.sampler} is odd"


@pytest.fixture
def make_laws(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(*names: str, minutes: float = 1.0) -> int:
        cases = [Combination(name, "fixed") for name in names]
        listed = [law.Law("even", lengths_are_even, lambda: cases, 1, 1), law.Law("any", str, lambda: cases[:1], 1, 1)]
        monkeypatch.setattr(law, "LAWS", listed)
        monkeypatch.setattr(laws, "register", lambda: None)
        monkeypatch.setattr(laws, "MINUTES", minutes)
        monkeypatch.setattr(laws, "get_context", lambda name: SimpleNamespace(Pool=lambda *arguments: Pool()))
        return laws.main()

    return run


def test_what_broke_is_named_and_fails(make_laws: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert make_laws("eb", "dus", "wino") == 1
    out = capsys.readouterr().out
    assert "2 laws over 3 cases, 4 checks" in out
    assert "BROKEN even: dus-fixed-none-none-tiny-llada-fixed: AssertionError: dus is odd" in out
    assert "     3 of      3 cases, 1 broken: even" in out and "     1 of      1 cases, 0 broken: any" in out
    assert "covered 3 of 3 cases, 4 of 4 checks" in out


def test_laws_that_hold_are_a_success_and_no_time_is_none(
    make_laws: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_laws("eb", "wino") == 0
    assert make_laws("eb", "wino", minutes=0.0) == 1
    assert "covered 0 of 2 cases, 0 of 3 checks" in capsys.readouterr().out
