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


def warn_of_access(file: Path) -> None:
    """Say that other users of the machine may read or change ``file``, where they may."""
    mode = file.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        complain(f"Warning: task.api_key_file='{file}' is open to other users ({mode:04o}). Run chmod 600 on it.")


class Keys:
    """What opens the server. key: the only key, or None. file: of keys, or None; with neither, all is open. A file that
    changes is read again within a second; where it has vanished or become unsound, the keys read last hold, and the log
    says so once."""

    def __init__(self, key: str | None = None, file: str | None = None) -> None:
        self.file, self.last_warning = file, ""
        self.keys = keys_in_file(file) if file is not None else () if key is None else (key,)
        self.stamp, self.looked = self._stamp(), time.monotonic()
        if file is not None:
            warn_of_access(Path(file))

    def opens(self, key: str) -> bool:
        """Whether ``key`` is one of them. It is compared with every one, each in the same time."""
        self._look()
        return sum(hmac.compare_digest(key.encode(), candidate.encode()) for candidate in self.keys) > 0

    def _stamp(self) -> tuple[int, int, int] | None:
        """What changes with the file; None: it is not there."""
        if self.file is None:
            return None
        try:
            status = Path(self.file).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _look(self) -> None:
        if self.file is None or time.monotonic() - self.looked < LOOK_SECONDS:
            return
        self.looked, now = time.monotonic(), self._stamp()
        if now == self.stamp and not self.last_warning:
            return
        try:
            keys = keys_in_file(self.file)
        except UserError as error:
            if self.last_warning != str(error):
                log.warning("%s The keys that were read last still hold.", error)
            self.last_warning = str(error)
            return
        self.stamp, self.last_warning = now, ""
        if keys != self.keys:
            self.keys = keys
            log.info("%d keys were read from task.api_key_file", len(keys))
