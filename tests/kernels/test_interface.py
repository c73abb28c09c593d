"""Every file of a kernel has the names that ``dllm.kernels`` promises, with one signature, and gives its formula."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from dllm import kernels
from dllm.kernels.builds import BUILDS, KERNELS
from dllm.kernels.jit import Kernel

FOLDER = Path(kernels.__file__).parent
DIFFERENT = {"head_statistics"}  # takes the product as a function too


def name_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def launchers(module: ModuleType) -> list[str]:
    """Public functions of the file itself that can run a kernel."""
    functions = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
    return [name for name, function in functions.items() if function.__module__ == module.__name__
            and not name.startswith("_") and "triton" in inspect.signature(function).parameters]  # fmt: skip


def test_every_file_with_a_kernel_is_listed() -> None:
    with_kernels = {file.stem for file in FOLDER.glob("*.py") if re.search(r"^@jit\(", file.read_text(), re.MULTILINE)}
    assert with_kernels == {name_of(module) for module in KERNELS}
    assert len(BUILDS) == sum(len(module.BUILDS) for module in KERNELS) > 0


@pytest.mark.parametrize("module", KERNELS, ids=name_of)
def test_reference_kernel_launcher_and_builds(module: ModuleType) -> None:
    own_kernels = [one for one in vars(module).values() if isinstance(one, Kernel)]
    assert all(build.kernel in own_kernels for build in module.BUILDS)
    launcher = next(name for name in launchers(module) if name != "chunked_head")
    own = inspect.signature(vars(module)[launcher]).parameters
    assert list(own)[-1] == "triton" and own["triton"].default is False
    if name_of(module) not in DIFFERENT:
        assert list(own)[:-1] == list(inspect.signature(module.reference).parameters)


@pytest.mark.parametrize("module", KERNELS, ids=name_of)
def test_the_head_of_a_file_gives_shapes_and_a_formula(module: ModuleType) -> None:
    assert module.__doc__ and re.search(r"\[[A-Z.]", module.__doc__), "shapes"
    assert " = " in module.__doc__ or "where" in module.__doc__, "formula"
