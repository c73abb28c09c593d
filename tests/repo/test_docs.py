"""What the documentation tells people to type runs: every block of code, and every command whose model is here."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import dllm
from dllm import Decoder, load
from dllm.app.command_line import main as cli
from dllm.app.command_line.commands import FILTER, TUNE, with_command
from dllm.app.command_line.commands import WORD_COMMANDS as WORDS_ALONE
from dllm.common import debug
from dllm.parts import DEFAULT_GEN_LENGTH, Cache, Sampler, Task, build_part, choices, composed, hydra_quoted
from experiments.pages.parts import options, sections
from experiments.pages.site_hooks import completed
from experiments.support.marked import marks
from tests.support.gguf_files import mini_gguf
from tests.support.mini_llama import mini_llama
from tests.support.stub_endpoint import Stub, answer, stub_endpoint
from tests.support.tiny import MODELS, make_tiny

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
READ = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
ADDED = ("add_a_sampler", "add_a_cache", "serving")  # tests of their own run these pages
# Pages whose commands another test runs, or that take minutes: here their commands are only read.
BASES = {"sampler": Sampler, "cache": Cache, "task": Task}
ONLY_READ = ("README", "CONTRIBUTING", "tasks", "sweeps", "evaluation", "kernels", "benchmarks", "tune")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def added(page: Path) -> dict[str, str]:
    """The files that a page adds: a line names each, and a fence follows."""
    return dict(re.findall(r"(?ms)^`((?:dllm|tests)/[\w/.]+)`:\n\n```\w+\n(.*?)```", page.read_text()))


def commands(page: Path) -> list[list[str]]:
    """The words of every command: lines set four columns in, outside fences, that begin with a program we know."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    lines = re.findall(r"^    ((?:python|pip|make|dllm|mkdocs|lm_eval|\.venv/bin/python) ?.*)$", text, re.MULTILINE)
    return [as_settings(shlex.split(bash_letters(line), comments=True)) for line in lines]


def bash_letters(line: str) -> str:
    """A line in which ``$'...\\n...'`` is what bash makes of it."""
    return re.sub(r"\$'([^']*)'", lambda found: "'" + found[1].replace("\\n", "\n") + "'", line)


def as_settings(words: list[str]) -> list[str]:
    """``python -m dllm`` with a short command as the words of ``python run.py``."""
    if words[:3] != ["python", "-m", "dllm"] or words[3:4] and words[3] in WORDS_ALONE:
        return words
    return ["python", "run.py", *with_command(words[3:])]


