"""The command line: ``python run.py`` and ``dllm``. Errors of the user end as one sentence on stderr."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dllm.app.command_line.commands import COMMANDS, FILTER, TUNE, with_command
from dllm.app.command_line.endpoint_settings import as_endpoint, is_endpoint
from dllm.app.command_line.grids import combinations, refuse_grids
from dllm.app.command_line.help import command_help, help_text
from dllm.app.command_line.launch import is_repeated_sentence, with_ranks
from dllm.app.command_line.options import checked_settings
from dllm.app.command_line.overrides import at_home, config_folder, flags_of, hydra_quoted, setting_names
from dllm.app.command_line.refusals import explain, refuse_settings
from dllm.app.command_line.sweep import run_or_hold_cell, run_sweep
from dllm.app.command_line.too_little import memory_advice
from dllm.app.commands.diff import run_diff
from dllm.app.commands.doctor import run_doctor
from dllm.app.commands.pull import run_list, run_pull
from dllm.app.commands.report import run_report
from dllm.app.runs.destinations import repeated, resumed
from dllm.common.errors import (
    COMMAND_LINE,
    TYPED_NAMES,
    Refusal,
    SettingWarning,
    UserError,
    first_line,
    nearest,
    worded_in,
)
from dllm.common.signals import SIGNALLED, Terminated, obey_signals, raise_if_told, work_is_done
from dllm.common.terminal import complain, excepthook, say
from dllm.common.versions import version_of
from dllm.compose.chosen_class import with_own_classes
from dllm.compose.config_choices import USER, store_inner_choices
from dllm.compose.naming import CHOICES, part_at, typed_choices
from dllm.compose.parts import composed, use_folder
from dllm.compose.trusted import VARIABLE, refuse_command, refuse_shapes, refuse_strangers, trust_choices, with_trust
from dllm.compose.tuned import with_tuned

_WORD_COMMANDS = {"report": run_report, "diff": run_diff, "doctor": run_doctor, "pull": run_pull, "list": run_list}
_AGAIN = "dllm.app.commands.again.run"
CHOICE_SETTINGS = ("allow_code", "published", "quantize")  # settings that some choices of ours bring


@hydra.main(config_path="pkg://dllm.conf", config_name="config", version_base="1.3")  # type: ignore[untyped-decorator]
def start(config: DictConfig) -> None:
    """Called by Hydra for each cell of a sweep."""
    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    with user_errors(overrides):  # here, since Hydra adds lines of its own to what it sees
        names = setting_names(overrides)
        run_or_hold_cell(as_endpoint(named_config(config, names), names), overrides, Path(hydra_config.sweep.dir))


def run_single(config: DictConfig, overrides: Sequence[str], folder: str, flags: Sequence[str]) -> None:
    """Run the command of the chosen task. folder: hydra.run.dir, which the user may have set. flags: of
    the command line, for ranks that it has to start."""
    refuse_grids(config.grids, overrides)
    names = setting_names(overrides)
    run_config = repeated(resumed(with_run_dir(named_config(config, names), names, folder), names), names)
    run_config = as_endpoint(run_config, names)
    refuse_command(task := run_config["task"].get("run"))
    settings = checked_settings(run_config)
    task = task if settings["again"] is None else _AGAIN
    try:
        start = resolve_name(task)
    except (ImportError, AttributeError, ValueError):
        raise UserError(f"task.run={task!r} names no function of a module. Choose a task by task=NAME.") from None
    with with_ranks(settings, [*flags, *overrides]):
        raise_if_told()
        start(settings, names)


def resolved(config: DictConfig) -> dict[str, Any]:
    """A configuration as dictionaries, without the grids, which became command lines of their own."""
    ours = OmegaConf.masked_copy(config, [key for key in map(str, config) if key not in ("grids", "hydra")])
    settings = OmegaConf.to_container(ours, resolve=True)
    assert isinstance(settings, dict)
    if USER.folder is not None:
        refuse_unknown_keys(settings)
        refuse_shapes(f"a file of {USER.folder}", settings)
    refuse_strangers("the configuration", settings)
    return {str(key): value for key, value in settings.items()}


def refuse_unknown_keys(settings: Mapping[Any, Any]) -> None:
    """Raise UserError for a setting that only a file of --config-dir can have brought, since nothing reads it."""
    names = {*map(str, composed([])), *CHOICE_SETTINGS}
    for name in map(str, settings):
        if name == "experiment":
            raise UserError("an experiment of --config-dir lacks its first line. Begin it with # @package _global_.")
        if name not in names:
            hint = nearest(name, names)
            raise UserError(f"{name} is set by a file of {USER.folder}, and nothing reads it.{hint} Drop it there.")


def named_config(config: DictConfig, names: Sequence[str]) -> dict[str, Any]:
    """The resolved configuration, with the name that the user typed for each part. names: the settings set."""
    settings = resolved(config)
    places = typed_choices(settings, HydraConfig.get().runtime.choices, names)
    TYPED_NAMES.update({str(part_at(settings, f"{place}._target_")): name for place, name in places.items()})
    return {**settings, CHOICES: places}


def with_run_dir(settings: dict[str, Any], names: Sequence[str], folder: str) -> dict[str, Any]:
    """Settings in which name and output say what hydra.run.dir says, if the user set that."""
    if "hydra.run.dir" not in names:
        return settings
    for name in ("name", "output", "resume"):
        if name in names:
            other = f"{name}={settings[name]}"
            raise UserError(f"hydra.run.dir={folder} and {other} both say where the run goes. Drop one.")
    place = Path(folder).absolute()
    return {**settings, "output": str(place.parent), "name": place.name}


def main() -> None:
    """Exit codes: 0 done, 1 a replay differs, 2 something to put right, 3 samples failed, 70 a server's decode thread
    died, 75 another rank or process died, 130 stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP."""
    sys.excepthook = excepthook
    caller = sys._getframe(1).f_globals.get("__name__")
    is_program = caller in ("__main__", "dllm.__main__")  # the process ends after this
    SIGNALLED.clear()
    obey_signals()
    sys.argv[1:] = arguments = words = [read_as_utf8(word) for word in sys.argv[1:]]
    # Hydra then raises its errors instead of printing them, which happens below.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    for stream in (sys.stdout, sys.stderr):  # a model may write what the terminal's encoding lacks
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, TextIOWrapper):  # and a person type what the terminal's encoding lacks
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        with worded_in(COMMAND_LINE), user_errors(words), warnings_as_sentences():
            words = with_trust(words)
            use_folder(config_folder(words))
            if USER.folder is not None:
                from dllm.app.command_line.own_files import install  # here: it takes a search for Hydra's plugins

                install()
                trust_choices(words)
            store_inner_choices()
            word_command = _WORD_COMMANDS.get(words[0] if words else "")
            if word_command is not None:
                word_command(at_home(words[1:]))
            else:
                settings = hydra_quoted(with_tuned(with_command(words)))
                with user_errors(settings):
                    dispatch(with_own_classes(settings), words[0] if words and words[0] in COMMANDS else None)
            sys.stdout.flush()
            raise_if_told()
            if is_program:
                work_is_done()
    finally:
        if is_program:
            work_is_done()
        sys.argv[1:] = arguments
        os.environ.pop(VARIABLE, None)


def read_as_utf8(word: str) -> str:
    """An argument that the locale (``LANG=C``) cannot read, read as UTF-8; one that is not UTF-8 either stays."""
    if word.isascii() or not re.search("[\ud800-\udfff]", word):
        return word
    try:
        return os.fsencode(word).decode()
    except UnicodeDecodeError:
        return word


def dispatch(arguments: list[str], command: str | None = None) -> None:
    """Do what the command line says. command: the short one that it began with, whose own help is shown."""
    if "--version" in arguments:
        say("dllm", version_of("dllm") or "of a checkout that is not installed")
        return
    flags, hydras = flags_of([text for text in arguments if text not in (TUNE, FILTER)])
    if {TUNE, FILTER} & {*arguments} and not flags.help:
        run_tune(flags.overrides) if TUNE in arguments else run_training(flags.overrides)
        return
    # Hydra knows no such choice; it is the default.
    flags.overrides = [text for text in flags.overrides if text != "experiment=null"]
    refuse_settings(flags.overrides, flags.multirun or flags.help)
    if flags.help:
        single = [text for text in flags.overrides if combinations([text]) == 1]
        say(help_text(single) if command is None else command_help(command, single))
    elif flags.multirun:
        with sweep_ranks(flags.overrides, hydras):
            run_sweep(flags.overrides, hydras, start)
    elif flags.cfg or flags.info:
        sys.argv[1:] = [*hydras, *flags.overrides]
        start()
    else:
        config = composed(flags.overrides, whole=True)
        if str(config.hydra.mode).endswith("MULTIRUN"):
            raise UserError("hydra.mode=MULTIRUN of the chosen experiment asks for a sweep: add -m, or drop it there.")
        HydraConfig.instance().set_config(config)  # which ${hydra:...} reads
        run_single(config, flags.overrides, config.hydra.run.dir, hydras)


def run_tune(words: Sequence[str]) -> None:
    """``dllm tune``, which composes a configuration for each setting that it tries."""
    from dllm.app.tuning.tune import run
    from dllm.app.tuning.tune_options import TuneOptions, split

    refuse_settings(split(words, TuneOptions)[1], sweep=True)
    run(words, settings_of_words)


def run_training(words: Sequence[str]) -> None:
    """``dllm train filter``."""
    from dllm.app.commands.train_filter import FilterOptions, run
    from dllm.app.tuning.tune_options import split

    refuse_settings(split(words, FilterOptions)[1], sweep=False)
    run(words, settings_of_words)


def settings_of_words(words: list[str]) -> dict[str, Any]:
    """The checked settings of a command line that starts nothing. Raises UserError for what Hydra refuses."""
    try:
        config = composed(words, whole=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error, words)) from None
    HydraConfig.instance().set_config(config)
    settings = named_config(config, setting_names(words))
    if is_endpoint(settings):
        raise Refusal(
            "dllm tune and dllm train are for networks that decode here, and {model=endpoint} decodes by its own "
            "rules. Choose a model of this machine."
        )
    return checked_settings(settings)


def sweep_ranks(overrides: Sequence[str], flags: Sequence[str]) -> AbstractContextManager[None]:
    """The ranks of a sweep, which start once for all cells. Raises UserError for several values of ``model.tp``."""
    sizes = [text for text in overrides if text.startswith("model.tp=")]
    if not sizes:
        return nullcontext()
    if combinations(sizes) > 1:
        raise UserError(f"{sizes[-1]} tries several values, and ranks start once for all cells. Choose one.")
    alike = composed([text for text in overrides if combinations([text]) == 1])
    return with_ranks(checked_settings(resolved(alike)), ["-m", *flags, *overrides])


@contextmanager
def user_errors(overrides: Sequence[str]) -> Iterator[None]:
    """Print an error that the user can put right as one sentence, and exit with code 2. Others are bugs and pass."""
    try:
        try:
            yield
        except Exception:
            raise_if_told()
            raise
    except UserError as error:
        stop(str(error))
    except (HydraException, OmegaConfBaseException, RecursionError) as error:
        stop(explain(error, overrides))
    except BrokenPipeError:  # the reader of the output has left, and the final flush must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:
        stop(f"{error.filename or 'the system'}: {error.strerror or error}. Put that right, or name another place.")
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "out of memory" in str(error) or "allocate memory" in str(error)):
            raise
        stop(f"there is not enough memory ({first_line(error)}). {memory_advice(overrides)}")
    except (KeyboardInterrupt, Terminated) as stop_signal:
        with suppress(OSError):  # the terminal may be what has gone
            complain("\nStopped.")
        raise SystemExit(stop_signal.code if isinstance(stop_signal, Terminated) else 130) from None


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print warnings for the user as one sentence, without the place in the code."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, SettingWarning):
            complain("Warning:", message)
        else:
            complain(warnings.formatwarning(message, category, *place[:2]).rstrip())

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def stop(sentence: str) -> NoReturn:
    """Print an error and exit with code 2. One of several processes that refuse prints it."""
    if not is_repeated_sentence(sentence):
        complain("Error:", " ".join(sentence.split()))
    raise SystemExit(2)
