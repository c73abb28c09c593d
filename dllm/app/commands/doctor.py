"""``dllm doctor``: what of this installation works, and what to do about the rest.

Nothing of other packages is imported here. What may be broken is tried in a process of its own, which says what it sees
line by line: one that dies leaves what it had said. Models are the matter of ``dllm check``.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import NamedTuple

from dllm.common.cache_folder import cache_folder
from dllm.common.errors import first_line
from dllm.common.installing import install_command, requirements
from dllm.common.terminal import VisibleParser, complain, say
from dllm.common.versions import version_of

OK, NOTE, PROBLEM = "ok", "note", "problem"
# What extras are for. Those of developers are not here, and none whose packages exclude ours.
EXTRAS = {
    "constraints": "JSON schemas and grammars",
    "serve": "dllm serve",
    "report": "dllm report",
    "frame": "pandas",
    "sweeps": "sweeps on several processes or Slurm",
    "eval": "lm-eval's tasks",
    "text": "scores of texts",
    "hub": "data sets of the hub",
    "transformers": "checkpoints of transformers' own classes",
    "gguf": "GGUF files",
    "quantize": "float8 weights",
    "ray": "several machines",
    "distill": "training",
    "endpoint": "models behind an address",
}
_ANTLR = "antlr4-python3-runtime"  # Hydra's grammar is of one version of it, and another breaks every command
_MODULES = {"hydra-core": "hydra", "pyyaml": "yaml", _ANTLR: "antlr4"}  # of packages whose module has another name
_MARK = "\x1f"  # between the words of a line for the process that asked
_SECONDS = 180  # for libraries to load from a slow disk
_GIB, _PROBE_BYTES = 2**30, 2**20  # bytes; those that are written to see whether a disk takes them
_LIST, _ANSWER = 'Sort the list:\n["Kai", "Emma", "Hugo"]', '["Emma", "Hugo", "Kai"]'


class Finding(NamedTuple):
    """A line: how it stands, what it is about, what is there, and what to do about it."""

    level: str
    what: str
    says: str
    advice: str = ""


def run_doctor(arguments: Sequence[str]) -> None:
    """Print every finding. Exit code 1: there are problems."""
    does = "What of this installation works, and what to do about the rest."
    VisibleParser("dllm doctor", description=does).parse_args(arguments)
    problems = 0
    for finding in findings():
        problems += finding.level == PROBLEM
        say(f"{finding.level:8} {finding.what:14} {finding.says}", flush=True)
        if finding.advice:
            say(f"{'':24}{finding.advice}")
    if problems:
        count = "1 problem" if problems == 1 else f"{problems} problems"
        complain(f"{count}. Begin with the first: others may come from it.")
        raise SystemExit(1)
    say("No problems. Try: python -m dllm run 'Latin square: A,B,C,D'")


def findings() -> Iterator[Finding]:
    for what, look in (("Python", of_python), ("runs", of_runs), ("caches", of_caches)):
        yield from guarded(what, look)
    yield from from_a_process()
    for what, look in (("port", of_port), ("extras", of_extras)):
        yield from guarded(what, look)


def guarded(what: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What ``look`` sees. An error is a problem of its own: whatever is broken, the other lines come."""
    try:
        yield from look()
    except Exception as error:
        yield Finding(PROBLEM, what, f"{type(error).__name__}: {first_line(error)}.")


def of_python() -> Iterator[Finding]:
    yield Finding(OK, "Python", f"{platform.python_version()}, {platform.machine()}, {sys.executable}")
    place = shutil.which("dllm")
    if place is not None and Path(place).parent != Path(sys.executable).parent:
        says = f"dllm is {place}, of another environment or another program."
        yield Finding(NOTE, "command", says, "Write python -m dllm.")


