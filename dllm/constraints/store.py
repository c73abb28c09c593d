"""Token automata kept: the last ones in memory, more of them as files in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dllm.common.cache_folder import cache_folder
from dllm.constraints.languages.trees import ByteAutomaton, Counters
from dllm.constraints.runs import Runs
from dllm.constraints.tokens import TokenAutomaton, token_automaton
from dllm.constraints.vocabulary import Vocabulary

FORMAT = 3  # raise it when languages, or what a file holds, change their meaning
IN_MEMORY, ON_DISK = 32, 500  # a file has 10 to 300 kB
BYTES_IN_MEMORY = 1 << 28  # of automata, or of languages, that are kept in memory without being used
StoredValue = TypeVar("StoredValue")
ARRAYS = ("moves", "accepting", "classes", "source", "symbol", "target", "counters", "counts", "spans", "runs")


class Store:
    """Token automata by language and vocabulary. It may be asked from several threads."""

    def __init__(self, folder: Path | None = None) -> None:
        """folder: where the files are. None: in the user's cache folder."""
        self.folder = folder
        self._kept: OrderedDict[tuple[str, str], TokenAutomaton] = OrderedDict()
        self._lock = Lock()

    def get(self, language: str, vocabulary: Vocabulary, make: Callable[[], ByteAutomaton]) -> TokenAutomaton:
        """The token automaton of a language, from memory, from its file, or of what ``make`` returns. language: a text
        that is the same in every process. Raises UserError as ``token_automaton`` and ``make``."""
        key = (language, vocabulary.fingerprint)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        file = (self.folder or cache_folder() / "constraints") / f"{_name(key)}.npz"
        automaton = load_tokens(file)
        if automaton is None:
            automaton = token_automaton(make(), vocabulary)
            save_tokens(file, automaton)
        with self._lock:
            automaton = self._kept.setdefault(key, automaton)
            self._kept.move_to_end(key)
            drop_oldest(self._kept, lambda tokens: tokens.nbytes)
        return automaton


def drop_oldest(entries: OrderedDict[Any, StoredValue], nbytes: Callable[[StoredValue], int]) -> None:
    """Drop what is above ``IN_MEMORY`` entries or ``BYTES_IN_MEMORY``, but for the newest."""
    while len(entries) > 1 and (len(entries) > IN_MEMORY or sum(map(nbytes, entries.values())) > BYTES_IN_MEMORY):
        entries.popitem(last=False)


def _name(key: tuple[str, str]) -> str:
    return hashlib.sha256("\0".join((str(FORMAT), *key)).encode(errors="surrogatepass")).hexdigest()[:32]


def load_tokens(file: Path) -> TokenAutomaton | None:
    """What a file holds. None: there is no such file, or it is broken."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = [archive[name] for name in ARRAYS]
            if archive["digest"].tobytes() != _digest(arrays):
                return None
        os.utime(file)  # the files used last are kept
    except Exception:  # zip and numpy may fail in any way on a broken file: one flipped byte is a tokenize.TokenError
        return None
    moves, accepting, classes, source, symbol, target, counters, counts, spans, runs = arrays
    own = Counters(counters[0], counters[1], counters[2], counts) if counters.size else None
    (first, size), (begin, kind, goal, length, adds) = spans.astype(np.intp), runs.astype(np.intp)
    many = Runs(first, size, begin, kind, goal, length, adds.astype(bool))
    steps = source.astype(np.intp), symbol.astype(np.intp), target.astype(np.intp)
    return TokenAutomaton(ByteAutomaton(moves, accepting, own), classes, *steps, many)


def _digest(arrays: Iterable[NDArray[Any]]) -> bytes:
    """A hash of the arrays. The checksums of an archive do not cover shapes."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(f"{array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return content.digest()


def save_tokens(file: Path, tokens: TokenAutomaton) -> None:
    """Write a file at once or not at all, and drop the oldest of too many. A folder that takes none is left alone."""
    automaton = tokens.automaton
    steps = (part.astype(np.int32) for part in (tokens.source, tokens.symbol, tokens.target))
    own, many = automaton.counters, tokens.runs
    counters = np.zeros((3, 0), np.int32) if own is None else np.stack([own.home, own.low, own.high])
    counts = np.zeros((0, 256), bool) if own is None else own.counts
    spans, runs = (
        np.stack(parts).astype(np.int32)
        for parts in ((many.first, many.size), (many.source, many.symbol, many.target, many.length, many.adds))
    )
    arrays = (automaton.moves, automaton.accepting, tokens.classes, *steps, counters, counts, spans, runs)
    named = {**dict(zip(ARRAYS, arrays, strict=True)), "digest": np.frombuffer(_digest(arrays), np.uint8)}
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
            try:
                np.savez_compressed(part, **named)  # type: ignore[arg-type]  # numpy's stub: allow_pickle
                part.close()
                Path(part.name).replace(file)
            finally:
                Path(part.name).unlink(missing_ok=True)
        files = sorted(file.parent.glob("*.npz"), key=lambda f: f.stat().st_mtime, reverse=True)
        for old in files[ON_DISK:]:
            old.unlink(missing_ok=True)
