"""The samples of a run: ``samples`` of them for each prompt, each with a seed of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from dllm.common.coerce import refuse_unwritable
from dllm.common.digest import digest
from dllm.common.errors import UserError, warn_once
from dllm.common.terminal import complain
from dllm.common.unzip import read_unzipped
from dllm.compose.parts import part_of
from dllm.constraints.kinds import Constraint
from dllm.contract.canvas import Request
from dllm.models.bundle import Model
from dllm.prompts import AskedPrompt, Prompt, Prompts
from dllm.record.folders import SampleKey
from dllm.record.results import Result
from dllm.record.trace import origin_of
from dllm.tasks.mini.wordings import is_request

CheckRequest = Callable[[Request], None]  # raises UserError for what cannot be decoded
PROMPT_KEYS, CONSTRAINT = ("prompt", "messages", "tokens", "infill"), "constraint"
# of benchmarks whose questions are tasks
BENCHMARKS = {
    "mmlu": {"question", "choices", "answer"},
    "gsm8k": {"question", "answer"},
    "math500": {"problem", "answer"},
}
# what other files call a prompt, and where it is; turns: MT-bench's
TEXT_KEYS = {"turns": "turns[0]"} | {
    name: name for name in ("question", "instruction", "problem", "query", "text", "input")
}


@dataclass(frozen=True)
class NamedSample:
    id: str  # of its prompt
    sample: int  # which of the prompt's answers it is
    prompt_text: str  # the prompt as a person would write it

    @property
    def key(self) -> SampleKey:
        return self.id, self.sample


@dataclass(frozen=True)
class PlannedSample(NamedSample):
    request: Request  # what the decoder takes


@dataclass(frozen=True)
class PromptEntry:
    # its line in the file, from which its seed follows, so that a repaired line changes no other prompt's seed
    number: int
    id: str  # of the prompt
    prompt: Prompt  # as it was given: a text, messages, or a canvas to fill
    prompt_text: str  # the prompt as a person would write it
    constraint: Constraint | None = None  # of its texts (None: free)


def trace_content(
    sample: PlannedSample, result: Result, batch: Sequence[SampleKey], config: dict[str, Any]
) -> dict[str, Any] | None:
    """A trace file's content, which task=replay reads: the configuration, the samples of the batch, and the turns.

    None for a result without a trace.
    """
    if result.trace is None:
        return None
    return replace(result.trace, origin=origin_of(sample.request, sample.key, batch, config)).content()


def warn_of_prompts(model: Model, prompts: Iterable[str]) -> None:
    """Warn, once in a process, of the first prompt that asks a mini model for what it was not trained on."""
    for prompt in prompts if model.knows else ():
        if not is_request(prompt.replace("\\n", "\n")):  # messages are shown as JSON
            warn_once(f"{model.name} was not trained on this. Try: Latin square: A,B,C,D")
            return


def constraint_digest(request: Request) -> str | None:
    """Identifies a request's constraint. None: it is free."""
    if not isinstance(request.constraint, Constraint):
        return None
    return digest(json.dumps(request.constraint.to_json()).encode())  # members of a schema have an order


def planned_samples(entries: Sequence[PromptEntry], prompts: Prompts, samples: int, seed: int) -> list[PlannedSample]:
    """Every sample of every prompt, in order."""
    return [
        PlannedSample(
            entry.id,
            number,
            entry.prompt_text,
            replace(prompts.request(entry.prompt, first + number), constraint=entry.constraint),
        )
        for entry in entries
        for first in (seed + entry.number * samples,)
        for number in range(samples)
    ]


