"""The reproduction of the documents: it passes what agrees and finds what does not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import reproduce
from experiments.figures import compare
from experiments.figures.compare import (
    ANY,
    ROOT,
    Entry,
    Tolerance,
    agree,
    all_equal,
    blocks,
    different_cells,
    put_files,
    put_rows,
    put_tables,
    rows,
    same_files,
    same_ratio,
    same_rows,
    same_tables,
)
from experiments.figures.entries import ENTRIES
from experiments.pages import pictures as doc_pictures
from experiments.reproduce import main

DOCUMENT = """# A page

## One model

| name | score | speed |
|---|---:|---:|
| `a` | 100 (97-100) | 3.8 ±0.5 |
| b | 61 | |

## Prose

| name | score | speed |
|---|---|---|
| a | 1 | 2 |
"""


def entry_for(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tolerance: Tolerance) -> Entry:
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    return Entry("test", "page.md", (), 0, same_tables, tolerance)


def test_numbers_agree_within_the_tolerance_and_words_exactly() -> None:
    assert agree("100 (97-100)", "99 (96-100)", Tolerance(1)) and not agree("100 (97-100)", "98 (96-100)", Tolerance(1))
    assert agree("30.0", "30.6", Tolerance(0, 0.02)) and not agree("30.0", "30.7", Tolerance(0, 0.02))
    assert not agree("yes", "no", Tolerance(9)) and not agree("3 (1)", "3", Tolerance(9))
    assert agree("-0.5", "-0.5", Tolerance())


def test_tables_are_found_by_their_heading() -> None:
    found = rows(blocks(DOCUMENT))
    assert found["One model", "b"] == ["61", ""] and found["Prose", "a"] == ["1", "2"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("61", "61"), []),
        (("61", "63"), []),
        (("61", "64"), ["column 2", "'61'", "'64'"]),
        (("| b | 61 | |\n", ""), ["'b'", "not made again"]),
        (("| b |", "| c |"), ["'c'", "missing in the document"]),
        (("3.8 ±0.5 |", "3.8 |"), ["column 3"]),
        (("| 61 | |", "| 61 |"), ["2 cells", "1 now"]),
    ],
)
def test_what_differs_is_named(
    change: tuple[str, str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_for(DOCUMENT, tmp_path, monkeypatch, Tolerance(2))
    printed = DOCUMENT.split("## Prose")[0].replace(*change)
    problems = "\n".join(same_tables(entry, printed, tmp_path))
    assert bool(problems) == bool(words), problems
    assert all(word in problems for word in words), problems


def test_a_bare_table_is_found_by_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another table under the same heading is not asked for; what is nowhere in the document is not equal to it."""
    other = "\n| size | cost |\n|---|---|\n| 1 | 2 |\n"
    entry = entry_for(DOCUMENT + other, tmp_path, monkeypatch, Tolerance())
    assert [*same_tables(entry, other, tmp_path)] == []
    assert [*same_tables(entry, other.replace("| 2 |", "| 3 |"), tmp_path)] == [
        "Prose: 1, column 2: '2' in the document, '3' now"
    ]
    problems = [*same_tables(entry, other.replace("cost", "time"), tmp_path)]
    assert "the document has no table 'size | time'" in problems


