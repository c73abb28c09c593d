"""README's moving picture: it shows the race that was measured, moves without a script, and stands still at the end."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.style import Style

from experiments.figures.compare import same_story
from experiments.figures.entries import ENTRIES
from experiments.pages import race as readme_picture
from experiments.pages.race import FILE, main, svg

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
        stops = [(float(at), how) for name in names if name in rules
                 for at, how in re.findall(r"([\d.]+)%\{visibility:(\w+)\}", rules[name])]  # fmt: skip
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
