"""``python -m dllm.laws MODULE.CLASS [NAME=VALUE ...]``: every law over combinations of a part of your own.

Exit code 0: all laws hold. 1: one is broken. 2: the part cannot be built, or goes with nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from tqdm import tqdm

from dllm.common import debug
from dllm.common.errors import Refusal, SettingWarning, UserError, first_line, in_range
from dllm.common.terminal import VisibleParser, complain, say
from dllm.compose.parts import (
    BASE_CLASSES,
    arguments_of,
    build_part,
    class_of,
    part,
    part_config,
    takes_part,
    use_folder,
)
from dllm.contract.canvas import Request
from dllm.laws import batch_claims, claims, rollout_claims
from dllm.laws.claims import Trial, may_stand_still
from dllm.laws.decodes import Broken, crash
from dllm.laws.stated import traits_hold
from dllm.laws.trials import TRIAL_GROUPS, USUAL_CASE, TrialCase, Trials, gaps, requests, unsized
from dllm.parts.lengths.fixed_length import FixedLength

LAWS: dict[str, Callable[[Trial], None]] = {
    "it decodes, and all is decided": claims.all_is_decided,
    "every turn commits": lambda trial: claims.every_turn_commits(trial, may_stand_still(trial.parts.sampler)),
    "commits stay": claims.commits_stay,
    "a block gains": claims.a_block_gains,
    "a row decodes the same alone and in any batch": batch_claims.a_row_is_alone,
    "a row may join a running batch": batch_claims.a_row_may_join,
    "the same batch decodes the same again": batch_claims.the_same_again,
    "candidates may lie side by side": batch_claims.candidates_may_lie_side_by_side,
    "a trace redraws every canvas": claims.a_trace_redraws,
    "infilling keeps what is given": lambda trial: claims.infilling_keeps_what_is_given(trial, *gaps()),
    "a gap is sized the same alone and in any batch": lambda trial: batch_claims.a_gap_is_sized_alone(trial, unsized()),
    "a rule does what its traits state": traits_hold,
    "a host that reads late changes nothing": batch_claims.a_late_host_changes_nothing,
    "a known prompt changes nothing": batch_claims.a_known_prompt_changes_nothing,
    "a rollout is scored again": rollout_claims.a_rollout_is_scored_again,
    "a rollout is the same alone": rollout_claims.a_rollout_is_alone,
    "slices cover every draw of a rollout": rollout_claims.slices_cover_every_draw,
    "a rollout's gradient is that of plain autograd": rollout_claims.gradients_are_plain,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = VisibleParser("python -m dllm.laws", description="Try a part in combinations with all others.")
    parser.add_argument("part", metavar="MODULE.CLASS", help="the part's class; or GROUP=NAME, such as sampler=eb")
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE", help="its options; inner=NAME for a wrapper")
    parser.add_argument(
        "--config-dir", type=Path, metavar="FOLDER", help="a folder of your own choices, for GROUP=NAME"
    )
    parser.add_argument("--cases", type=int, default=60, help="how many combinations (default: 60; 0: all)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    options = parser.parse_args(arguments)
    try:
        in_range("--cases", options.cases, 0)
        use_folder(options.config_dir)
        group, mine = built(options.part, options.options)
        return _run_trials(Trials(group, mine), options.cases, options.seed)
    except UserError as error:
        complain("error:", error)
        return 2


def built(name: str, words: Sequence[str]) -> tuple[str, Any]:
    """The group of a part, and the part. Raises UserError for what is none."""
    for word in words:
        if "=" not in word:
            raise UserError(f"{word!r} is not an option of the part: write NAME=VALUE, such as low=0.7.")
    options = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)}
    group, is_choice, choice = name.partition("=")
    if is_choice:
        if group not in TRIAL_GROUPS:
            raise Refusal(
                f"{name}: laws try parts of {', '.join(TRIAL_GROUPS)}. Write {{sampler=NAME}} or MODULE.CLASS."
            )
        return group, part(group, choice, **options) or FixedLength()
    group = group_of(name)
    arguments = arguments_of(class_of(group, name))
    inner = {
        key: part_config(f"{group}.{key}", value, {})
        for key, value in options.items()
        if key in arguments and takes_part(arguments[key]) and isinstance(value, str)
    }
    return group, build_part(group, {"_target_": name, **options, **inner}, per_request=False)


def group_of(name: str) -> str:
    """The group whose kind a class is of. Raises UserError, as for any part, where it cannot be imported."""
    for group in TRIAL_GROUPS:
        try:
            class_of(group, name)
        except UserError as error:
            if f"is no {BASE_CLASSES[group].rpartition('.')[2]}:" not in str(error):
                raise
        else:
            return group
    bases = ", ".join(BASE_CLASSES[group] for group in TRIAL_GROUPS)
    raise UserError(f"{name} is not a part: derive it from one of {bases}.")


def _run_trials(trials: Trials, count: int, seed: int) -> int:
    """Every law over the cases. Says what ran and what broke, with the smallest example of each law."""
    torch.set_num_threads(1)
    debug.ON = True
    warnings.simplefilter("ignore", SettingWarning)
    every = trials.every(seed)
    if not every:
        name = f"{trials.group}={trials.name}"
        raise UserError(f"{name} goes with no other parts at all: its needs, check or traits refuse them.")
    cases = trials.sample(count, seed) if count else every
    say(
        f"{trials.group}={trials.name}: {len(cases)} of {len(every)} combinations, in each 3 rows of different lengths "
        f"together, alone and joining, {len(LAWS)} laws:",
        _counts(cases),
        flush=True,
    )
    broken: dict[str, list[tuple[TrialCase, str]]] = {name: [] for name in LAWS}
    for case in tqdm(cases, disable=None, leave=False):
        for name, words in failing_case(trials, case):
            broken[name].append((case, words))
    decoded = len(cases) - len(broken[next(iter(LAWS))])  # in others no further law could be tried
    for name, failures in broken.items():
        say(f"{'BROKEN' if failures else 'holds ':6} in {len(failures) or decoded:4} of {len(cases)}: {name}")
        if failures:
            say("\n".join(smallest(trials, name, failures)))
    return int(any(broken.values()))


def _counts(cases: Sequence[TrialCase]) -> str:
    """How many choices of each group the cases show."""
    words = {
        "sampler": "samplers",
        "blocks": "block schedules",
        "cache": "caches",
        "eos": "end-of-text policies",
        "length": "rules for the length",
        "model": "kinds of model",
        "heat": "temperatures",
    }
    numbers = {key: len({getattr(case, key) for case in cases}) for key in words}
    return ", ".join(f"{number} {words[key]}" for key, number in numbers.items() if number > 1)


def failing_case(trials: Trials, case: TrialCase) -> Iterator[tuple[str, str]]:
    """The laws that a case breaks, with what they say. Parts that fail before they decode break the first alone."""
    try:
        trial = trials.trial(case)
    except Broken as error:
        yield next(iter(LAWS)), str(error)
    else:
        yield from failing(trial)


def breaks(trials: Trials, name: str, case: TrialCase, batch: tuple[Request, ...] = ()) -> str:
    """What a law says against a case; empty: it holds."""
    try:
        trial = trials.trial(case, batch)
    except Broken as error:
        return str(error)
    return objection(trial, LAWS[name])


def failing(trial: Trial) -> Iterator[tuple[str, str]]:
    """The laws that a trial breaks, with what they say. A decode that fails breaks the first alone."""
    for name, law in LAWS.items():
        if words := objection(trial, law):
            yield name, words
            if "together" not in vars(trial):
                return


def objection(trial: Trial, law: Callable[[Trial], None]) -> str:
    """What a law says against a trial; empty: it holds. A crash breaks it too."""
    try:
        law(trial)
    except AssertionError as error:
        return first_line(error)
    except Exception as error:
        return crash(error)
    return ""


def smallest(trials: Trials, name: str, failures: Sequence[tuple[TrialCase, str]]) -> list[str]:
    """The plainest failing combination, made plainer, and its requests shortened, as long as the law is broken."""
    case, words = min(failures, key=lambda failure: (failure[0].unusual, str(failure[0])))
    case, words = plainer(trials, name, case, words)
    batch = requests()
    for fewer in _shortened(batch):
        if again := breaks(trials, name, case, fewer):
            batch, words = fewer, again
            break
    sizes = ", ".join(f"{request.answer_start}+{len(request.tokens) - request.answer_start}" for request in batch)
    return [f"    {words}", f"    smallest: {case}; rows of prompt+answer {sizes}"]


def plainer(trials: Trials, name: str, case: TrialCase, words: str) -> tuple[TrialCase, str]:
    for entry, usual in USUAL_CASE.items():
        other = replace(case, **{entry: usual})  # type: ignore[arg-type]
        if entry == trials.group or other == case or not trials.takes(other):
            continue
        if again := breaks(trials, name, other):
            case, words = other, again
    return case, words


def _shortened(batch: tuple[Request, ...]) -> Iterator[tuple[Request, ...]]:
    """Fewer rows with shorter answers, the smallest first."""
    for rows in (1, 2, 3):
        for length in (2, 4, 8):
            yield tuple(
                replace(
                    request,
                    tokens=request.tokens[: request.answer_start + length],
                    masked=request.masked[: request.answer_start + length],
                )
                for request in batch[:rows]
            )


if __name__ == "__main__":
    sys.exit(main())
