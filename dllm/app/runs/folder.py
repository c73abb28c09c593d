"""A run's folder: its configuration, and a line for each finished sample, so that a killed run goes on from there.

FOLDER/config.yaml        the resolved configuration
FOLDER/environment.json   versions, device, commit, and the identity of the run with what it was made of
FOLDER/results.jsonl      one line per sample, written when the sample is done
FOLDER/traces/            with trace=true one file per sample, and beside it a page to look at it

A sweep is a folder of such folders, each named by its identity; FOLDER/refused.json is the only file in the folder of a
combination that cannot work.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from filelock import BaseFileLock, SoftFileLock

from dllm.app.runs.destinations import config_in, make_folder, remove_new, writing
from dllm.common.atomic_write import lock_name, locked, write_whole
from dllm.common.digest import digest, json_digest
from dllm.common.errors import UserError
from dllm.common.links import follows, from_first
from dllm.common.signals import raise_if_told
from dllm.compose.config_choices import choice_of
from dllm.record.folders import (
    CONFIG,
    ENVIRONMENT,
    PART_RESULTS,
    REFUSED_FILE,
    RESULTS,
    TRACES,
    SampleKey,
    key_of,
    read_results,
    relevant,
)
from dllm.record.results import ResultRow
from dllm.record.trace import trace_in
from dllm.view.page import Pane, trace_page


def identity(config: Mapping[str, Any], content: Mapping[str, str]) -> str:
    """Hash of everything that can change the outcome: settings, and the content of prompts and checkpoint."""
    return json_digest([relevant(config), dict(content)])


@dataclass
class RunFolder:
    path: Path  # the folder
    results: BinaryIO  # its file of results, open to append
    lock: BaseFileLock  # held while a process writes
    name: str = RESULTS  # of that file
    rows: list[ResultRow] = field(default_factory=list)  # its finished samples, to which ``write`` adds
    fresh: bool = False  # it held no run before
    traces: str = TRACES  # the folder inside it for the traces of these samples

    @staticmethod
    def open(folder: Path, config: Mapping[str, Any], content: Mapping[str, str]) -> RunFolder:
        """Start a run in ``folder``, or go on with the one that is there.

        Raises UserError when the folder belongs to a run of another configuration, is in use, or cannot be written. A
        follower of other ranks has what rank 0 found there, and writes nothing.
        """
        if follows():
            return _Unwritten.of(folder, RESULTS)
        refuse_other(folder, config, content)
        fresh = not (folder / CONFIG).exists()
        with writing(folder):
            make_folder(folder)
            if fresh:
                inputs = {"content": dict(content), "settings": relevant(config)}
                write_whole(folder / ENVIRONMENT, _json({"identity": identity(config, content), **inputs}))
                write_whole(folder / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        run_folder = replace(RunFolder.attach(folder, RESULTS), fresh=fresh)
        try:
            run_folder.gather()
        except BaseException:
            run_folder.close()
            raise
        return run_folder._synced()

    def gather(self) -> None:
        """Move what single processes of ``engine=accelerate`` left into the results, each sample once, even if a killed
        run left it in both places."""
        for file in sorted(self.path.glob(PART_RESULTS.format("*"))):
            with RunFolder.attach(self.path, file.name) as part:
                done_keys = self.done_keys
                for row in part.rows:
                    if key_of(row) not in done_keys:  # a file holds no sample twice
                        self.write(row)
            file.unlink()

    def beside(self, results: str) -> RunFolder:
        """Another file of results in the same folder, with a folder of traces of its own."""
        traces = f"{TRACES}-{results.removesuffix('.jsonl')}"
        return replace(RunFolder.attach(self.path, results), traces=traces)._synced()

    def _synced(self) -> RunFolder:
        """The same, whose followers know what is there."""
        from_first(lambda: (self.fresh, self.rows))
        return self

    @staticmethod
    def attach(folder: Path, results: str) -> RunFolder:
        """A file of results in a run folder that is there. Raises UserError when another process writes to it."""
        with writing(folder):
            lock = locked(folder, results)
            try:
                rows, end = read_results(folder / results)
                stream = (folder / results).open("ab", buffering=0)
                stream.truncate(end)
            except BaseException:
                lock.release()
                raise
        return RunFolder(folder, stream, lock, results, rows)

    @property
    def done_keys(self) -> set[SampleKey]:
        return {key_of(row) for row in self.rows}

    def stamp(self, environment: Mapping[str, Any]) -> None:
        """Note where this run takes place; when the folder was resumed, below ``resumed``."""
        stamps = json.loads((self.path / ENVIRONMENT).read_text())
        if "python" in stamps:
            stamps.setdefault("resumed", []).append(dict(environment))
        with writing(self.path):
            write_whole(self.path / ENVIRONMENT, _json({**environment, **stamps}))

    def write(self, row: ResultRow, trace: Mapping[str, Any] | None = None) -> None:
        """Add a finished sample: its trace first, so that a line always has one, then the line, at once. Raises
        UserError where the disk refuses, and where the file was deleted."""
        self.refuse_deleted()
        with writing(self.path):
            if trace is not None:
                file = self.path / self.traces / trace_name(key_of(row))
                file.parent.mkdir(exist_ok=True)
                write_whole(file, json.dumps(trace))
                write_whole(file.with_suffix(".html"), trace_page([Pane.of(self.path.name, trace, trace_in(trace))]))
            self._append(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self.rows.append(row)
        raise_if_told()

    def _append(self, line: bytes) -> None:
        before = os.fstat(self.results.fileno()).st_size
        try:
            size = self.results.write(line)
            if size != len(line):
                self.results.write(line[size:])  # raises what cut it short
        except OSError:
            self.results.truncate(before)
            raise

    def discard(self) -> None:
        """Remove a fresh folder without samples, because its run could not begin."""
        if self.fresh and not self.rows and self.in_place:
            self.close()
            for name in (CONFIG, ENVIRONMENT, RESULTS, lock_name(RESULTS)):
                (self.path / name).unlink(missing_ok=True)
            remove_new(self.path)

    @property
    def in_place(self) -> bool:
        """Whether the open file of results is still the one that a reader of the folder finds."""
        try:
            return os.path.samestat((self.path / self.name).stat(), os.fstat(self.results.fileno()))
        except OSError:
            return False

    def refuse_deleted(self) -> None:
        """Raise UserError when the file of results was deleted with its folder, moved or replaced: the open file takes
        lines all the same, which nothing reads."""
        if not self.in_place:
            way_out = "Put it back, or give the same command again: it decodes what is missing."
            raise UserError(f"{self.path / self.name} was deleted, moved or replaced in mid-run. {way_out}")

    def close(self) -> None:
        self.results.close()
        self.lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *place: object) -> None:
        """A run that is refused leaves nothing. One that is stopped, or finds its disk full, can be resumed."""
        try:
            if error is None:
                self.refuse_deleted()
            elif isinstance(error, Exception) and not isinstance(error.__cause__, OSError):
                self.discard()
        finally:
            self.close()


class _Unwritten(RunFolder):
    """A follower's: its rows are those that rank 0 has, and nothing is written."""

    @staticmethod
    def of(folder: Path, results: str) -> RunFolder:
        """What rank 0 found in a file of results."""
        nothing: tuple[bool, list[ResultRow]] = False, []
        fresh, rows = from_first(lambda: nothing)
        return _Unwritten(folder, BytesIO(), SoftFileLock(os.devnull), results, rows, fresh)

    def gather(self) -> None: ...

    def beside(self, results: str) -> RunFolder:
        return _Unwritten.of(self.path, results)

    def stamp(self, environment: Mapping[str, Any]) -> None: ...

    def write(self, row: ResultRow, trace: Mapping[str, Any] | None = None) -> None:
        self.rows.append(row)

    def discard(self) -> None: ...

    def refuse_deleted(self) -> None: ...

    def close(self) -> None: ...


