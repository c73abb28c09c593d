"""The command line: ``python run.py`` and ``dllm``. Errors of the user end as one sentence on stderr."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dllm.errors import UserError
from dllm.run.overrides import explain, names, quoted


@hydra.main(config_path="pkg://dllm.conf", config_name="config", version_base="1.3")  # type: ignore[untyped-decorator]
def run(config: DictConfig) -> None:
    """Hand the resolved configuration to the task that was chosen."""
    given = names(HydraConfig.get().overrides.task)
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    settings: dict[str, Any] = {str(key): value for key, value in resolved.items()}
    try:
        hydra.utils.get_method(settings["task"]["run"])(settings, given)
    except UserError as error:  # here, since Hydra adds a line of its own to what it sees
        stop(str(error))


def main() -> None:
    """Exit codes: 0 done, 1 a replay differs, 2 something to put right, 130 stopped by Ctrl-C."""
    sys.argv[1:] = quoted(sys.argv[1:])
    # Hydra then raises its errors instead of printing them, which happens below.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        run()
    except (HydraException, OmegaConfBaseException) as error:
        stop(explain(error, sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        raise SystemExit(130) from None


def stop(sentence: str) -> NoReturn:
    print("Error:", " ".join(sentence.split()), file=sys.stderr)
    raise SystemExit(2)
