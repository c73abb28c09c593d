"""What a report tells apart, what it pools, what it calls them, and what it leaves to the reader's choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dllm import UserError
from dllm.parts import (
    CHOICES,
    CellResults,
    Codes,
    ReportOptions,
    ReportTable,
    SettingResults,
    baselines,
    chosen_settings,
    code_hash,
    named_settings,
    quantile_of_t,
    read_cells,
    refuse_ambiguous,
    run_report,
    targets,
    wilson,
    wilson_of_items,
    write_report,
)
from dllm.view.report import plots
from tests.report.report_cells import cell, config_of, points, row, stored

RIGHT = {"copy": [1, 0]}


def changed(config: dict[str, Any], **given: Any) -> dict[str, Any]:
    """A configuration with other values at dotted places, of which underscores stand for the dots."""
    out = dict(config)
    for name, value in given.items():
        group, _, key = name.partition("__")
        out[group] = {**out[group], key: value} if key else value
    return out


def made(*configs: dict[str, Any], **environment: Any) -> list[SettingResults]:
    rows = [row("copy", number, score, 4) for number, score in enumerate(RIGHT["copy"])]
    return points(
        *(
            CellResults(Path(f"{at:02}"), config, [dict(one) for one in rows], environment)
            for at, config in enumerate(configs)
        )
    )


def names(found: Sequence[SettingResults]) -> list[str]:
    return [f"{one.method}, {one.name}" for one in found]


def test_whatever_differs_makes_another_label() -> None:
    """The sweep of issue A1, into one folder: everything but seed and samples makes a method of its own."""
    base = config_of("sampler=confidence")
    others = [
        {"sampling__temperature": 0.5},
        {"batch_size": 4},
        {"model__dtype": "bfloat16"},
        {"sampling__forbid_eos": True},
        {"model__quantize": "int8"},
        {"runtime": "static"},
        {"sampling__top_p": 0.9},
        {"stop": ["a"]},
        {"gen_length": 8},
        {"eos": {"_target_": "dllm.parts.eos.none.FullLength"}},
        {"task__count": 3},
        {"sampler__threshold": 0.7},
    ]
    found = made(base, *(changed(base, **one) for one in others))
    assert len(set(names(found))) == len(found) == 13
    for at, word in (
        (1, "T=0.5"),
        (2, "batch_size=4"),
        (3, "bfloat16"),
        (4, "forbid_eos=true"),
        (5, "quantize=int8"),
        (10, "eos=none"),
    ):
        assert word in found[at].method.split(" + ")
    assert found[12].name == "threshold=0.7" and found[12].method == found[0].method


def test_seeds_and_samples_are_pooled() -> None:
    base = config_of("sampler=confidence")
    seeds = [changed(base, seed=seed) for seed in range(3)]
    (one,) = made(*seeds, changed(base, seed=0, samples=2))
    assert one.seeds == [0, 1, 2] and len(one.cells) == 4
    assert len(one.rows) == 6  # of the cell with two samples the first is there, as that of the same seed
    assert one.quality == 50 and one.spread == 0 and one.measures.samples == 6


def test_one_cell_twice_is_an_error_and_a_folder_twice_is_none(tmp_path: Path) -> None:
    one = cell(tmp_path / "a" / "x", ["sampler=static"], RIGHT, 8)
    assert len(read_cells(tmp_path, tmp_path / "a")[0]) == 1
    with pytest.raises(UserError, match=r"a/x and .*b/x hold the same cell.*Give the report one of them"):
        named_settings([one, replace(one, folder=tmp_path / "b" / "x")])


def test_two_settings_never_have_one_name() -> None:
    one, other = made(config_of("sampler=static"), config_of("sampler=eb"))
    with pytest.raises(UserError, match="00 and 01 would both be called static, defaults. Report them one by one"):
        refuse_ambiguous([one, replace(other, method="static")])


def test_parts_have_the_names_that_were_typed() -> None:
    caches = [config_of(f"cache={name}") for name in ("none", "dpad", "dual", "vicinity", "prefix", "streaming")]
    assert [one.method for one in made(*caches)] == [
        "confidence",
        "confidence + dpad",
        "confidence + dual",
        "confidence + vicinity",
        "confidence + prefix",
        "confidence + streaming",
    ]
    base = config_of("sampler=confidence")
    mine, yours = (changed(base, sampler={"_target_": f"my_samplers.{name}", "low": 0.3}) for name in ("Mine", "Yours"))
    assert [one.method for one in made(mine, yours)] == ["my_samplers.Mine", "my_samplers.Yours"]
    typed = [{**one, CHOICES: {"sampler": "mine"}} for one in (mine, yours)]  # two files of one name
    assert [one.method for one in made(typed[0])] == ["mine"]
    assert [one.method for one in made(*typed)] == ["my_samplers.Mine", "my_samplers.Yours"]


def test_checkpoints_of_one_model_have_the_shortest_ends_of_their_folders() -> None:
    base = config_of("sampler=static")

    def called(*paths: str, **adapters: str) -> list[str]:
        lora = [changed(base, model__adapter=place) for place in adapters.values()]
        return [one.model for one in made(*(changed(base, model__path=path) for path in paths), *lora)]

    assert called("ck/one") == ["mini-llada"]
    assert called("ck/one", "ck/two") == ["one", "two"]
    assert called("a/last", "b/last") == ["a/last", "b/last"]
    assert called(a="runs/a/lora", b="runs/b/lora") == ["mini-llada + a/lora", "mini-llada + b/lora"]


def coded(place: Path, name: str, code: str | None, *, sampler: str = "eb", started: str = "2026") -> CellResults:
    config = config_of(f"sampler={sampler}")
    now = code_hash(targets(config["sampler"]))
    content = {"checkpoint": "c", "sampler's code": now if code is None else code}
    return stored(place / name, config, [row("copy", 0, 1.0, 4)], content=content, started=started)


def test_cells_of_older_code_are_marked_and_their_folders_named(tmp_path: Path) -> None:
    coded(tmp_path, "old", "0" * 16), coded(tmp_path, "new", None), coded(tmp_path, "other", None, sampler="static")
    cells = read_cells(tmp_path)[0]
    assert [one.method for one in points(*cells)] == ["eb", "eb + older code", "static"]
    (note,) = Codes(cells).notes()
    assert note == (
        "sampler=eb was edited after cells were decoded, which are marked 'older code'. To leave them out, "
        f"delete {tmp_path}/old."
    )
    coded(tmp_path, "older", "1" * 16)
    marked = [one.method for one in points(*read_cells(tmp_path)[0]) if "older" in one.method]
    assert len(set(marked)) == 2 and all(name.startswith("eb + older code ") for name in marked)


def test_a_part_that_was_edited_and_not_decoded_again_is_marked_unless_all_are(tmp_path: Path) -> None:
    coded(tmp_path, "old", "0" * 16), coded(tmp_path, "other", None, sampler="static")
    assert [one.method for one in points(*read_cells(tmp_path)[0])] == ["eb + older code", "static"]
    coded(tmp_path / "x", "old", "0" * 16), coded(tmp_path / "x", "newer", "1" * 16, started="2027")
    cells = read_cells(tmp_path / "x")[0]
    assert [one.method for one in points(*cells)] == ["eb", "eb + older code"]
    assert "other code of their parts than today's" in next(Codes(cells).notes())


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """confidence at two thresholds and T=0.7, static, eb."""
    for name, overrides in {
        "a": ["sampler=static"],
        "b": ["sampler=confidence"],
        "c": ["sampler=confidence", "sampler.threshold=0.7"],
        "d": ["sampler=eb"],
        "e": ["sampler=confidence", "sampling.temperature=0.7"],
    }.items():
        cell(tmp_path / "sweep" / name, overrides, {"copy": [1, 0], "sort": [1, 1]}, 4)
    return tmp_path / "sweep"


def test_methods_are_chosen_ordered_and_highlighted(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = several.parent / "out"
    given = ["--methods", "eb", "confidence", "--highlight", "eb", "--baseline", "confidence, threshold=0.9"]
    run_report([str(several), "--out", str(out), *given])
    assert f"Report: {out}/report.html" in capsys.readouterr().out
    table = (out / "table-mini-llada.csv").read_text()
    assert [line.partition(",")[0] for line in table.splitlines()[1:]] == ["eb", "confidence", "confidence"]
    assert "Baseline: confidence, threshold=0.9 (b)" in (out / "report.md").read_text()
    latex = (out / "table-mini-llada.tex").read_text()
    assert r"\textbf{eb}" in latex and r"\toprule" in latex and r"\textbf{confidence" not in latex
    assert "**eb**" in (out / "report.md").read_text()
    assert "<tr class=bright>" in (out / "report.html").read_text()


def test_a_method_that_is_not_there_is_named_with_those_that_are(several: Path) -> None:
    every = named_settings(read_cells(several)[0])
    for wanted, words in (("ebb", "--methods 'ebb' is not a method here; there are conf"), ("conf", "not a method")):
        with pytest.raises(UserError, match=words):
            chosen_settings(every, [wanted])
    with pytest.raises(UserError, match="--baseline 'confidence' means 2 settings: name one of confidence, threshold="):
        baselines(every, "confidence")
    assert [one.folders for one in baselines(every, "eb")] == ["d"]
    alone = {
        "threshold=0.9": "b",
        "sampler.threshold=0.7": "c",
        "sampler=eb": "d",
        "sampling.temperature=0.7": "e",
        "sampler=confidence, threshold=0.9": "b",
        "static": "a",
    }
    assert {wanted: [one.folders for one in baselines(every, wanted)] for wanted in alone} == {
        wanted: [folder] for wanted, folder in alone.items()
    }
    with pytest.raises(UserError, match="--baseline 'sampler=confidence' means 3 settings"):
        baselines(every, "sampler=confidence")
    with pytest.raises(UserError):
        write_report([several], several.parent / "none", ReportOptions(base="nothing"))
    assert not (several.parent / "none").exists()


def test_every_method_is_in_every_panel_and_the_highlighted_one_stands_out(several: Path) -> None:
    found = chosen_settings(named_settings(read_cells(several)[0]), highlight="eb")
    (figure,) = plots.curves_of_tasks(found).values()
    for axis in [axis for axis in figure.axes if axis.get_visible()]:
        assert len([line for line in axis.lines if len(line.get_xdata())]) == len({one.method for one in found})
        widths = {line.get_linewidth() for line in axis.lines if line.get_alpha() == 1.0}
        assert widths == {2.0}
    plots.plt.close("all")


@pytest.mark.usefixtures("vectors")
def test_pictures_are_vectors_too_and_the_same_each_time(several: Path) -> None:
    found = chosen_settings(named_settings(read_cells(several)[0]), ["static"])
    for name in ("one", "two"):
        plots.save(plots.tradeoff(found, lambda one: one.measures.tpf, "tokens"), several / f"{name}.png")
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        one, two = ((several / f"{name}.{kind}").read_bytes() for name in ("one", "two"))
        assert one == two and one.startswith(start)


def test_latex_is_escaped() -> None:
    found = ReportTable(["a_b", "50 %"], [["x\\y {z} #1 & $2 ~^", "<1>"]], words=1).latex()
    assert found.splitlines()[1:] == [
        r"\begin{tabular}{@{}lr@{}}",
        r"\toprule",
        r"a\_b & 50 \% \\",
        r"\midrule",
        r"x\textbackslash{}y \{z\} \#1 \& \$2 \textasciitilde{}\textasciicircum{} & \textless{}1\textgreater{} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_answers_to_one_item_count_together_in_an_interval() -> None:
    assert wilson_of_items([[1.0], [0.0], [1.0]]) == pytest.approx(wilson(2, 3))  # one answer each: Wilson's own
    assert wilson_of_items([[1.0] * 5, [0.0] * 5, [1.0] * 5]) == pytest.approx(wilson(2, 3))  # five alike: the same
    assert wilson_of_items([[1.0, 0.0]] * 8) == pytest.approx(wilson(8, 16))  # items alike: all are independent
    assert wilson_of_items([[1.0] * 3] * 4) == pytest.approx(wilson(4, 4))  # of right answers alone nothing is known
    assert wilson_of_items([[1.0] * 4 + [0.0] * 4]) == pytest.approx(wilson(0.5, 1))  # nor of one item


def test_without_a_judged_answer_the_interval_is_everything(tmp_path: Path) -> None:
    (unknown,) = points(cell(tmp_path / "a", ["sampler=static"], {"copy": [None, None]}, 8))
    assert unknown.interval == (0.0, 100.0)


def test_the_variance_of_few_items_counts_for_less() -> None:
    """Korn and Graubard's (t of n - 1 / t of m - 1)^2, by hand, of 8 items with 3 or 1 of 4 answers right."""
    between = 8 / 7 * 8 * 1 / 32**2  # each item is one answer away from the mean
    effective = 0.25 / between * (2.0395 / 2.3646) ** 2  # t of 31 and of 7 degrees of freedom, from a table
    assert 8 < effective < 32
    found = wilson_of_items([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]] * 4)
    assert found == pytest.approx(wilson(effective / 2, effective), abs=1e-4)