def trace_name(key: SampleKey) -> str:
    """The file name of a sample's trace. In an id, characters that no file name takes become _, and a hash is added."""
    plain = re.sub(r"[^\w.-]", "_", key[0])[:80]
    return f"{plain}-{key[1]}.json" if plain == key[0] else f"{plain}-{digest(key[0].encode())}-{key[1]}.json"


def refuse_other(folder: Path, config: Mapping[str, Any], content: Mapping[str, str]) -> None:
    """Raise UserError, naming the first difference, when ``folder`` belongs to a run of another identity, or when its
    config.yaml was edited after its samples were decoded."""
    if not (folder / CONFIG).exists():
        return
    stamps = json.loads((folder / ENVIRONMENT).read_text())
    if "settings" not in stamps:
        raise UserError(f"{folder} was started by an older version, which did not note its settings. Start a new run.")
    then, there, here = stamps["settings"], relevant(config_in(folder)), relevant(config)
    for name, was, now in setting_differences(then, there):
        raise UserError(
            f"{folder / CONFIG} was edited: its samples were decoded with {name}={was}, not {now}. Put that back, or "
            f"start a new run with {name}={now}."
        )
    for name, was, now in setting_differences(there, here):
        way_out = f"Start a new run, or go on with that one by resume={folder} and nothing else."
        raise UserError(f"{folder} was run with {name}={was}, not {now}. {way_out}")
    for key, value in content.items():
        if stamps["content"].get(key) != value:
            raise UserError(f"{folder} was run with another content of {key}. Restore it, or start a new run.")


def setting_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Dotted keys whose values differ: (name, value in one, value in the other), with parts by their names."""
    for key in sorted(first.keys() | second.keys()):
        values = first.get(key), second.get(key)
        if json.dumps(values[0]) != json.dumps(values[1]):  # as text, where NaN is NaN
            part = key.removesuffix("._target_")
            was, now = (_part_name(side, part) if part != key else str(side.get(key)) for side in (first, second))
            yield part, was, now


def _part_name(flat: Mapping[str, Any], part: str) -> str:
    """The name of a part, from the dotted keys of a configuration."""
    options = {key.removeprefix(f"{part}."): value for key, value in flat.items() if key.startswith(f"{part}.")}
    if "_target_" in options:
        return choice_of(part.partition(".")[0], options)
    return "prompt" if part == "task" else "none"  # the only task without questions that leaves a folder


def refused_file(sweep: Path, config: Mapping[str, Any]) -> Path:
    """The file in which a sweep notes that a combination cannot work."""
    paths = {key: str(config["model"][key]) for key in ("path", "adapter") if config["model"].get(key) is not None}
    return sweep / identity(config, paths) / REFUSED_FILE


def write_refused(file: Path, config: Mapping[str, Any], overrides: Sequence[str], sentence: str) -> None:
    """Note a combination that cannot work, and why."""
    if follows():
        return
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, _json({"overrides": list(overrides), "sentence": sentence, "config": dict(config)}))


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1) + "\n"