def test_tables_are_put_in_place_of_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By heading and first line; numbers in a heading may change, and rows come and go."""
    table = "| name | score | speed |\n|---|---:|---:|\n"
    old = DOCUMENT.replace("## One model", "## One model, 8 items")
    entry = entry_for(old, tmp_path, monkeypatch, Tolerance())
    printed = f"## One model, 9 items\n\n{table}| c | 1 | 2 |\n"
    assert [*put_tables(entry, printed, tmp_path)] == [*same_tables(entry, printed, tmp_path)] == []
    before, rest = old.split("## One")[0], old.split("## Prose")[1]
    assert (tmp_path / "page.md").read_text() == f"{before}{printed}\n## Prose{rest}"
    assert [*put_tables(entry, "| name | age |\n|---|---|\n", tmp_path)] == [
        "name | age: the document has 0 such tables"
    ]
    bare = [*put_tables(entry, f"{table}| c | 1 | 2 |\n", tmp_path)]
    assert len(bare) == 1 and bare[0].endswith("the document has 2 such tables")


def test_files_are_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, made = entry_for("old", tmp_path, monkeypatch, Tolerance()), tmp_path / "made"
    made.mkdir()
    (tmp_path / "pictures").mkdir()
    for name in ("a.svg", "b.txt", "c.png"):
        (made / name).write_text(name)
    entry = replace(entry, document="pictures", made=r".*\.svg", drawn=r".*\.png")
    assert not [*put_files(entry, "", made)]
    assert {file.name for file in (tmp_path / "pictures").iterdir()} == {"a.svg", "c.png"}
    (made / "c.png").write_text("in other fonts")
    assert not [*same_files(entry, "", made)]


def test_a_written_entry_is_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = replace(entry_for("", tmp_path, monkeypatch, Tolerance()), compare=same_rows, rows=("one",))
    write_csv(entry, "a\nold\n")
    entry = replace(entry, commands=(("-c", "print('| a |\\n|---|\\n| new |')"),))
    monkeypatch.setattr(reproduce, "ENTRIES", [entry])
    assert main([]) == 1 and entry.files()[0].read_text() == "a\nold\n"
    assert main(["--write"]) == 0 and entry.files()[0].read_text() == "a\nnew\n"
    said = capsys.readouterr().out
    assert said.startswith("FAILS") and "\nwrote " in said and said.endswith("1 of 1 written or equal\n")
    assert main([]) == 0


def test_a_column_may_have_a_tolerance_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(entry_for(DOCUMENT, tmp_path, monkeypatch, Tolerance(2)), columns={2: ANY, 3: Tolerance()})
    printed = DOCUMENT.split("## Prose")[0]
    assert list(same_tables(entry, printed.replace("| b | 61 |", "| b | 9 |"), tmp_path)) == []
    assert list(same_tables(entry, printed.replace("3.8 ±0.5", "3.9 ±0.5"), tmp_path)) != []
    assert list(same_tables(entry, printed.replace("| b | 61 |", "| b | x |"), tmp_path)) != []


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("4.40x   same tokens: True", ""),
        ("9.00x   same tokens: True", "5.0x in the document, 9.00x now"),
        ("5.00x   same tokens: False", "not the same"),
    ],
)
def test_a_ratio_of_two_loops(printed: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_for("", tmp_path, monkeypatch, Tolerance(share=0.5))
    entry = replace(entry, commands=(("-m", "it", "--threads", "2"),), rows=("it",))
    write_csv(entry, "date,threads,\na,1,8.0x\nb,2,5.0x\nc,2,1.0x\n")
    assert words in "\n".join(same_ratio(entry, printed, tmp_path)) and bool(words) == bool(
        list(same_ratio(entry, printed, tmp_path))
    )


def write_csv(entry: Entry, *texts: str) -> None:
    for file, text in zip(entry.files(), texts, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


ONE, TWO = "| a | b |\n|---|---|\n| x | 1 |\n| x | 2, 3 |\n", "\n| c |\n|---|\n| y |\n"


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (ONE + TWO, ""),
        (ONE, "printed 1 tables for one, two"),
        (ONE.replace("2, 3", "2, 4") + TWO, "one: x, column 2"),
        (ONE.replace("| x | 2, 3 |\n", "") + TWO, "one: row 'x' in the file, '' now"),
        (ONE + "| z | 1 |\n" + TWO, "one: row '' in the file, 'z' now"),
        (ONE + TWO.replace("c", "d"), "two: row 'c'"),
        (ONE.replace("| x | 2, 3 |\n", "") + "\nand\n\n| a | b |\n|---|---|\n| x | 2, 3 |\n" + TWO, ""),
    ],
)
def test_rows_of_csv_files(printed: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are compared in the order of the files, line by line; what several commands print of one is one."""
    entry = replace(entry_for("", tmp_path, monkeypatch, Tolerance()), compare=same_rows, rows=("one", "two"))
    write_csv(entry, 'a,b\nx,1\nx,"2, 3"\n', "c\ny\n")
    found = "\n".join(same_rows(entry, printed, tmp_path))
    assert words in found and bool(words) == bool(found)
    if printed.count("| a |") == 1 and "| c |" in printed:
        assert [*put_rows(entry, printed, tmp_path)] == [*same_rows(entry, printed, tmp_path)] == []


def test_of_a_part_only_its_rows_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(entry_for("", tmp_path, monkeypatch, Tolerance()), rows=("one",), part=(("-c", "pass"),))
    write_csv(entry, "a,b\nw,0\nx,1\n")
    made = "| a | b |\n|---|---|\n| x | 1 |\n"
    assert [*same_rows(entry, made, tmp_path)] == []
    assert [*same_rows(replace(entry, part=()), made, tmp_path)] == ["one: row 'w' in the file, 'x' now"]
    assert "row '' in the file, 'z' now" in "".join(same_rows(entry, made + "| z | 1 |\n", tmp_path))


def test_every_table_of_the_site_has_its_command() -> None:
    """Each CSV file of docs/measured is made by an entry, or by a command that needs what is not here."""
    made = {file for entry in ENTRIES for file in entry.files()}
    assert {file.stem for file in (ROOT / "docs" / "measured").glob("*.csv")} - {file.stem for file in made} == set(
        ELSEWHERE
    )
    assert [file.name for file in made if not file.is_file()] == []


# Made by other programs, of an 8B model that was loaded for it, on processors of three kinds, on a quiet machine, or by
# a test.
ELSEWHERE = (
    "answers_avx2",
    "answers_avx512",
    "forwards_amx",
    "forwards_avx2",
    "forwards_avx512",
    "kept_memory",
    "load_8b",
    "load_head",
    "peers",
    "scheduler",
    "start_8b",
    "streams",
)


