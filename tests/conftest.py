"""One torch thread for every test: with two, a busy neighbour makes each small operation wait.

Triton kernels run in its interpreter, which must be known before anything imports Triton. Every decode checks what the
package otherwise takes for granted (``dllm.common.debug``): rows that are attended to were written, bounds hold.
Neither is so on a GPU (DLLM_DEVICE=cuda, for ``tests/gpu``): there kernels run as they are, and checks, which ask the
device, would keep turns from being recorded.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

with suppress(ImportError):
    import setuptools  # noqa: F401  replaces distutils, which fails in torch's compiler once others have imported that

import pytest
import torch

from tests.support.tiny import make_tiny, make_written

INTERPRETED = os.environ.get("DLLM_DEVICE") != "cuda"
os.environ["TRITON_INTERPRET"] = str(int(INTERPRETED))
os.environ["DLLM_DEBUG"] = str(int(INTERPRETED))  # also in the processes that tests start
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before pytest goes by the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What opens a browser is marked ``program``. Of a test that is marked ``daily(n)`` so many cases run, which
    LAWS_SEED draws; under DLLM_LAWS=all, all do."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("program")
    if os.environ.get("DLLM_LAWS") == "all":
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("daily"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left = set[pytest.Item]()
    for name, found in cases.items():
        marker = found[0].get_closest_marker("daily")
        assert marker is not None
        draw = Random(f"{name} {os.environ.get('LAWS_SEED', '0')}")
        left |= {*found} - {*draw.sample(found, min(marker.args[0], len(found)))}
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=[*left])


@pytest.fixture(autouse=True)
def gradients_as_they_begin() -> Iterator[None]:
    """A decode that another test left halfway, in a generator, holds inference mode until it is collected."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@pytest.fixture(scope="session", autouse=True)
def no_files_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled constraints are kept with the tests' other files, and none of the user's is read."""
    from dllm.constraints.compiler import STORE  # not before TRITON_INTERPRET is set

    STORE.folder = tmp_path_factory.mktemp("constraints")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint folder, with tokenizer and chat template."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a byte-level tokenizer of 60 printable signs."""
    return make_written(tmp_path_factory.mktemp("models") / "written")