def from_a_process() -> Iterator[Finding]:
    """What ``try_libraries`` says in a process of its own, and how that ended."""
    command = [sys.executable, "-P", "-c", "from dllm.app.commands.doctor import try_libraries; try_libraries()"]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    library, advice, end = "libraries", install_command(""), ""
    try:
        process = subprocess.run(command, env=place, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
        output = process.stdout
        if process.returncode:
            last = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
            end = f"Python ended with code {process.returncode} in it: {' '.join(last)[:200] or 'no reason is given'}."
    except subprocess.TimeoutExpired as late:
        output, end = late.stdout or b"", f"it was not done after {_SECONDS} s."
    for line in output.decode(errors="replace").splitlines():
        match line.split(_MARK):
            case ["tried", library, advice]:
                continue
            case ["sees", words]:
                yield Finding(*json.loads(words))
    if end:
        yield Finding(PROBLEM, library, end, advice)


def try_libraries() -> None:
    """Try what is heavy, in the process of ``from_a_process``: a line before each step, and one for each finding."""
    broken = set[str]()
    for requirement in (*antlr(), *requirements().get("", [])):
        name = re.split(r"[^\w.-]", requirement)[0]
        module, anew = _MODULES.get(name, name), f"pip install --force-reinstall '{requirement}'"
        say(_MARK.join(("tried", module, anew)), flush=True)
        if fault := fault_of(requirement):
            pass_on(Finding(PROBLEM, module, f"{fault}.", install_command("")))
        elif fault := not_imported(module):
            pass_on(Finding(PROBLEM, module, f"{fault}.", anew))
        broken |= {name} if fault else set()
    if not broken:
        pass_on(Finding(OK, "packages", "all that decoding needs"))
    steps = {"torch": of_torch, "psutil": of_memory, "huggingface_hub": of_hub, "": of_decode}  # by what each needs
    for needs, look in steps.items():
        if needs not in broken and (needs or not broken):
            say(_MARK.join(("tried", needs or "a decode", "Open an issue with these lines.")), flush=True)
            for finding in guarded(needs or "a decode", look):
                pass_on(finding)


def pass_on(finding: Finding) -> None:
    say(_MARK.join(("sees", json.dumps(finding))), flush=True)


def antlr() -> list[str]:
    """What Hydra requires of antlr's runtime."""
    try:
        return [re.sub("[() ]", "", line) for line in requires("hydra-core") or () if line.startswith(_ANTLR)]
    except PackageNotFoundError:
        return []


def fault_of(requirement: str) -> str | None:
    """Why what is installed does not meet ``NAME>=1,<2``; None where it does."""
    name, *_ = re.split(r"[^\w.-]", requirement)
    there = version_of(name)
    if there is None:
        return f"{name} is missing"
    for sign, bound in re.findall(r"(>=|<|==)\s*(\d[\d.]*)", requirement.partition(";")[0]):
        version, other = (tuple(map(int, re.findall(r"\d+", text))) for text in (re.split(r"[^\d.]", there)[0], bound))
        if not {">=": version >= other, "<": version < other, "==": version[: len(other)] == other}[sign]:
            return f"{name} {there} is here, and {sign}{bound.rstrip('.')} is needed"
    return None


def not_imported(module: str) -> str | None:
    """Why a module cannot be imported; None: it can."""
    try:
        import_module(module)
    except Exception as error:
        return f"it cannot be imported ({type(error).__name__}: {first_line(error)})"
    return None


def of_torch() -> Iterator[Finding]:
    import torch

    from dllm.kernels.dispatch import obstacle

    kinds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    build = " ".join(f"{kind} {version}" for kind, version in kinds.items() if version)
    yield Finding(OK, "torch", f"{torch.__version__}, built for {build or 'CPUs'}; threads: {torch.get_num_threads()}")
    for number in range(torch.cuda.device_count()):
        free, total = (f"{count / _GIB:.1f} GiB" for count in torch.cuda.mem_get_info(number))
        yield Finding(OK, f"GPU {number}", f"{torch.cuda.get_device_name(number)}, {free} free of {total}")
    if torch.cuda.is_available():
        why = obstacle(torch.device("cuda"))
        says = "its kernels run on the GPU" if why is None else "its kernels do not run; slower torch functions do."
        yield Finding(OK if why is None else NOTE, "Triton", says, why or "")
    elif build or shutil.which("nvidia-smi") or shutil.which("rocminfo"):
        advice = "If there is one, look at its driver (nvidia-smi, rocminfo), and install PyTorch's build for it."
        yield Finding(NOTE, "GPU", "torch sees none: decodes run on the CPU.", advice)
    else:
        yield Finding(OK, "GPU", "none: decodes run on the CPU, by torch functions in place of Triton kernels")
    yield from of_compiler()


def of_memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    says = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f}, {os.cpu_count()} cores"
    few = memory.available < _GIB
    yield Finding(NOTE if few else OK, "memory", says, "Only small models fit. Close other programs." if few else "")