# -- code blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [p for p in READ if code(p, "python") and p.stem not in ADDED], ids=named)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # a page may write files
    names: dict[str, Any] = {}
    for block in [block for block in code(page, "python") if block not in added(page).values()]:
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", ["add_a_sampler", "add_a_cache", "tasks"])
def test_what_a_page_adds_runs_with_its_config_and_its_test(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = added(DOCS / f"{page}.md")
    paths, (module, config, test) = list(files), files.values()
    assert [Path(path).suffix for path in paths] == [".py", ".yaml", ".py"]
    assert [path for path in paths if not (ROOT / path).parent.is_dir()] == []
    for code_of, path in ((module, paths[0]), (test, paths[2])):
        # Not the order of imports: ruff knows a module as ours only where its file is there.
        command = [sys.executable, "-m", "ruff", "check", "--extend-ignore", "I001", "--stdin-filename", path, "-"]
        found = subprocess.run(command, cwd=ROOT, input=code_of, capture_output=True, text=True, timeout=60)
        assert found.returncode == 0, found.stdout
    name, group = paths[0].removesuffix(".py").replace("/", "."), paths[1].split("/")[2]
    made = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.setattr(debug, "ON", False)  # and put back whatever the page's test makes of it
    exec(compile(module, paths[0], "exec", dont_inherit=True), made.__dict__)  # its own imports of __future__
    names: dict[str, Any] = {}
    exec(compile(test, paths[2], "exec"), names)
    (run,) = [value for key, value in names.items() if key.startswith("test_")]
    run()
    options = {key: value for key, value in yaml.safe_load(config).items() if key not in ("name", "run")}
    assert options["_target_"].startswith(f"{name}.")
    built = getattr(made, options.pop("_target_").rpartition(".")[2])(**options)
    assert isinstance(built, BASES[group])


def test_a_new_sampler_takes_under_sixty_lines() -> None:
    assert sum(block.count("\n") for block in added(DOCS / "add_a_sampler.md").values()) < 60


def test_the_first_sampler_of_the_guide_fails_and_is_mended() -> None:
    """Its code says so itself, from top to bottom; the first class takes fifteen lines at most."""
    page = DOCS / "add_a_sampler.md"
    first, *rest = [block for block in code(page, "python") if block not in added(page).values()]
    assert len([line for line in first.splitlines() if line]) <= 15 and "\nassert half(shuffle)" in rest[0]
    names: dict[str, Any] = {}
    exec(compile("\n".join([first, *rest]), page.name, "exec", dont_inherit=True), names)
    assert names["result"].text != names["half"](names["shuffle"])[0].text


def test_the_model_file_of_the_page_has_the_keys_of_ours() -> None:
    (block,) = code(DOCS / "add_a_model.md", "yaml")
    ours = yaml.safe_load((ROOT / "dllm/conf/model/llada-8b-instruct.yaml").read_text())
    assert yaml.safe_load(block).keys() == ours.keys()


SHOWN = re.compile(r"(Copy|Sort|Reverse|Shuffle) the list:(.{0,8}?)(\[\\*\"[^\]']*\])", re.DOTALL)


def shown(text: str) -> list[tuple[str, str]]:
    """The task and the names of every list prompt in a text; escapes of the language around it are undone."""
    found = []
    for ask, between, names in SHOWN.findall(text):
        assert re.fullmatch(r"\\+n|\n *", between), f"{ask} the list:{between}{names}: the list has a line of its own"
        found.append((ask, names.replace("\\", "")))
    return found


TEXTS = [*READ, *sorted((ROOT / "dllm").rglob("*.py")), *sorted((ROOT / "dllm/conf/model").glob("*.yaml"))]


@pytest.mark.parametrize("file", [file for file in TEXTS if SHOWN.search(file.read_text())], ids=named)
def test_the_small_model_answers_every_prompt_that_is_shown(file: Path) -> None:
    decoder = Decoder(load("mini-llada"), gen_length=32)
    for ask, names in shown(file.read_text()):
        given, answer = json.loads(names), json.loads(decoder(f"{ask} the list:\n{names}")[0].text)
        if ask == "Shuffle":
            assert sorted(answer) == sorted(given) and answer != given
        else:
            assert answer == {"Copy": given, "Sort": sorted(given), "Reverse": given[::-1]}[ask], f"{ask}: {names}"


FIRST_TRY = 'Sort the list:\n["Nell", "Kai", "Emma", "Hugo"]'


OF_THEIR_OWN = ("dkv_greedy", "finished", "flash_verify", "focus", "linear_spec")  # of certain samplers or models


@pytest.mark.daily(12)
@pytest.mark.parametrize("cache", [name for name in choices("cache") if name not in OF_THEIR_OWN])
@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_a_prompt_of_a_first_try_is_answered_under_every_cache(name: str, cache: str) -> None:
    blocks = {"elastic": "whole", "flash_dllm": "whole", "window": "whole", "sliding": "sliding"}.get(cache, "fixed")
    if cache in ("dkv_prefill", "dkv_pd") and name == "mini-llada":
        pytest.skip("for Dream's alignment")
    eos = "stop_at_eos" if blocks == "sliding" else "fill_after_block"
    decoder = Decoder(load(name), "localleap", blocks, cache, eos, gen_length=32)
    assert decoder(FIRST_TRY)[0].text == '["Emma", "Hugo", "Kai", "Nell"]'


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_the_default_prompt_takes_many_forwards_and_is_answered(name: str) -> None:
    """The first minute shows diffusion: with the parts and options that nothing on the command line changes."""
    config = composed([f"model={name}"])
    assert config.model.path == name and composed([]).model.prompt == config.model.prompt
    parts = {group: build_part(group, config[group]) for group in ("sampler", "blocks", "cache", "eos")}
    result = Decoder(load(name), **parts, gen_length=DEFAULT_GEN_LENGTH)(str(config.model.prompt))[0]
    assert result.nfe >= 8 and result.stop_reason == "eos"
    asked, symbols = str(config.model.prompt).splitlines()
    square = [row.split(",") for row in result.text.splitlines()]
    assert asked == "Latin square:" and len(square) == 4
    for line in [*square, *zip(*square, strict=True)]:
        assert sorted(line) == sorted(symbols.split(","))


# -- commands ---------------------------------------------------------------------------------------------------


def checked(words: list[str]) -> Iterator[str]:
    """What is wrong with a command, as far as that shows without running it."""
    program, *rest = words
    if program.endswith("python") and rest[:1] == ["run.py"]:
        given = [word for word in hydra_quoted(rest[1:]) if not word.startswith("-")]
        try:
            if not {"-m", TUNE, FILTER} & {*rest} and not any(re.match(r"experiment=.*\.yaml$", word) for word in rest):
                composed(given)
        except Exception as error:
            yield str(error)
    elif program.endswith("python") and rest[:1] == ["-m"]:
        if find_spec(rest[1]) is None:
            yield f"no module {rest[1]}"
    elif program.endswith("python"):
        if not (ROOT / rest[0]).is_file():
            yield f"no file {rest[0]}"
    elif program == "make" and not re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
        yield f"no target {rest[0]}"
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named_extras = [found for word in rest for found in re.findall(r"(?:dllm|\.)\[([\w,]+)\]", word)]
        asked = [name for found in named_extras for name in found.split(",")]
        yield from (f"no extra {name}" for name in asked if name not in extras)


@pytest.mark.program
@pytest.mark.parametrize("page", [page for page in READ if commands(page)], ids=named)
def test_commands_name_what_exists(page: Path) -> None:
    assert [(words, problem) for words in commands(page) for problem in checked(words)] == []


MEASURED = re.compile(r" experiment=(tables/|methods )")
NOT_HERE = {"task=serve", "chat=true", TUNE, FILTER}  # they do not end, or take minutes


def runnable(page: Path) -> list[list[str]]:
    """The commands of a page that this test runs. Experiments have tests of their own, and so have grids of measured
    tables, which take minutes: ``test_sweep`` composes each, ``experiments.reproduce`` runs them."""
    if page.stem in ONLY_READ:
        return []
    return [
        words
        for words in commands(page)
        if (words[:2] == ["python", "run.py"] and not MEASURED.search(" ".join(words)) and not NOT_HERE & {*words})
        or words[:3] == ["python", "-m", "dllm.view"]
    ]


def settled(words: list[str], tiny: Path) -> list[str]:
    """A command for a small checkpoint where it names a folder of the reader's, and from the root of the clone."""
    words = [word.replace("=tests/data/", f"={ROOT / 'tests' / 'data'}/") for word in words]
    if any(word.endswith("=FOLDER2") for word in words):  # written from a model whose widths int4 takes, and then read
        return [
            word.replace("model.path=FOLDER", "model.path=mini-llada") if word.endswith("FOLDER") else word
            for word in words
        ]
    if "model.path=FOLDER" not in words or "task=check" in words:
        return [word.replace("=FOLDER", f"={tiny}") for word in words]
    kept = [word for word in words if not word.startswith(("gen_length=", "model.path="))]
    family = next((name for word, name in CAUSAL.items() if word in words), None)
    path = tiny if family is None else family_of(tiny, family)
    canvas = ["blocks.block_length=8"] if family == "dg_dev" else []
    return [*kept, *canvas, f"model.path={path}", "gen_length=16", "prompt=w1 w2", "model.device=cpu"]


MINI_LLAMA = "mini-llama"
CAUSAL = {
    "model=wedlm-8b": "tiny-wedlm",
    "model=nbdiff-7b": "tiny-nbdiff",
    "model=tiny-a2d": "tiny-a2d-mdlm",
    "model=tiny-a2d-bd3lm": "tiny-a2d-bd3lm",
    "model=dreamreasoner-8b": "tiny-diffcoder",
    "model=rnd1": "tiny-rnd1",
    "model=diffcoder-8b": "tiny-diffcoder",
    "model=nemotron-8b": "tiny-nemotron",
    "model=fastdllm-v2-7b": "tiny-fastdllm-v2",
    "model=efficient-dlm-8b": "tiny-a2d-bd3lm",
    "model=dmax-16b": "tiny-llada21",
    "model=diffusiongemma-26b": "dg_dev",
    "experiment=ar": MINI_LLAMA,
}  # their small ones


def family_of(tiny: Path, name: str) -> Path:
    """The small model of another family, with the tokenizer of ``tiny``."""
    folder = tiny.parent / name
    if folder.exists():
        return folder
    return mini_llama(folder) if name == MINI_LLAMA else make_tiny(folder, MODELS / name)


@pytest.fixture
def stub() -> Iterator[Stub]:
    """What URL stands for."""
    with stub_endpoint(lambda body, before: answer("x")) as found:
        yield found


LINE = '{"prompt": "Copy the list:\\n[\\"Kai\\", \\"Emma\\", \\"Ada\\"]", "answer": "x"}\n'


@pytest.mark.program
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=named)
def test_the_commands_of_a_page_run(
    stub: Stub,
    page: Path,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    for name in ("mine.jsonl", "FILE"):
        (tmp_path / name).write_text(LINE)
    if any("model.path=FILE.gguf" in words for words in runnable(page)):
        mini_gguf(tmp_path / "FILE.gguf")
    monkeypatch.setattr(sys, "argv", [])
    shown = outputs(page)
    for words in runnable(page):
        ran([word.replace("=URL", f"={stub.url}") for word in settled(words, tiny)])
        said = capfd.readouterr()
        assert [line for line in shown.get(tuple(words), ()) if flat(line) not in flat(said.out + said.err)] == []


@pytest.mark.program
def test_the_readme_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    shown = outputs(ROOT / "README.md")
    for words, lines in shown.items():
        ran([*words])
        said = capfd.readouterr()
        assert [line for line in lines if flat(line) not in flat(said.out + said.err)] == [], words
    assert len(shown) >= 4


def ran(words: list[str]) -> None:
    """Run a command in this process. Raises AssertionError with its exit code."""
    sys.argv = words[1:] if words[1] == "run.py" else words[2:]
    try:
        cli.main() if words[1] == "run.py" else runpy.run_module(words[2], run_name="__main__")
    except SystemExit as stop:
        assert not stop.code, words


def outputs(page: Path) -> dict[tuple[str, ...], list[str]]:
    """By the words of a command: the lines of the block of text that follows it at once."""
    found = re.findall(r"^    (python -m dllm [^\n]*)\n\n```text\n(.*?)```", page.read_text(), re.MULTILINE | re.DOTALL)
    return {
        tuple(as_settings(shlex.split(bash_letters(line), comments=True))): text.splitlines() for line, text in found
    }


def flat(text: str) -> str:
    """A text without the lines of its tables, and a space between words."""
    return " ".join(re.sub(r"[\u2500-\u257f]", " ", text).split())


# -- the site ---------------------------------------------------------------------------------------------------


PARTS = (
    "Rule",
    "What goes with it",
    "When it helps, when it hurts",
    "The paper's numbers",
    "Options",
    "Source",
    "Compared",
)
MAX_WORDS = 185  # of a sampler's page as it is kept


def built(page: Path) -> str:
    """A page as the site shows it."""
    return completed(page.read_text(), page)


@pytest.mark.parametrize("name", choices("sampler"))
def test_every_sampler_has_its_page_of_one_template(name: str) -> None:
    page = DOCS / "samplers" / f"{name}.md"
    text = built(page)
    assert text.startswith(f"# {name}\n") and f"(samplers/{name}.md)" in (DOCS / "samplers.md").read_text()
    found = re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE)
    assert found == [part for part in PARTS if part in found] and {*PARTS} - {*found} <= {
        PARTS[1],
        PARTS[-3],
        PARTS[-1],
    }
    assert commands(page) and len(page.read_text().split()) <= MAX_WORDS
    assert [typed for typed, _ in options("sampler", name).values() if f"- `{typed}`: " not in text] == []


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- made: " in page.read_text()], ids=named)
def test_what_the_site_makes_of_a_page_leaves_no_mark(page: Path) -> None:
    if page.stem != "compatibility":  # a minute; the site's own test builds it
        assert "<!-- made" not in built(page)


