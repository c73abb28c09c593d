"""The playground in a browser: two settings side by side, every picture of both, and nothing from anywhere else."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import Defaults, Model, final_commits, playground_page, read_trace, write
from tests.serve.bodies import mini_defaults
from tests.serve.conftest import writing
from tests.serve.live import Live, live
from tests.view.browser import chromium
from tests.view.test_trace_page import CONTRAST

PROMPT = "w5 w7 w9"


def test_the_page_holds_all_it_needs_and_runs_nothing_else(mini: Defaults) -> None:
    defaults = replace(mini, name="</script><b>")
    page, headers = playground_page(defaults, {"prompt": "</textarea><script>taken</script>"})
    page = page.replace("https://arxiv.org/abs/", "")  # a link to a paper, which the reader may follow
    assert not re.search(r"https?:|//\w+\.\w|@import|\bsrc=|url\(|eval\(|innerHTML", page)
    assert "{{" not in page.replace("${{", "") and page.count("<script>") == 1 and "<b>" not in page
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "connect-src 'self'" in policy


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server(served: Model) -> Iterator[Live]:
    with live(served) as started:
        yield started


@pytest.fixture
def tab(browser: Any, server: Live) -> Iterator[Any]:
    """The open page. An error of a script, or a request elsewhere, fails the test."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda said: page.problems.append(said.text) if said.type == "error" else None)
    page.on(
        "request",
        lambda asked: None if asked.url.startswith((server.url, "data:", "blob:")) else page.problems.append(asked.url),
    )
    page.goto(server.url)
    page.wait_for_selector("select[name=sampler]")
    assert page.input_value("#prompt") == PROMPT, "the model's own"
    page.fill("#length", "16")
    yield page
    assert page.problems == []
    page.close()


def choose(tab: Any, pane: int, **chosen: str) -> None:
    for group, name in chosen.items():
        tab.locator(f"select[name={group}]").nth(pane).select_option(name)


def finished(tab: Any, pane: int = 0, state: str = "done") -> str:
    """The status of a pane once it says so."""
    tab.wait_for_function(
        "([at, state]) => document.querySelectorAll('.status')[at]?.textContent.startsWith(state)", arg=[pane, state]
    )
    return str(tab.locator(".status").nth(pane).inner_text())


