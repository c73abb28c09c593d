"""The server's own settings: the keys of ``conf/task/serve.yaml``, which explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dllm.common.kinds import of_kind
from dllm.errors import UserError, in_range
from dllm.serve.jobs import Limits

KEY_VARIABLE = "DLLM_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
MIN_KEY = 8  # characters; a shorter key is guessed


@dataclass(frozen=True)
class ServeSettings:
    """api_key: what every request must bring; None: nothing. hosts: further names by which clients call the server.
    cors: origins of pages that may. timeout, grace, read_timeout, send_timeout: seconds. compile_seconds: of a thread,
    for one constraint."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | None = None
    hosts: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    timeout: float = 120.0
    grace: float = 10.0
    read_timeout: float = 30.0
    send_timeout: float = 30.0
    max_connections: int = 1024
    compile_seconds: float = 5.0
    limits: Limits = Limits()

    @staticmethod
    def of(task: Mapping[str, Any], environment: Mapping[str, str]) -> ServeSettings:
        """From ``config.task`` and the process's environment. Raises UserError for what no server can have."""
        values: dict[str, Any] = {}
        for entry in fields(ServeSettings):
            if entry.name != "limits":
                kind = "list[str]" if entry.name in ("hosts", "cors") else str(entry.type)
                value = of_kind(f"task.{entry.name}", task[entry.name], kind)
                values[entry.name] = tuple(value) if isinstance(value, list) else value
        sizes = {e.name: of_kind(f"task.{e.name}", task[e.name], str(e.type)) for e in fields(Limits)}
        for name, size in sizes.items():
            if name != "exact":
                in_range(f"task.{name}", size, 1)
        values["api_key"] = key_of_server(values["api_key"], values["api_key_file"], environment)
        settings = ServeSettings(**values, limits=Limits(**sizes))
        settings.check()
        return settings

    def check(self) -> None:
        """Raise UserError for a number out of range, and for a server that strangers could use."""
        in_range("task.port", self.port, 0, 65535, "0 takes a free one.")
        for name in ("timeout", "read_timeout", "send_timeout", "compile_seconds"):
            in_range(f"task.{name}", getattr(self, name), 0.1)
        in_range("task.grace", self.grace, 0)
        in_range("task.max_connections", self.max_connections, 1)
        if "*" in self.cors:
            raise UserError("task.cors=['*'] lets every web page use the server. Name the origins that may.")
        if self.api_key is None and self.host not in LOOPBACK:
            raise UserError(
                f"task.host={self.host} is reached from other machines, so the server needs a key: set the environment "
                f"variable {KEY_VARIABLE} or task.api_key_file=FILE, or drop task.host."
            )

    @property
    def names(self) -> frozenset[str] | None:
        """The names by which a client may call the server, or None: any. A page elsewhere that a browser has open may
        point its own name at this machine; then the Host header still says that name."""
        if self.host in EVERYWHERE and not self.hosts:
            return None  # every request brings the key, which such a page does not have
        own = LOOPBACK if self.host in (*LOOPBACK, *EVERYWHERE) else (self.host,)
        return frozenset(name.lower() for name in (*own, *self.hosts))


def key_of_server(given: str | None, file: str | None, environment: Mapping[str, str]) -> str | None:
    """The key: as given, from its file, or from the environment; None: there is none. Raises UserError for a file that
    cannot be read, and a key that is no key."""
    if given is not None and file is not None:
        raise UserError(f"task.api_key and task.api_key_file={file!r} exclude each other. Drop one of them.")
    source = "task.api_key" if given is not None else f"task.api_key_file={file!r}" if file else KEY_VARIABLE
    key = given if given is not None else environment.get(KEY_VARIABLE)
    if file is not None:
        try:
            key = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UserError(f"{source} cannot be read ({reason}). Name a file that holds the key.") from None
    if key is not None and (len(key) < MIN_KEY or not key.isascii() or not key.isprintable() or " " in key):
        raise UserError(f"{source} must hold a key of at least {MIN_KEY} letters, digits and signs, without spaces.")
    return key
