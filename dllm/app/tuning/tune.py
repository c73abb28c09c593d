"""``dllm tune``: search, confirm, and leave a table, a picture, a page and ``tuned.yaml``."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dllm.app.command_line.options import check_name
from dllm.app.command_line.overrides import setting_names
from dllm.app.commands.interruptible import interruptible
from dllm.app.runs.destinations import fresh_folder, make_folder, writing
from dllm.app.runs.evaluation import Evaluation
from dllm.app.tuning.decoded import DecodedLosses, OutOfTimeError, cost_of
from dllm.app.tuning.outcome import Tuned, TuneOutcome
from dllm.app.tuning.space import SettingWords, is_tried, space_for
from dllm.app.tuning.tune_options import TuneOptions, split
from dllm.common.digest import json_digest
from dllm.common.errors import UserError
from dllm.common.terminal import say
from dllm.compose.trusted import describe_arguments
from dllm.models import bundle
from dllm.models.fingerprint import fingerprint
from dllm.scoring.promise import LEAST_ITEMS, CertifiedChoice, Promise, choose

DEFAULT_LENGTH = 32  # tokens of an answer to a prompt of a file, as without tune
PILOT = 4  # items that the reference decodes to know how long the others take
CHEAPER = 0.6  # what a searched setting costs beside the reference, before it is known
FRONT = 4  # settings that are confirmed, before it is known
Settings = Callable[[list[str]], dict[str, Any]]  # the resolved configuration of a command line


def run(words: Sequence[str], settings_of_words: Settings) -> None:
    """``dllm tune``. Raises UserError for what cannot work."""
    tuning = tuning_of(words, settings_of_words)
    with interruptible(lambda: f"Finished samples are kept. Go on with the same command and name={tuning.folder.name}"):
        tuning.finish()


def tuning_of(words: Sequence[str], settings_of_words: Settings) -> Run:
    """words: of a command line. Raises UserError for what cannot work."""
    options, rest = split(words, TuneOptions)
    common = [word for word in rest if not is_tried(word)]
    by_name = dict(zip(setting_names(common), common, strict=True))
    if "prompts" in by_name and "task" in by_name:
        raise UserError(f"{by_name['prompts']} and {by_name['task']} exclude each other. Drop one.")
    if "prompts" not in by_name and "task" not in by_name:
        raise UserError("dllm tune needs prompts=FILE, whose answers are compared, or task=NAME, which scores them.")
    return Run(options, common, [word for word in rest if is_tried(word)], settings_of_words)


class Run:
    """common: words that all settings share. own: those of the user's that set what is tried."""

    def __init__(
        self, options: TuneOptions, common: Sequence[str], tried_words: Sequence[str], settings_of_words: Settings
    ) -> None:
        self.options, self.common, self.composed = options, list(common), settings_of_words
        self.began = time.monotonic()
        self.configurations: dict[SettingWords, dict[str, Any]] = {}  # that were composed before: 50 ms each
        base = settings_of_words(list(common))
        if base["samples"] != 1:
            raise UserError(f"samples={base['samples']}: dllm tune takes one answer to each item. Set samples=1.")
        self.prompts: str | None = base["prompts"]
        self.promise = Promise(options.max_loss, options.alpha, self.prompts is not None)
        description = bundle.describe(base["model"]["path"], **describe_arguments(base["model"]))
        self.model, self.checkpoint = description.name, fingerprint(description.path)
        reference = None if options.reference is None else shlex.split(options.reference)
        self.settings = space_for(description.config, tried_words, reference)
        self.seed = int(base["seed"])
        for setting in self.settings:  # before anything is decoded
            self.configured(setting)
        self.total = len(Evaluation.of(self.configured(self.settings[0])).items)
        self.folder = self._folder(base)

    def configured(self, setting: SettingWords) -> dict[str, Any]:
        """The configuration of a setting, with the prompts of a file as a task."""
        if setting not in self.configurations:
            self.configurations[setting] = self._configured(setting)
        return self.configurations[setting]

    def _configured(self, setting: SettingWords) -> dict[str, Any]:
        config = self.composed([*self.common, *setting])
        if config["prompts"] is None:
            return config
        budget = config["gen_length"] or DEFAULT_LENGTH
        task = {"name": "prompts", "run": "dllm.app.commands.evaluate.run"}
        parts = {"_target_": "dllm.tasks.own_prompts.OwnPrompts", "path": config["prompts"], "budget": budget}
        return {**config, "prompts": None, "task": {**task, **parts}}

    def finish(self) -> Tuned:
        """Search, confirm, write."""
        items, settings = self._within_budget()
        deadline = None if self.options.seconds is None else self.began + self.options.seconds
        table = DecodedLosses(
            settings, self.configured, self.folder, items, self.seed, self.options.cost, self.promise.binary, deadline
        )
        say(f"{len(settings)} settings, {items} of {self.total} items: {self.folder}")
        choice, late = _choice(table, self.promise)
        return TuneOutcome(table, choice, self.promise, late, self.origin(items)).write(self.folder)

    def origin(self, items: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "checkpoint": self.checkpoint,
            "words": self.common,
            "items": items,
            "reference": list(self.settings[0]),
            "max_loss": self.options.max_loss,
            "alpha": self.options.alpha,
            "cost": self.options.cost,
            "date": datetime.now().strftime("%Y-%m-%d"),
        }

    def _folder(self, base: dict[str, Any]) -> Path:
        """The run's folder: new, or one of the same command."""
        identity = json_digest([self.common, list(map(list, self.settings)), repr(replace(self.options, budget=None))])
        if base["name"] is None:
            folder = fresh_folder(Path(str(base["output"])))
        else:
            check_name(str(base["name"]))
            folder = Path(str(base["output"])) / str(base["name"])
        note = folder / "tune.txt"
        with writing(folder):
            make_folder(folder)
            if note.exists() and note.read_text().strip() != identity:
                raise UserError(f"{folder} holds another tuning. Choose another name=NAME.")
            if not note.exists() and any(folder.iterdir()):
                raise UserError(f"{folder} holds something else. Choose another name=NAME.")
            note.write_text(identity + "\n")
        return folder

    def _within_budget(self) -> tuple[int, tuple[SettingWords, ...]]:
        """How many items serve, and which settings are tried. Raises UserError for too few items. A budget takes the
        items that it allows, but those that a certificate needs, and then the first settings alone."""
        items, settings = min(self.total, self.options.items or self.total), self.settings
        least = self.least_items()
        if items < least:
            has = f"items={items}" if items < self.total else f"there are {items} items"
            rule = f"with max_loss={self.options.max_loss:g} and alpha={self.options.alpha:g} a promise needs {least}"
            raise UserError(
                f"{has}, and {rule}, {least - least // 3} of them to confirm, even if nothing is lost. Give more, or "
                "allow more."
            )
        if (seconds := self.options.seconds) is None:
            return items, settings
        pilot = DecodedLosses(
            settings[:1], self.configured, self.folder, PILOT, self.seed, "seconds", self.promise.binary
        )
        pilot.decode([0], 0, PILOT)
        each = max(1e-6, cost_of(list(pilot.rows[0].values()), "seconds"))
        room = seconds / each  # in items that the reference decodes
        count = len(settings)
        serve = int(room / (1 + CHEAPER * (count / 6 + 2 / 3 * FRONT)))
        if serve < least:
            serve = least
            count = max(2, int((room / least - 1 - CHEAPER * 2 / 3 * FRONT) * 6 / CHEAPER))
        if serve < items or count < len(settings):
            say(f"budget={self.options.budget} has room for about {min(serve, items)} items and {count} settings.")
        return min(serve, items), settings[:count]

    def least_items(self) -> int:
        """Of which the confirming part can certify a setting that loses nothing."""
        confirming = 1
        while self.promise.p_value([0.0] * confirming) > self.promise.alpha:
            confirming += 1 + confirming // 64
        while confirming > 1 and self.promise.p_value([0.0] * (confirming - 1)) <= self.promise.alpha:
            confirming -= 1
        return next(n for n in range(max(LEAST_ITEMS, confirming), 2 * confirming + 3) if n - n // 3 >= confirming)


def _choice(table: DecodedLosses, promise: Promise) -> tuple[CertifiedChoice, bool]:
    """The choice, and whether the time was up before it was certain."""
    try:
        return choose(table, len(table.settings), table.searching, promise, reference=0), False
    except OutOfTimeError:
        return CertifiedChoice(table.searched, (), (), None), True