def test_every_command_of_the_docs_that_can_run_here_has_an_entry() -> None:
    """Whatever benchmark or comparison a page names."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"experiments\.((?:bench|compare)\.\w+)", page.read_text())}
    run = {word for entry in ENTRIES for command in entry.commands for word in command}
    assert {name for name in named if f"experiments.{name}" not in run} == {
        "bench.attention",
        "bench.forward_kinds",
        "bench.kernels",
        "bench.maskbench",
        "bench.peers",
        "bench.random_checkpoint",
        "bench.scheduler",
        "bench.serve",
        "bench.whole_decodes",
    }  # they need llama.cpp, other repositories, a GPU, a folder, half an hour of a quiet machine, or have no table


def test_a_command_that_prints_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_for(DOCUMENT, tmp_path, monkeypatch, Tolerance(2))
    assert list(same_tables(entry, "", tmp_path)) == ["the command printed no table"]
    (tmp_path / "out").mkdir()
    assert list(same_files(entry, "", tmp_path / "out")) == ["the command wrote no file"]


def test_files_are_compared_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    for folder, text in (("docs", '<rect x="1.0"/>'), ("out", '<rect x="1.1"/>')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.svg").write_text(text)
    assert list(same_files(Entry("t", "docs", (), 0, same_files, Tolerance(0.2)), "", tmp_path / "out")) == []
    assert list(same_files(Entry("t", "docs", (), 0, same_files), "", tmp_path / "out")) == ["docs/a.svg differs"]
    (tmp_path / "out" / "b.svg").write_text("")
    assert "docs lacks b.svg" in list(same_files(Entry("t", "docs", (), 0, same_files), "", tmp_path / "out"))


def test_all_of_it_takes_an_hour_and_a_half_and_names_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    beside = [entry.minutes for entry in ENTRIES if not entry.timed]
    alone = [entry.minutes for entry in ENTRIES if entry.timed]
    assert max(sum(beside) / 2, *beside) + sum(alone) < 90  # two at a time
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    assert all((ROOT / entry.document).exists() for entry in ENTRIES)
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.count("\n") == len(ENTRIES)


def test_the_pictures_of_the_docs_come_out_again() -> None:
    for name, svg in doc_pictures.drawn():
        assert agree((doc_pictures.FOLDER / f"{name}.svg").read_text(), svg, Tolerance(0.2)), name


@pytest.mark.parametrize(
    ("said", "found", "good"),
    [
        ("97 (95-98)", "90 (83-95)", True),
        ("97 (95-98)", "85 (77-91)", False),
        ("-", "-", True),
        ("-", "97 (95-98)", False),
        ("95.7 ±0.3", "93.0 ±2.5", True),
        ("95.7 ±0.3", "90.0 ±2.5", False),
        ("32, one block", "32, one block", True),
    ],
)
def test_of_a_sample_the_intervals_meet(said: str, found: str, good: bool) -> None:
    entry = Entry("t", "docs", (), 0, same_tables, sampled=True)
    assert (list(different_cells("row", [said], [found], entry)) == []) == good


def test_a_part_is_made_to_compare_and_all_of_it_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [f"## {name}\n\n| a | b |\n|---|---|\n| x | {number} |\n" for name, number in (("One", 1), ("Two", 2))]
    entry = entry_for("# A page\n\n" + "\n".join(tables), tmp_path, monkeypatch, Tolerance())
    entry = replace(
        entry,
        commands=(("-c", f"print({tables[0]!r}); print({tables[1]!r}.replace('2', '3'))"),),
        part=(("-c", f"print({tables[0]!r})"),),
    )
    monkeypatch.setattr(reproduce, "ENTRIES", [entry])
    assert main([]) == 0, "the second table is not made, and so not compared"
    assert main(["--write"]) == 0 and "| x | 3 |" in (tmp_path / "page.md").read_text()
    monkeypatch.setattr(reproduce, "ENTRIES", [replace(entry, part=())])
    assert main([]) == 0


def test_only_the_tables_that_a_document_shows_are_compared_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [f"## {name}\n\n| a | b |\n|---|---|\n| x | {number} |\n" for name, number in (("One", 1), ("Two", 2))]
    entry = entry_for(f"# A page\n\n{tables[0]}", tmp_path, monkeypatch, Tolerance())
    entry = replace(entry, commands=(("-c", f"print({tables[0]!r}.replace('1', '3')); print({tables[1]!r})"),))
    for shown, good in ((".*", False), ("One", True)):
        monkeypatch.setattr(reproduce, "ENTRIES", [replace(entry, shown=shown)])
        assert (main(["--write"]) == 0) == good
    assert "| x | 3 |" in (tmp_path / "page.md").read_text() and main([]) == 0
    assert list(same_tables(replace(entry, shown="Three"), tables[0], tmp_path)) == ["the command printed no table"]


def test_a_failing_command_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken = Entry("broken", "README.md", (("-c", "print('a')"), ("-c", "raise SystemExit('no')")), 0, all_equal)
    monkeypatch.setattr(reproduce, "ENTRIES", [broken])
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "FAILS  broken" in out and "exit code 1: no" in out and "0 of 1 reproduced; not: broken" in out
