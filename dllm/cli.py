"""The command line: ``python run.py`` and ``dllm``. Errors of the user end as one sentence on stderr."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dllm.errors import UserError
from dllm.run.grids import count, expanded
from dllm.run.help import help_text
from dllm.run.overrides import explain, names, quoted
from dllm.run.plan import resumed

# Jobs of a sweep that an engine takes together, since it spreads the samples of all cells over its workers.
TOGETHER: list[tuple[dict[str, Any], list[str], Path]] = []
PLACES: list[str] = []  # what the cells still to come are called, such as "cell 2 of 6"


@hydra.main(config_path="pkg://dllm.conf", config_name="config", version_base="1.3")  # type: ignore[untyped-decorator]
def run(config: DictConfig) -> None:
    """Hand the resolved configuration to the task that was chosen, or to the sweep it belongs to."""
    own = HydraConfig.get()
    given = list(own.overrides.task)
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    settings: dict[str, Any] = {str(key): value for key, value in resolved.items() if key != "grids"}
    try:
        if own.mode == RunMode.MULTIRUN:
            job(settings, given, Path(own.sweep.dir))
        else:
            settings = resumed(settings, names(given))
            hydra.utils.get_method(settings["task"]["run"])(settings, names(given))
    except UserError as error:  # here, since Hydra adds a line of its own to what it sees
        stop(str(error))


def job(settings: dict[str, Any], given: list[str], folder: Path) -> None:
    """One cell of a sweep: now, or together with the others when all are known."""
    from dllm.run.evaluate import sweep

    if hydra.utils.get_class(settings["engine"]["_target_"]).together:
        TOGETHER.append((settings, given, folder))
    else:
        sweep([(settings, given)], folder, PLACES.pop(0) if PLACES else "")


def main() -> None:
    """Exit codes: 0 done, 1 a replay differs, 2 something to put right, 3 samples failed, 130 stopped by Ctrl-C."""
    sys.argv[1:] = quoted(sys.argv[1:])
    # Hydra then raises its errors instead of printing them, which happens below.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    given = sys.argv[1:]
    try:
        if {"-h", "--help"} & set(given):
            print(help_text(given))
            return
        grids = expanded(given)
        total = sum(map(count, grids))
        PLACES[:] = [f"cell {number} of {total}" for number in range(1, total + 1)]
        for arguments in grids:
            sys.argv[1:] = arguments
            run()
        together()
    except UserError as error:
        stop(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        stop(explain(error, given))
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        sys.argv[1:] = given


def together() -> None:
    """The jobs that waited for each other."""
    from dllm.run.evaluate import sweep

    jobs, TOGETHER[:] = list(TOGETHER), []
    if jobs:
        sweep([(settings, given) for settings, given, _ in jobs], jobs[0][2])


def stop(sentence: str) -> NoReturn:
    print("Error:", " ".join(sentence.split()), file=sys.stderr)
    raise SystemExit(2)
