"""The keys that open a server: one that was given, or those in a file, which is read again when it changes."""

from __future__ import annotations

import hmac
import os
import time
from pathlib import Path

from dllm.common.errors import UserError
from dllm.common.terminal import complain
from dllm.serve.http.log import log

KEY_VARIABLE = "DLLM_API_KEY"
MIN_KEY = 8  # characters; a shorter key is guessed
LOOK_SECONDS = 1.0  # between two looks at the file


def check_key(source: str, key: str) -> None:
    """Raise UserError for what is not a key. source: where it comes from."""
    if len(key) < MIN_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"{source} must hold a key of at least {MIN_KEY} letters, digits and signs, without spaces.")


def keys_in_file(file: str) -> tuple[str, ...]:
    """The keys in a file, one in a line; empty lines and those that begin with # are none. Raises UserError for a file
    that cannot be read or holds none, and for what is not a key."""
    source = f"task.api_key_file={file!r}"
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"{source} cannot be read ({reason}). Name a file that holds a key in each line.") from None
    keys = tuple(line for line in map(str.strip, lines) if line and not line.startswith("#"))
    for key in keys or ("",):
        check_key(source, key)
    return keys


def warn_of_others(file: Path) -> None:
    """Say that other users of the machine may read or change ``file``, where they may."""
    mode = file.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        complain(f"Warning: task.api_key_file='{file}' is open to other users ({mode:04o}). Run chmod 600 on it.")


class Keys:
    """What opens the server. given: the one key, or None. file: holds the keys, or None; with neither, all is open.

    A file that changes is read again within a second, so keys can be rotated while the server runs. One that has
    vanished or become unsound changes nothing: the keys read last hold, and the log says so once.
    """

    def __init__(self, given: str | None = None, file: str | None = None) -> None:
        self.file, self.told = file, ""
        self.keys = keys_in_file(file) if file is not None else () if given is None else (given,)
        self.seen, self.looked = self._stamp(), time.monotonic()
        if file is not None:
            warn_of_others(Path(file))

    def opens(self, key: str) -> bool:
        """Whether ``key`` is one of them. It is compared with every one, each in the same time."""
        self._look()
        return sum(hmac.compare_digest(key.encode(), one.encode()) for one in self.keys) > 0

    def _stamp(self) -> tuple[int, int, int] | None:
        """What changes with the file; None: it is not there."""
        if self.file is None:
            return None
        try:
            found = Path(self.file).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _look(self) -> None:
        if self.file is None or time.monotonic() - self.looked < LOOK_SECONDS:
            return
        self.looked, now = time.monotonic(), self._stamp()
        if now == self.seen and not self.told:
            return
        try:
            keys = keys_in_file(self.file)
        except UserError as error:
            if self.told != str(error):
                log.warning("%s The keys that were read last still hold.", error)
            self.told = str(error)
            return
        self.seen, self.told = now, ""
        if keys != self.keys:
            self.keys = keys
            log.info("%d keys were read from task.api_key_file", len(keys))
