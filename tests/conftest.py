"""One torch thread for every test: with two, a busy neighbour makes each small operation wait.

Triton kernels run in its interpreter, which must be known before anything imports Triton. Every decode checks what the
package otherwise takes for granted (``dllm.common.debug``): rows that are attended to were written, bounds hold.
Neither is so on a GPU (DLLM_DEVICE=cuda, for ``tests/gpu``): there kernels run as they are, and checks, which ask the
device, would keep turns from being recorded.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

with suppress(ImportError):
    import setuptools  # noqa: F401  replaces distutils, which fails in torch's compiler once others have imported that

import pytest
import torch

from dllm.parts import use_folder
from tests.support.draw import drawn_by
from tests.support.drawn_models import write_all
from tests.support.tiny import make_tiny, make_written

CASES = 2  # of a parametrised test in ``--part sample``
# Of tables of refusals all cases run: each is a guard of its own, and takes milliseconds.
REFUSALS = re.compile("refus|mistake")
GPU, EXPERIMENTS = (Path(__file__).with_name(name) for name in ("gpu", "experiments"))
SLOW = Path(__file__).with_name("slow.txt")  # tests of more than a second of CPU, which ``--part sample`` leaves out

INTERPRETED = os.environ.get("DLLM_DEVICE") != "cuda"
os.environ["TRITON_INTERPRET"] = str(int(INTERPRETED))
os.environ["DLLM_DEBUG"] = str(int(INTERPRETED))  # also in the processes that tests start
# Also of these: what is fastest changes with the processor, and the last digit with it.
os.environ["DLLM_MACHINE_NOTE"] = str(Path(__file__).with_name("data") / "machine_note.json")
torch.set_num_threads(1)
write_all()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=("all", "sample", "rest", "others"),
        default="all",
        help=f"sample: {CASES} cases of each test that is fast, of refusals all; rest: what sample leaves out; others: "
        "rest, programs, and the tests of tests/experiments and tests/gpu",
    )
    parser.addoption("--share", type=float, default=1.0, help="of the cases of a part: drawn by --draw")
    parser.addoption("--draw", default="0", help="seed of --share: a commit, a date")


@pytest.fixture(autouse=True)
def shipped_choices_alone() -> Iterator[None]:
    """What a test adds to the choices, by --config-dir or as MODULE.CLASS, ends with it."""
    yield
    use_folder(None)


@pytest.hookimpl(tryfirst=True)  # before pytest goes by the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What opens a browser is marked ``program``. LAWS_SEED draws the cases of a test that run: n of one that is marked
    ``daily(n)`` (under DLLM_LAWS=all, all), and in ``--part sample`` ``CASES`` of any other that is no table of
    refusals."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("program")
        cases[item.nodeid.partition("[")[0]].append(item)
    part, slow = config.getoption("part"), set(SLOW.read_text().splitlines())
    kept = set[pytest.Item]()
    for name, found in cases.items():
        draw = Random(f"{name} {os.environ.get('LAWS_SEED', '0')}")
        marker = found[0].get_closest_marker("daily")
        count = len(found)
        if marker and os.environ.get("DLLM_LAWS") != "all":
            count = min(count, marker.args[0])
        drawn = draw.sample(found, count)
        whole = marker or REFUSALS.search(name.rpartition("::")[2])
        first = [] if name in slow else drawn if whole else drawn[:CASES]
        apart = {item for item in drawn if item.get_closest_marker("program") or item.path.is_relative_to(EXPERIMENTS)}
        others = {*drawn} if found[0].path.is_relative_to(GPU) else {*drawn} - {*first} | apart
        kept |= {"all": {*drawn}, "sample": {*first}, "rest": {*drawn} - {*first}, "others": others}[part]
    share, seed = config.getoption("share"), config.getoption("draw")
    kept = {item for item in kept if share == 1 or drawn_by(seed, item.nodeid) < share}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Minutes of tests by what they are, all processes together."""
    minutes: dict[str, float] = defaultdict(float)
    timed = [one for reports in terminalreporter.stats.values() for one in reports if hasattr(one, "duration")]
    for one in timed:
        folder = one.nodeid.split("/")[1]
        other = "programs" if "program" in one.keywords else "others"
        minutes[folder if folder in ("gpu", "experiments") else other] += one.duration / 60
    terminalreporter.write_line("Minutes: " + ", ".join(f"{name} {spent:.1f}" for name, spent in minutes.items()))


@pytest.fixture(autouse=True)
def gradients_as_they_begin() -> Iterator[None]:
    """A decode that another test left halfway, in a generator, holds inference mode until it is collected."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@pytest.fixture(scope="session", autouse=True)
def no_files_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled constraints are kept with the tests' other files, and none of the user's is read."""
    from dllm.parts import STORE  # not before TRITON_INTERPRET is set

    STORE.folder = tmp_path_factory.mktemp("constraints")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint folder, with tokenizer and chat template."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a byte-level tokenizer of 60 printable signs."""
    return make_written(tmp_path_factory.mktemp("models") / "written")