@pytest.mark.parametrize("items", [1, 3, 12, 40])
def test_no_score_proves_more_than_items_that_are_all_right(items: int) -> None:
    lows = [wilson_of_items(answers_with(items, wrong))[0] for wrong in range(3 * items + 1)]
    assert max(lows) == lows[0] == pytest.approx(items / (items + 1.96**2))


def answers_with(items: int, wrong: int) -> list[list[float]]:
    """Three answers to each item; the wrong ones are spread over the items."""
    return [[float(number + items * place >= wrong) for place in range(3)] for number in range(items)]


@pytest.mark.parametrize(
    ("freedom", "point"), [(1, 12.7062), (2, 4.30265), (7, 2.36462), (30, 2.04227), (1000, 1.96234)]
)
def test_points_of_students_t_are_those_of_tables(freedom: int, point: float) -> None:
    assert quantile_of_t(freedom, 1.959964) == pytest.approx(point, rel=1e-5)


def test_the_help_says_what_the_report_is_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for called, said in (("dllm", "dllm report"), ("run.py", "python run.py report")):
        monkeypatch.setattr("sys.argv", [called, "report", "--help"])
        with pytest.raises(SystemExit):
            run_report(["--help"])
        assert capsys.readouterr().out.startswith(f"usage: {said} ")
