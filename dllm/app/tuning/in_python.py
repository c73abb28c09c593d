"""``dllm tune`` in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dllm.app.command_line.grids import grids_of
from dllm.app.tuning.outcome import Tuned
from dllm.app.tuning.tune import tuning_of
from dllm.compose.comparisons import COMPARED_GROUPS
from dllm.compose.parts import build_part, composed
from dllm.compose.tuned import read_tuned, warn_unless_same
from dllm.models.bundle import Model
from dllm.models.fingerprint import fingerprint


def tune(
    model: str,
    *,
    prompts: str | None = None,
    task: str | None = None,
    max_loss: float = 0.01,
    alpha: float = 0.05,
    cost: str = "seconds",
    budget: str | None = None,
    items: int | None = None,
    reference: str | None = None,
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
) -> Tuned:
    """The fastest setting whose mean loss is at most ``max_loss``, which fails in at most ``alpha`` of cases.

    Args:
        model: as ``load`` takes it.
        prompts: a JSON-lines file, whose answers are compared with the reference's; or
        task: the name of a task that scores each answer.
        max_loss: mean loss that a setting may have, in (0, 1).
        alpha: how often the promise may fail, in (0, 1).
        cost: what is to be small: ``seconds``, ``forwards`` or ``computed_tokens`` per item.
        budget: time that it may take, as ``20m``.
        items: how many of the items serve, drawn by the seed (None: all).
        reference: settings that quality is compared with, as ``sampler=static cache=none`` (None: these).
        name: of the folder in ``runs``. One that exists is resumed.
        settings: others by their names on the command line, such as ``{"gen_length": 64, "task.count": 20}``.
        grid: values by name that are tried in place of the list that ships.

    Raises:
        UserError: something cannot work; too few items to promise anything.
    """
    from dllm.app.command_line.main import settings_of_words

    options = {"max_loss": max_loss, "alpha": alpha, "cost": cost, "budget": budget, "items": items}
    named_settings = {"prompts": prompts, "task": task, "name": name, **(settings or {})}
    words = [f"{key}={value}" for key, value in options.items() if value is not None]
    words += [] if reference is None else [f"reference={reference}"]
    place = {"model": model} if "/" not in model else {"model.path": model}
    values = {**place, **{key: value for key, value in named_settings.items() if value is not None}, **(grid or {})}
    return tuning_of([*words, *next(grids_of([values]))], settings_of_words).finish()


def tuned(file: str | Path, model: Model | None = None) -> dict[str, Any]:
    """Arguments of ``Decoder`` for the settings of a ``tuned.yaml``. Warns where they were chosen for another
    checkpoint than that of ``model``. Raises UserError as ``read_tuned``.

    >>> decoder = Decoder(model, **tuned("runs/mine/tuned.yaml", model), gen_length=32)  # doctest: +SKIP
    """
    settings, origin = read_tuned(Path(file))
    if model is not None:
        warn_unless_same(str(file), origin, fingerprint(model.path))
    config = composed(settings)
    parts = {group: build_part(group, config[group]) for group in COMPARED_GROUPS}
    return {**parts, "runtime": str(config.runtime)}
