"""The command line: ``python run.py`` and ``dllm``. Errors of the user end as one sentence on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dllm.app.command_line.grids import count, expanded, refuse_grids
from dllm.app.command_line.help import help_text
from dllm.app.command_line.options import sound
from dllm.app.command_line.overrides import flags_of, names, quoted
from dllm.app.command_line.refusals import check, explain
from dllm.app.jobs.environment import version_of
from dllm.app.jobs.plan import resumed
from dllm.compose.parts import class_of, composed
from dllm.errors import UserError

# Jobs of a sweep that an engine takes together, since it spreads the samples of all cells over its workers.
TOGETHER: list[tuple[dict[str, Any], list[str], Path]] = []
PLACES: list[str] = []  # what the cells still to come are called, such as "cell 2 of 6"
ADVICE = "Lower batch_size or gen_length, or choose model.dtype=bfloat16 or a smaller model."


@hydra.main(config_path="pkg://dllm.conf", config_name="config", version_base="1.3")  # type: ignore[untyped-decorator]
def run(config: DictConfig) -> None:
    """What Hydra starts: a cell of a sweep, or a run with Hydra's own flags."""
    own = HydraConfig.get()
    with sentences(own.overrides.task):  # here, since Hydra adds lines of its own to what it sees
        if own.mode == RunMode.MULTIRUN:
            job(resolved(config), list(own.overrides.task), Path(own.sweep.dir))
        else:
            single(config, [*own.overrides.task, *own.overrides.hydra], own.run.dir)


def single(config: DictConfig, overrides: Sequence[str], folder: str) -> None:
    """Hand a configuration to the task that was chosen. folder: hydra.run.dir, which the user may have set."""
    refuse_grids(config.grids, overrides)
    given = names(overrides)
    settings = sound(resumed(placed(resolved(config), given, folder), given))
    task = settings["task"]["run"]
    try:
        start = resolve_name(str(task))
    except (ImportError, AttributeError, ValueError):
        raise UserError(f"task.run={task!r} names no function of a module. Choose a task by task=NAME.") from None
    start(settings, given)


def resolved(config: DictConfig) -> dict[str, Any]:
    """A configuration as dictionaries, without the grids, which are other command lines."""
    kept = OmegaConf.masked_copy(config, [key for key in map(str, config) if key not in ("grids", "hydra")])
    settings = OmegaConf.to_container(kept, resolve=True)
    assert isinstance(settings, dict)
    return {str(key): value for key, value in settings.items()}


def placed(settings: dict[str, Any], given: Sequence[str], folder: str) -> dict[str, Any]:
    """Settings with the run's folder where hydra.run.dir has it, if the user set that."""
    if "hydra.run.dir" not in given:
        return settings
    for name in ("name", "output", "resume"):
        if name in given:
            given_too = f"{name}={settings[name]}"
            raise UserError(f"hydra.run.dir={folder} and {given_too} both say where the run goes. Drop one.")
    place = Path(folder).absolute()
    return {**settings, "output": str(place.parent), "name": place.name}


def job(settings: dict[str, Any], given: list[str], folder: Path) -> None:
    """One cell of a sweep: now, or together with the others when all are known."""
    from dllm.app.commands.evaluate import sweep

    settings = sound(settings)
    if class_of("engine", settings["engine"]["_target_"]).together:  # type: ignore[attr-defined]
        TOGETHER.append((settings, given, folder))
    else:
        sweep([(settings, given)], folder, PLACES.pop(0) if PLACES else "")


def main() -> None:
    """Exit codes: 0 done, 1 a replay differs, 2 something to put right, 3 samples failed, 130 stopped by Ctrl-C."""
    given = sys.argv[1:]
    # Hydra then raises its errors instead of printing them, which happens below.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    for stream in (sys.stdout, sys.stderr):  # whatever a model says, and wherever it is shown
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with sentences(quoted(given)):
            obey(quoted(given))
            sys.stdout.flush()
    finally:
        sys.argv[1:] = given


def obey(arguments: list[str]) -> None:
    """Do what the command line says."""
    if "--version" in arguments:
        print("dllm", version_of("dllm") or "of a checkout that is not installed")
        return
    flags, hydras = flags_of(arguments)
    # The default, for which Hydra has no word.
    flags.overrides = [text for text in flags.overrides if text != "experiment=null"]
    check(flags.overrides, flags.multirun or flags.help)
    if flags.help:
        print(help_text([text for text in flags.overrides if count([text]) == 1]))
    elif flags.multirun:
        sweep(flags.overrides, hydras)
    elif hydras:
        sys.argv[1:] = [*hydras, *flags.overrides]
        run()
    else:
        config = composed(flags.overrides, whole=True)
        HydraConfig.instance().set_config(config)  # which ${hydra:...} reads
        single(config, flags.overrides, config.hydra.run.dir)


def sweep(overrides: list[str], flags: list[str]) -> None:
    """Every cell of every grid."""
    from dllm.app.commands.evaluate import sweep as evaluate

    grids = expanded(overrides)
    total = sum(map(count, grids))
    PLACES[:] = [f"cell {number} of {total}" for number in range(1, total + 1)]
    for arguments in grids:
        sys.argv[1:] = ["-m", *flags, *arguments]
        run()
    jobs, TOGETHER[:] = list(TOGETHER), []
    if jobs:
        evaluate([(settings, given) for settings, given, _ in jobs], jobs[0][2])


@contextmanager
def sentences(overrides: Sequence[str]) -> Iterator[None]:
    """Errors that the user can put right as one sentence each. What comes through is a mistake of the program."""
    try:
        yield
    except UserError as error:
        stop(str(error))
    except (HydraException, OmegaConfBaseException, RecursionError) as error:
        stop(explain(error, overrides))
    except BrokenPipeError:  # whoever read the output has enough; nothing may be flushed to it at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:
        stop(f"{error.filename or 'the system'}: {error.strerror or error}. Mend that, or name another place.")
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "out of memory" in str(error) or "allocate memory" in str(error)):
            raise
        stop(f"there is not enough memory ({str(error).strip().splitlines()[0]}). {ADVICE}")
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        raise SystemExit(130) from None


def stop(sentence: str) -> NoReturn:
    print("Error:", " ".join(sentence.split()), file=sys.stderr)
    raise SystemExit(2)