@pytest.mark.parametrize("page", [page for page in PAGES if ".csv)" in page.read_text()], ids=named)
def test_the_rows_of_a_page_lie_beside_it(page: Path) -> None:
    """Each line that is a link to a CSV file becomes a table of as many rows, and every such file is on a page."""
    text = page.read_text()
    for file in re.findall(r"^\[[^\]]*\]\(([\w/.-]+\.csv)\)$", text, re.MULTILINE):
        rows = (page.parent / file).read_text().splitlines()
        assert len(rows) > 1 and completed(f"[rows]({file})", page).count("\n|") == len(rows)


def test_every_csv_file_is_shown_on_a_page() -> None:
    shown = {
        (page.parent / file).resolve()
        for page in PAGES
        for file in re.findall(r"\]\(([\w/.-]+\.csv)\)", page.read_text())
    }
    assert {file for file in DOCS.rglob("*.csv") if file.parent.name != "small"} <= shown


def test_the_pages_of_parts_are_what_the_command_writes() -> None:
    old = [
        (page.name, mark)
        for page, mark, text in sections()
        if f"{marks(mark)[0]}\n\n{text}\n{marks(mark)[1]}" not in page.read_text()
    ]
    assert old == [], "run python -m experiments.pages.parts"


@pytest.mark.parametrize("group", ["sampler", "blocks", "cache", "eos", "length"])
def test_every_option_of_a_part_says_what_it_means(group: str) -> None:
    silent = [typed for name in choices(group) for typed, note in options(group, name).values() if not note]
    assert silent == []