def prompt_entries(
    file: Path, prompts: Prompts, constraint: Constraint | None, check: CheckRequest
) -> list[PromptEntry]:
    """The prompts of a JSON-lines file. A line that cannot be used is reported on stderr and left out. constraint: of
    lines that name none. check: of what is a line's own mistake.

    Raises UserError when the file cannot be read or holds no usable line.
    """
    entries: dict[str, PromptEntry] = {}
    for number, line in _lines(file):
        try:
            entry = _entry(number, line, prompts, constraint, check)
            if entry.id in entries:
                raise UserError(f"the id {entry.id!r} is in line {entries[entry.id].number + 1} already.")
            entries[entry.id] = entry
        except UserError as error:
            complain(f"{file}, line {number + 1} is skipped: {error}")
    if not entries:
        raise UserError(f"prompts={str(file)!r} holds no usable line. {_way_out(file)}")
    return list(entries.values())


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that hold something, by number. A file compressed by gzip is read, and any end of line."""
    try:
        text = read_unzipped(file)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"prompts={str(file)!r} cannot be read ({why}). Name a JSON-lines file.") from None
    if text.lstrip()[:1] == b"[" and _is_array(text):
        raise UserError(
            f"prompts={str(file)!r} is one JSON array, and must have an object in each line. Convert it: jq -c '.[]' "
            f"{file} > prompts.jsonl"
        )
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")  # within a JSON text \r is escaped
    yield from ((number, line) for number, line in enumerate(lines) if line.strip())


def _way_out(file: Path) -> str:
    """What to do with a file without prompts: a benchmark's questions are a task."""
    try:
        row = json.loads(next(line for _, line in _lines(file)))
    except (StopIteration, ValueError, RecursionError):
        row = {}
    keys = set(row) if isinstance(row, dict) else set()
    task = next((name for name, columns in BENCHMARKS.items() if columns <= keys), None)
    if task is not None:
        return f"Its lines are those of a task: python run.py task={task} task.path={file}"
    old = next((old for key, old in TEXT_KEYS.items() if key in keys), None)
    if old is not None:
        return f"Convert it: jq -c '{{prompt: .{old}}}' {file} > prompts.jsonl"
    return 'Write one {"prompt": "..."} per line.'


def _is_array(text: bytes) -> bool:
    """Whether a text is one JSON array, of more than numbers (a line of ids is a slip of its own)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) and any(isinstance(entry, dict | str) for entry in value)


def _entry(
    number: int, line: bytes, prompts: Prompts, constraint: Constraint | None, check: CheckRequest
) -> PromptEntry:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"it is not JSON ({error}).") from None
    if not isinstance(data, dict):
        raise UserError('it is not an object; write {"prompt": "..."}.')
    present = [key for key in PROMPT_KEYS if key in data]
    if len(present) != 1 and not (len(present) == 2 and "infill" in present):
        raise UserError(
            f"it must have one of {', '.join(PROMPT_KEYS)}, or infill beside another of them, and has "
            f"{', '.join(data) or 'nothing'}."
        )
    prompt = _prompt(present[0], data[present[0]], prompts)
    if len(present) == 2:
        prompt = prompts.infill(data["infill"], cast(AskedPrompt, prompt))
    request = prompts.request(prompt)  # refuses here, with its line, what cannot be decoded
    is_own = CONSTRAINT in data
    if is_own:
        constraint = None if data[CONSTRAINT] is None else part_of(CONSTRAINT, data[CONSTRAINT])
    if is_own or request.infill_prefix is not None:  # what is wrong with all other lines is not a mistake of this one
        check(replace(request, constraint=constraint))
    name = str(data.get("id", number + 1))
    refuse_unwritable("the id", name)
    value = data[present[0]]
    prompt_text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return PromptEntry(number, name, prompt, prompt_text, constraint)


def _prompt(key: str, value: Any, prompts: Prompts) -> Prompt:
    """The prompt in a line's ``value``, in any form of a prompt in Python. Raises UserError for another shape."""
    if key == "prompt" and isinstance(value, str):
        return value
    if key in ("prompt", "messages") and _list_of(value, dict) and all(map(_is_message, value)):
        return list(value)
    if key in ("prompt", "tokens") and _list_of(value, int):
        return list(value)
    if key == "infill":
        return prompts.infill(value)
    shapes = {
        "prompt": "text or a list of token ids",
        "messages": 'a list of {"role": ..., "content": ...}',
        "tokens": "a list of token ids",
    }
    raise UserError(f"{key} must be {shapes[key]}.")


def _is_message(entry: dict[str, Any]) -> bool:
    return all(isinstance(entry.get(key), str) for key in ("role", "content"))


def _list_of(value: Any, kind: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(e, kind) and type(e) is not bool for e in value)