def test_two_settings_decode_side_by_side(tab: Any, server: Live, tmp_path: Path) -> None:
    tab.check("#compare")
    choose(tab, 0, sampler="static", cache="dual")
    choose(tab, 1, sampler="confidence")
    tab.locator("input[name='sampler.threshold']").fill("0.2")
    tab.click("#run")
    for pane, diffusion in enumerate(
        ({"sampler": "static", "cache": "dual"}, {"sampler": {"name": "confidence", "threshold": 0.2}})
    ):
        status = finished(tab, pane)
        with server.client() as client:
            body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16, "seed": 0}
            reply = client.post("/v1/chat/completions", json={**body, "diffusion": diffusion}).json()["choices"][0]
        assert tab.locator(".reply").nth(pane).inner_text() == reply["message"]["content"]
        assert re.search(rf"\b{reply['diffusion']['nfe']} forwards? in all", status) and "16 of 16 committed" in status
    boxes = [tab.locator(".pane").nth(pane).bounding_box() for pane in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    last = int(tab.get_attribute("#step", "max"))
    assert 1 < last <= 16, "a picture for every forward, unless the page came too late for some"
    assert tab.locator(".text").first.locator(".mask, .guess").count() == 0
    full = tab.locator(".text").first.inner_text()
    tab.focus("#step")
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowRight")
    assert re.fullmatch(r"forward [1-9] of 16", tab.inner_text("#where")), "the first that the page was in time for"
    assert tab.locator(".text").first.locator(".mask, .guess").count() > 0
    assert tab.locator(".text").first.inner_text() != full
    with tab.expect_download() as downloading:
        tab.locator("button", has_text="Download trace").first.click()
    file = tmp_path / "trace.json"
    downloading.value.save_as(file)
    data, trace = read_trace(file)
    assert len(trace.turns) == 16 and data["config"]["sampler"]["_target_"].endswith("Static")
    json.dumps(data, allow_nan=False)
    assert "static" in (page := write([file]).read_text()) and "dual" in page


def test_a_late_reader_paints_the_forwards_of_the_trace(tab: Any) -> None:
    """Two of three snapshots are lost on their way to the page."""

    def thinned(route: Any) -> None:
        reply = route.fetch()
        blocks = reply.text().split("\n\n")
        shots = [block for block in blocks if block.startswith("event: diffusion.snapshot")]
        route.fulfill(response=reply, body="\n\n".join(one for one in blocks if one not in shots or one in shots[2::3]))

    tab.route("**/v1/chat/completions", thinned)
    choose(tab, 0, sampler="static")
    tab.click("#run")
    finished(tab)
    pictures = int(tab.get_attribute("#step", "max"))
    assert 1 < pictures <= 5
    with tab.expect_download() as downloading:
        tab.locator("button", has_text="Download trace").click()
    commits = final_commits(read_trace(downloading.value.path())[1])
    tab.focus("#step")
    for picture in range(pictures, 0, -1):
        until = int(re.search(r"forward (\d+)", tab.locator(".status").inner_text())[1])  # type: ignore[index]
        titles = tab.locator(".text .t").evaluate_all("all => all.map(one => one.title)")
        painted = {at: int(title.rpartition(" ")[2]) for at, title in enumerate(titles) if ", forward" in title}
        assert painted == {one.position: one.turn + 1 for one in commits if one.turn < until}
        shades = tab.locator(".text .t").evaluate_all("all => all.map(one => one.style.backgroundColor)")
        assert len({shades[at] for at in painted}) == len(set(painted.values()))
        tab.keyboard.press("ArrowLeft")
        shown = int(re.search(r"forward (\d+) of", tab.inner_text("#where"))[1])  # type: ignore[index]
        assert shown < until or picture == 1, "the slider names forwards, whatever pictures are missing"


def test_a_setting_that_does_not_fit_shows_the_sentence(tab: Any) -> None:
    choose(tab, 0, cache="dkv_greedy")
    tab.click("#run")
    finished(tab, state="refused")
    assert "dkv_greedy" in tab.inner_text(".refused")
    assert [text for text in tab.problems if "400" not in text] == []
    tab.problems.clear()
    choose(tab, 0, cache="none")
    tab.keyboard.press("Control+Enter")
    finished(tab)
    assert tab.locator(".refused:visible").count() == 0
    assert tab.locator("#earlier option").count() == 2
    tab.select_option("#earlier", "1")
    assert "dkv_greedy" in tab.inner_text(".refused")


def test_a_form_holds_for_the_answer_or_says_what_is_wrong(browser: Any, written_model: Model) -> None:
    with live(written_model, defaults=writing(written_model)) as started:
        page = browser.new_page()
        page.goto(started.url)
        page.wait_for_selector("#form option[value=choice]", state="attached")
        assert not page.is_visible("#formtext")
        for form, text, holds in (
            ("regex", "[ab]{3}-[0-9]{2}", "[ab]{3}-[0-9]{2}"),
            ("choice", "yes\nno", "yes|no"),
            ("json_schema", '{"enum": ["x", "yy"]}', r'\s*"(x|yy)"\s*'),
        ):
            page.select_option("#form", form)
            page.fill("#formtext", text)
            page.click("#run")
            finished(page)
            assert re.fullmatch(holds, page.locator(".reply").first.text_content())
        for form, text, sentence in (
            ("regex", "a(", "response_format.pattern='a(' is no regular expression"),
            ("json_schema", "{", "The schema is not JSON"),
        ):
            page.select_option("#form", form)
            page.fill("#formtext", text)
            page.click("#run")
            finished(page, state="refused")
            assert sentence in page.inner_text(".refused")
        page.close()


def test_stop_frees_the_row(tab: Any, server: Live) -> None:
    tab.fill("#length", "192")  # an end of text came before the key on a machine of its own
    choose(tab, 0, sampler="static", eos="none")
    tab.click("#run")
    tab.wait_for_selector(".t.guess, .t.mask")
    tab.keyboard.press("Escape")
    finished(tab, state="stopped")
    assert server.free_within(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_playground_is_legible_in_both_schemes(browser: Any, server: Live, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.goto(server.url)
    page.wait_for_selector("select[name=sampler]")
    for place in (
        "h1",
        ".legend li",
        "#prompt",
        "label",
        "#run",
        ".choices legend",
        ".keys",
        "#form",
        "select[name=sampler]",
    ):
        assert page.evaluate(CONTRAST, place) >= 4.5, place
    page.close()


@pytest.fixture(scope="module")
def mini_server(mini_model: Model) -> Iterator[Live]:
    with live(mini_model, defaults=mini_defaults(mini_model)) as started:
        yield started


@pytest.fixture
def mini_tab(browser: Any, mini_server: Live) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(mini_server.url)
    page.wait_for_selector("select[name=sampler]")
    yield page
    assert page.problems == []
    context.close()


LAYOUT = """() => [...document.querySelectorAll(".text .t")].map(
    (one) => [one.offsetLeft, one.offsetTop, one.offsetWidth].join()).join(";")"""


def test_guessed_ends_are_signs_and_nothing_moves(mini_tab: Any) -> None:
    """Every picture of an answer of 96 tokens has its tokens in the same places, line breaks included."""
    choose(mini_tab, 0, sampler="static")
    mini_tab.fill("#prompt", "Latin square:\nA,B,C,D")
    mini_tab.fill("#length", "96")
    mini_tab.click("#run")
    finished(mini_tab)
    places, words = set(), ""
    for step in range(int(mini_tab.get_attribute("#step", "max")) + 1):
        mini_tab.evaluate("(step) => { go(step); }", step)
        places.add(mini_tab.evaluate(LAYOUT))
        words += mini_tab.inner_text(".text")
    assert len(places) == 1 and "<|" not in words and "\N{END OF PROOF}" in words and "|" not in words
    mini_tab.select_option("#speed", "30")
    mini_tab.click("#play")
    mini_tab.wait_for_function("() => Number(document.getElementById('where').textContent.split(' ')[1]) >= 5")
    mini_tab.click("#play")
    assert mini_tab.inner_text("#play").endswith("Play")


def test_positions_that_show_mixtures_have_a_bar(mini_tab: Any) -> None:
    """As the stream says of each frame; the title names the token."""
    choose(mini_tab, 0, sampler="remix")
    mini_tab.fill("#prompt", "Latin square:\nA,B,C,D")
    mini_tab.click("#run")
    finished(mini_tab)
    seen = 0
    for step, frame in enumerate(mini_tab.evaluate("shown.tracks[0].frames.map((one) => one.mixtures ?? {})"), 1):
        mini_tab.evaluate("(step) => { go(step); }", step)
        bars = mini_tab.locator(".text .t").evaluate_all(
            "all => all.flatMap((one, at) => one.matches('.mixed') ? [[String(at), one.title]] : [])"
        )
        assert [at for at, _ in bars] == [*frame]
        assert all(title.split("next forward sees ")[1].endswith(visible(frame[at][0])) for at, title in bars)
        seen += len(bars)
    assert seen and mini_tab.locator("#mixes").is_visible()


def visible(word: str) -> str:
    return word.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n") or "\N{EMPTY SET}"


def test_the_page_says_what_is_chosen(mini_tab: Any) -> None:
    assert "confidence (default)" in mini_tab.inner_text("select[name=sampler]")
    choose(mini_tab, 0, cache="dual")
    assert "cache dual: " in mini_tab.inner_text(".about")
    names = mini_tab.locator(".options input, .options select").evaluate_all("all => all.map((one) => one.name)")
    assert names.index("cache.refresh_interval") < names.index("cache.suffix_window"), "its own options come first"
    mini_tab.fill("#prompt", "Write a haiku")
    mini_tab.click("#run")
    finished(mini_tab)
    assert mini_tab.inner_text(".reply") == "(the answer is empty)"
    mini_tab.fill("#prompt", "  ")
    mini_tab.click("#run")
    assert "The prompt is empty" in mini_tab.inner_text("#said")
    mini_tab.locator("#examples button").first.click()
    finished(mini_tab)
    assert mini_tab.locator(".note:visible").count() == 0 and "Emma" in mini_tab.inner_text(".reply")


def test_a_conversation_keeps_its_turns(mini_tab: Any) -> None:
    mini_tab.check("#talk")
    for count, prompt in enumerate(('Copy the list:\n["Kai", "Emma"]', 'Sort the list:\n["Kai", "Emma"]'), 1):
        mini_tab.fill("#prompt", prompt)
        mini_tab.click("#run")
        mini_tab.wait_for_function("(n) => document.querySelectorAll('.said li').length === n", arg=2 * count)
    assert mini_tab.input_value("#prompt") == ""
    assert mini_tab.locator(".said li").nth(2).inner_text() == 'Sort the list:\n["Kai", "Emma"]'
    mini_tab.uncheck("#talk")
    assert mini_tab.locator(".said li").count() == 0


def copied(page: Any, kind: str) -> str:
    page.evaluate("() => navigator.clipboard.writeText('')")
    page.select_option("#copy", kind)
    page.wait_for_function("async () => (await navigator.clipboard.readText()) !== ''")
    return str(page.evaluate("() => navigator.clipboard.readText()"))


def test_what_the_page_asks_can_be_taken_along(mini_tab: Any, mini_server: Live, browser: Any) -> None:
    """As curl and Python that give the page's reply, as a command line, and as the page's address."""
    mini_tab.fill("#prompt", 'Sort the list, it\'s short:\n["Kai", "Emma", "Hugo"]')
    choose(mini_tab, 0, sampler="credit", cache="dual")
    mini_tab.locator("input[name='sampler.beta']").fill("0.5")
    mini_tab.fill("#length", "24")
    mini_tab.click("#run")
    finished(mini_tab)
    reply = mini_tab.inner_text(".reply")
    told = subprocess.run(["bash", "-c", copied(mini_tab, "curl")], capture_output=True, text=True, timeout=30)
    assert json.loads(told.stdout)["choices"][0]["message"]["content"] == reply, told.stderr
    pytest.importorskip("openai", reason="openai is not installed: pip install -e '.[dev]'")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(copied(mini_tab, "python"), "copied", "exec"), {})
    assert said.getvalue().strip() == reply
    words = shlex.split(copied(mini_tab, "command"))
    assert words[:2] == ["dllm", "run"] and words[2].startswith("Sort the list, it's short:\n[")
    assert {"sampler=credit", "sampler.beta=0.5", "cache=dual", "gen_length=24", "seed=0", "model=mini-llada"} <= {
        *words
    }
    other = browser.new_page()
    other.goto(copied(mini_tab, "link"))
    other.wait_for_selector("input[name='sampler.beta']")
    assert other.input_value("input[name='sampler.beta']") == "0.5" and other.input_value("#length") == "24"
    assert other.input_value("#prompt").startswith("Sort the list, it's") and mini_server.url in other.url
    other.close()


def test_a_server_that_is_gone_is_told_in_own_words(browser: Any, served: Model) -> None:
    with live(served) as started:
        page = browser.new_page(viewport={"width": 390, "height": 780})
        page.goto(started.url)
        page.wait_for_selector("select[name=sampler]")
        page.fill("#length", "16")
        page.click("#run")
        finished(page)
        box = page.locator(".text").bounding_box()
        assert 0 <= box["y"] < page.locator("footer").bounding_box()["y"] - 40, "on a phone the answer is in view"
    page.click("#run")
    finished(page, state="refused")
    assert page.inner_text(".refused").startswith("The server does not answer.")
    page.close()


@pytest.fixture(scope="module")
def deciding(browser: Any, mini_model: Model, mini: Defaults) -> Iterator[tuple[Any, Live]]:
    """The page of mini-llada with its decisions unfolded. An error of a script fails the test."""
    with live(mini_model, defaults=mini) as server:
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.goto(server.url)
        page.wait_for_selector("select[name=sampler]")
        page.click("#decide summary")
        yield page, server
        assert page.problems == []
        page.close()


def weighed(page: Any) -> list[list[str]]:
    """Each bar's alternative, its share, and the bar's width to the percent, once they are there."""
    page.wait_for_function("() => document.getElementById('weighed').textContent !== ''")
    rows = page.locator("#weights tr")
    return [
        [
            row.locator("th").inner_text(),
            row.locator(".share").inner_text(),
            row.locator(".bar").evaluate("bar => bar.style.width"),
        ]
        for row in rows.all()
    ]


def test_a_decision_has_a_bar_for_each_alternative(deciding: tuple[Any, Live]) -> None:
    page, server = deciding
    page.click("#example")
    (best, *rest), told = weighed(page), page.inner_text("#weighed")
    with server.client() as client:
        choices = [{"value": name} for name in ("Kai", "Emma", "Hugo")]
        body = {
            "input": page.input_value("#prompt"),
            "questions": [{"type": "choice", "choices": choices}],
            "diffusion": {"template": '["{slot}", "'},
        }
        (answer,) = client.post("/v1/decisions", json=body).json()["answers"]
    top = max(one["probability"] for one in answer["probabilities"])
    assert best[:2] == ["Emma", f"{100 * top:.0f} %"] and float(best[2].rstrip("%")) == pytest.approx(
        100 * top, abs=0.1
    )
    assert {row[0] for row in rest} == {"Kai", "Hugo"} and all(row[1] == "< 0.1 %" for row in rest)
    assert page.locator(".chosen th").inner_text() == "Emma"
    assert "1 forward · 1 canvas ·" in told and "not calibrated" in told
    boxes = [page.locator("#weights .bar").nth(at).bounding_box() for at in range(3)]
    assert boxes[0]["width"] > 100 * max(1, boxes[1]["width"]) and boxes[0]["x"] == boxes[1]["x"]


def test_what_is_refused_of_a_decision_is_said(deciding: tuple[Any, Live]) -> None:
    page, _ = deciding
    page.fill("#alternatives", "Kai\nKai")
    page.click("#weigh button[type=submit]")
    page.wait_for_selector("#unweighed:not([hidden])")
    assert "must be distinct" in page.inner_text("#unweighed") and page.locator("#weights tr").count() == 0
    page.fill("#alternatives", "\n".join(f"{n}" for n in range(40)))
    page.click("#weigh button[type=submit]")
    assert len(weighed(page)) == 32 and "likeliest 32 of 40" in page.inner_text("#weighed")
    assert page.locator("#unweighed").is_hidden()
    page.goto(page.url)  # the address holds what was asked
    page.reload()
    page.wait_for_selector("select[name=sampler]")
    page.wait_for_function("() => document.getElementById('alternatives').value.startsWith('0\\n')")
    assert page.locator("#weigh").is_visible()
