"""Lines of code are counted without blanks, comments and docstrings, by folder, in any layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.pages import package_size

SOURCE = '''"""Head.

More."""

# a comment
import os  # counts


def f(x):
    """One line."""
    text = """not a docstring

    """
    return (x,
            text)


class A:
    """Only this."""
'''


def test_what_counts_as_a_line_of_code() -> None:
    """import, def, the string's three lines, return's two, class."""
    assert package_size.code_lines(SOURCE) == 8
    assert package_size.code_lines("") == package_size.code_lines("# only\n\n'''words'''\n") == 0


def test_two_layouts_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, files in (("old", ("runtime.py", "run/a.py", "run/deep/b.py")), ("new", ("runtime/a.py", "app/b.py"))):
        for file in files:
            place = tmp_path / name / "dllm" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("a = 1\nb = 2\n")
    assert package_size.main([str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    rows = {words[0]: words[1:] for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert rows == {
        "dllm/": ["old", "new"], "run": ["4", "0"], "runtime": ["2", "2"], "app": ["0", "2"], "core": ["2", "2"],
        "all": ["6", "4"],
    }  # fmt: skip
    package_size.main([str(tmp_path / "old"), "--core", "run", "runtime"])
    assert "core                       6" in capsys.readouterr().out


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        package_size.main([str(tmp_path)])
    assert "there is no folder dllm/ here. Name the root of a checkout" in capsys.readouterr().err
