"""Pages and pictures that commands write, and what the commands of this folder share."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.style import Style

from dllm import UserError
from dllm.parts import choices, part_facts
from experiments.figures.compare import same_story
from experiments.figures.entries import ENTRIES
from experiments.pages import race as readme_picture
from experiments.pages.golden_sources import CODE, GOLDENS, table
from experiments.pages.model_choices import rows
from experiments.pages.race import FILE, main, svg
from experiments.pages.request_fields import tables, takes
from experiments.pages.site_hooks import completed
from experiments.support.marked import marks, write_marked
from experiments.support.scripts import refusing


def test_the_page_of_fields_has_every_table() -> None:
    page = (ROOT / "docs" / "serving_fields.md").read_text("utf-8")
    assert re.findall(r"^<!-- made: fields ([\w ]+) -->$", page, re.MULTILINE) == list(tables())


def test_what_a_field_takes_is_told_in_a_few_words() -> None:
    assert (
        takes({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 20}, {"type": "null"}]})
        == "integer, from 0, to 20"
    )
    assert takes({"type": "number", "exclusiveMinimum": 0, "maximum": 1}) == "number, above 0, to 1"
    assert takes({"type": "integer", "maximum": 2**62}) == "integer" and takes({"$ref": "#/A"}) == "object"


def test_the_page_of_models_has_every_published_choice() -> None:
    of_any_class = {"endpoint", "transformers"}
    published = {f"`{name}`" for name in choices("model") if name not in of_any_class and not name.startswith("mini-")}
    found = list(rows())
    assert len(found) == len(published) and {name for name, *_ in found} == published
    assert {row[3] for row in found if row[2] == "`DreamModel`"} == {"i - 1"}


SVG = "{http://www.w3.org/2000/svg}"
PLAIN = Style.null()


def texts(group: ElementTree.Element) -> str:
    return "".join(found.text or "" for found in group.iter(f"{SVG}text"))


def seen(picture: str, second: float) -> list[str]:
    """The lines that a browser shows at a second of the animation, by its style rules."""
    root, total = ElementTree.fromstring(picture), readme_picture.DURATION + readme_picture.HOLD
    rules = dict(re.findall(r"@keyframes (k\d+)\{((?:[\d.]+%\{[^}]*\})+)\}", picture))
    shown = []
    for group in root.iter(f"{SVG}g"):
        names = group.get("class", "").split()
        stops = [
            (float(at), how)
            for name in names
            if name in rules
            for at, how in re.findall(r"([\d.]+)%\{visibility:(\w+)\}", rules[name])
        ]
        state = [how for at, how in stops if at <= 100 * second / total]
        if not stops or state[-1] == "visible":
            shown.append(texts(group))
    return shown


def test_every_screen_is_seen_from_its_second_on() -> None:
    red = Style.parse("#ffffff on #aa0000 bold")
    shots = [
        (0.0, [(("same", PLAIN),), (("<a>", red), (" b", PLAIN))]),
        (2.0, [(("same", PLAIN),), (("c", PLAIN),)]),
        (8.0, [(("same", PLAIN),), (("c", PLAIN),), (("end", PLAIN),)]),
    ]
    picture = svg(shots, "a & b", "story")
    assert seen(picture, 0) == seen(picture, 1.9) == ["same", "<a> b"]
    assert seen(picture, 2.1) == seen(picture, 7.9) == ["same", "c"]
    assert seen(picture, 8.1) == seen(picture, 10.9) == ["same", "c", "end"]
    groups = ElementTree.fromstring(picture).iter(f"{SVG}g")
    still = [texts(group) for group in groups if "h" not in group.get("class", "").split()]
    assert still == ["same", "c", "end"]  # where nothing moves
    assert picture.count("same") == 1 and 'fill="#aa0000"' in picture


def test_the_shipped_picture_is_small_and_needs_nothing_from_anywhere() -> None:
    picture = FILE.read_text()
    assert len(picture) < 500_000 and "prefers-reduced-motion" in picture
    assert not re.search(r"<script|https?://(?!www\.w3\.org/2000/svg)|href|url\(|@import", picture)


def test_the_picture_is_the_race_of_two_real_decodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(readme_picture, "DECODES", 1)
    assert main([str(tmp_path / "race.svg")]) == 0
    (entry,) = [entry for entry in ENTRIES if entry.name == "race"]
    assert list(same_story(entry, "", tmp_path)) == []
    picture = (tmp_path / "race.svg").read_text()
    end = seen(picture, readme_picture.DURATION + 1)
    assert any(re.match(r"one token per step  finished( first)?: 32 forwards · ", line) for line in end)
    (tmp_path / "race.svg").write_text(picture.replace("32 forwards, ", "31 forwards, "))
    assert len(list(same_story(entry, "", tmp_path))) == 1


def test_what_stood_between_the_lines_goes(tmp_path: Path) -> None:
    begin, end = marks("it")
    page = tmp_path / "page.md"
    page.write_text(f"words\n{begin}\n\nold\n\n{end}\nmore\n")
    write_marked(page, "it", "new\n")
    assert page.read_text() == f"words\n{begin}\n\nnew\n\n{end}\nmore\n"


def test_a_page_without_the_lines_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A\n")
    with pytest.raises(UserError, match="has no lines <!-- it: begin --> and"):
        write_marked(tmp_path / "page.md", "it", "text")
    assert (tmp_path / "page.md").read_text() == "# A\n"


NOWHERE = {  # commands that take a model, and how they are told of one
    "compare.constrained_tasks": ["nosuch"],
    "compare.decisions": ["nosuch"],
    "compare.rounding": ["nosuch"],
    "mini.card": ["nosuch", "--again", "speed"],
    "mini.derive": ["nosuch"],
    "mini.evaluate": ["nosuch"],
    "mini.token_frequencies": [__file__, "--model", "nosuch"],
}


@pytest.mark.parametrize(("name", "given"), NOWHERE.items(), ids=NOWHERE.keys())
def test_a_model_that_there_is_not(name: str, given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(f"experiments.{name}").main(given) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "'nosuch'" in said and said.count("\n") == 1


@pytest.mark.parametrize("given", ["0", "-1", "many"])
@pytest.mark.parametrize("name", ["compare.decisions", "compare.rounding"])
def test_a_count_that_counts_nothing(name: str, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        import_module(f"experiments.{name}").main(["--count", given])
    assert exit_.value.code == 2
    assert f"argument --count: {given!r} must be a whole number from 1 on" in capsys.readouterr().err


def test_only_what_the_user_can_put_right_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    @refusing
    def command(error: Exception | None, code: int = 0) -> int:
        if error is not None:
            raise error
        return code

    assert (command(None), command(None, code=1), command(UserError("a is\n  wrong."))) == (0, 1, 2)
    assert command(FileNotFoundError(2, "No such file or directory", "a/b")) == 2
    sentence = "a/b: No such file or directory. Put that right, or name another place."
    assert capsys.readouterr().err == f"error: a is wrong.\nerror: {sentence}\n"
    with pytest.raises(KeyError):
        command(KeyError("ours"))


ROOT = Path(__file__).parents[2]
FILES = [*GOLDENS.glob("*.json"), *GOLDENS.glob("sharp/*.json")]
RECORDED = {code for file in FILES for code in CODE.findall(json.loads(file.read_text())["source"])}
NO_COMMIT = {
    "own",
    "paper",
    "reconstruction",
    "friedrichor/LocalLeap (a copy of it)",
    "Nemotron-Labs-Diffusion's linear_spec_generate",
    "transformers 5.24's DiffusionGemma",
    "rule of diffusers 0.42.1",
}  # such pages say why


def test_the_command_names_all_golden_files() -> None:
    said = table()
    names = [str(file.relative_to(GOLDENS).with_suffix("")) for file in FILES]
    assert [name for name in names if f"`{name}`" not in said] == []


@pytest.mark.parametrize("page", [*(f"docs/{name}.md" for name in ("samplers", "caches", "blocks"))])
def test_code_that_parts_were_checked_against_is_that_of_a_golden_file(page: str) -> None:
    assert set(CODE.findall((ROOT / page).read_text())) - {"OWNER/NAME@COMMIT"} <= RECORDED


@pytest.mark.parametrize("name", choices("sampler"))
def test_a_samplers_page_and_its_head_name_the_same_code(name: str) -> None:
    file = ROOT / "docs" / "samplers" / f"{name}.md"
    page, checked = completed(file.read_text(), file), part_facts("sampler", name).checked
    said = set(CODE.findall(checked))
    assert (said or checked in NO_COMMIT) and said <= RECORDED & set(CODE.findall(page))