def of_compiler() -> Iterator[Finding]:
    from dllm.kernels.native import compiler, library, passes

    program = compiler()
    if program is None:
        says = "none: rows of whole numbers take more passes, and Triton needs one."
        yield Finding(NOTE, "C compiler", says, "Install gcc or clang, or set CC to one.")
    elif library() is None:
        yield Finding(NOTE, "C compiler", f"{program} does not compile dllm's passes.", "Set CC to another.")
    else:
        yield Finding(OK, "C compiler", f"{program}: {passes()}")


def of_decode() -> Iterator[Finding]:
    from dllm.decoder import Decoder
    from dllm.models.bundle import load

    (result,) = Decoder(load("mini-llada"), gen_length=32)(_LIST)
    if result.text == _ANSWER:
        yield Finding(OK, "a decode", "mini-llada sorts a list")
    else:
        says = f"mini-llada answers {result.text!r}, not {_ANSWER!r}."
        yield Finding(PROBLEM, "a decode", says, "Open an issue with these lines: dllm or torch is wrong.")


def of_hub() -> Iterator[Finding]:
    from huggingface_hub import constants

    advice = "A model of 8 B takes 16 GiB: make room, or set HF_HOME to a folder on another disk."
    yield of_folder("hub models", Path(constants.HF_HUB_CACHE), NOTE, 20, advice)


def of_runs() -> Iterator[Finding]:
    advice = "Make room, change to another folder, or give output=FOLDER."
    yield of_folder("runs", Path("runs").absolute(), PROBLEM, 0.1, advice)
    yield of_folder("scratch", Path(tempfile.gettempdir()), NOTE, 0.1, "Make room, or set TMPDIR to another folder.")


def of_caches() -> Iterator[Finding]:
    advice = "Make room, or set XDG_CACHE_HOME to another folder: until then each run computes what is kept there."
    yield of_folder("caches", cache_folder(), NOTE, 0.1, advice)


def of_folder(what: str, folder: Path, level: str, least: float, advice: str) -> Finding:
    """Whether a folder, or the nearest one above it that is there, takes files. level: of one that does not, or has
    fewer than ``least`` GiB."""
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))  # noqa: PTH110  it never raises
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
        free = shutil.disk_usage(there).free / _GIB
    except OSError as error:
        return Finding(level, what, f"{folder} takes no files ({error.strerror or first_line(error)}).", advice)
    if free < least:
        return Finding(level, what, f"{folder} has {free:.2f} GiB left; {least:g} are wanted.", advice)
    return Finding(OK, what, f"{folder}, {free:.1f} GiB free")


def of_port() -> Iterator[Finding]:
    text = (Path(__file__).parents[2] / "conf" / "task" / "serve.yaml").read_text(encoding="utf-8")
    (port,) = map(int, re.findall(r"^port: (\d+)", text, re.MULTILINE))
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            listening.bind(("127.0.0.1", port))
            yield Finding(OK, "port", f"{port} is free for dllm serve")
        except OSError as error:
            says = f"{port} is not free ({error.strerror})."
            yield Finding(NOTE, "port", says, "Serve on another one: python -m dllm serve task.port=0")


def of_extras() -> Iterator[Finding]:
    faults = {extra: ", ".join(filter(None, map(fault_of, names))) for extra, names in requirements().items()}
    yield Finding(OK, "extras", ", ".join(extra for extra in EXTRAS if not faults.get(extra, "x")) or "none")
    for extra, use in EXTRAS.items():
        if fault := faults.get(extra):
            yield Finding(NOTE, f"[{extra}]", f"{use}: {fault}", install_command(extra))