def test_every_cache_has_its_section_with_its_options() -> None:
    text = (DOCS / "caches.md").read_text()
    assert re.findall(r"^### (\w+)$", text, re.MULTILINE) == choices("cache")
    assert re.findall(r"^<!-- made: cache (\w+) -->$", text, re.MULTILINE) == choices("cache")


def test_no_page_asks_an_index_for_dllm() -> None:
    """Nobody owns the name there."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    assert [page.name for page in pages if re.search(r"pip install '?dllm\b", page.read_text())] == []


def test_the_readme_counts_the_parts() -> None:
    said = (ROOT / "README.md").read_text().partition("## Install")[0]
    named = {"sampler": "samplers", "blocks": "block schedules", "cache": "caches", "eos": "end-of-text policies"}
    for group, name in named.items():
        found = re.search(rf"(more than )?(\d+)\s+\*\*{name}\*\*", said)
        said_fits = found and (
            len(choices(group)) > int(found[2]) if found[1] else len(choices(group)) == int(found[2])
        )
        assert said_fits, name


@pytest.mark.parametrize("page", [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")], ids=named)
def test_what_a_page_outside_the_site_names_is_there(page: Path) -> None:
    text = page.read_text()
    linked = [target for target in re.findall(r"\]\(([^)]+)\)", text) if not target.startswith(("http", "#"))]
    written = re.findall(r"`((?:dllm|docs|experiments|tests)/[\w/.-]+)`", text)
    paths = [path.partition("#")[0] for path in [*linked, *written] if "NAME" not in path]
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


def test_the_index_leads_to_every_page_of_the_site() -> None:
    linked = set(re.findall(r"\]\(([\w/]+\.md)\)", (DOCS / "index.md").read_text()))
    pages = {str(page.relative_to(DOCS)) for page in PAGES if page.parent.name != "samplers"} - {"index.md"}
    assert linked == pages
    assert pages < set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))


@pytest.mark.program
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "With every cache" in (tmp_path / "site" / "compatibility" / "index.html").read_text()
    assert (tmp_path / "site" / "diffusion" / "index.html").is_file()
    reference = (tmp_path / "site" / "reference" / "index.html").read_text()
    assert reference.count("Parameters:") > 10, "docstrings are not rendered"


def test_the_reference_has_every_public_name() -> None:
    listed = re.findall(r"^::: dllm\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(dllm.__all__)
