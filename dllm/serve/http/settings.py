"""The server's own settings: the keys of ``conf/task/serve.yaml``, which explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dllm.common.coerce import coerce
from dllm.common.errors import Refusal, UserError, in_choices, in_range
from dllm.serve.engine.jobs import Limits
from dllm.serve.http.api_keys import KEY_VARIABLE, check_key, keys_in_file

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
ANY_HOST = "*"
LOGS = ("text", "json")
UNKNOWN_FIELDS = ("note", "refuse")
SHARINGS = ("key", "request", "all")


@dataclass(frozen=True)
class ServeSettings:
    """Of the server itself, as ``task=serve`` has them."""

    host: str = "127.0.0.1"  # address to listen at
    port: int = 8000  # port to listen at; 0: any free one
    names: tuple[str, ...] = ()  # of the model, as clients call it; the first is the one that replies and pages show
    # what every request must bring; None: nothing, unless there is a file
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | None = None  # file of keys; every request must bring one; None: none
    hosts: tuple[str, ...] = ()  # further names by which clients call the server
    cors: tuple[str, ...] = ()  # origins of pages that may call it
    timeout: float = 120.0  # seconds that an answer may take
    grace: float | None = None  # seconds that requests under way may take after SIGTERM; None: as timeout
    read_timeout: float = 30.0  # seconds in which a request's header must have come, and its body
    send_timeout: float = 30.0  # seconds after which a reader that takes nothing is let go
    max_connections: int = 1024  # open at once
    compile_seconds: float = 5.0  # seconds of a thread in which a constraint must be compiled
    log: str = "text"  # ``text`` or ``json``, the form of its lines
    # tokens of an answer at most where Anthropic's or Ollama's clients ask for more; None: all that the model leaves
    max_tokens: int | None = None
    unknown_fields: str = "note"  # of a request: ``note`` passes over them and says so, ``refuse`` refuses them
    prefix_sharing: str = "key"  # who shares prompts: requests of one ``key``, ``all``, or each ``request`` alone
    max_rows: int | None = None  # answers decoded together; None: measured, and ``limits`` has what one request may ask
    limits: Limits = Limits()  # what may be decoded at once

    @staticmethod
    def of(task: Mapping[str, Any], environment: Mapping[str, str]) -> ServeSettings:
        """From ``config.task`` and the process's environment. Raises UserError for what no server can have."""
        values: dict[str, Any] = {}
        for entry in fields(ServeSettings):
            if entry.name != "limits":
                kind = "list[str]" if entry.name in ("names", "hosts", "cors") else str(entry.type)
                value = coerce(f"task.{entry.name}", task[entry.name], kind)
                values[entry.name] = tuple(value) if isinstance(value, list) else value
        sizes_set = [entry for entry in fields(Limits) if entry.name not in values or values[entry.name] is not None]
        sizes = {entry.name: coerce(f"task.{entry.name}", task[entry.name], str(entry.type)) for entry in sizes_set}
        for name, size in sizes.items():
            if name != "exact":
                in_range(f"task.{name}", size, 0 if name == "prefix_gib" else 1)
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
        in_range("task.max_tokens", self.max_tokens, 1)
        in_choices("task.log", self.log, LOGS)
        in_choices("task.unknown_fields", self.unknown_fields, UNKNOWN_FIELDS)
        in_choices("task.prefix_sharing", self.prefix_sharing, SHARINGS)
        if any(not name.strip() or len(set(self.names)) < len(self.names) for name in self.names):
            raise Refusal("{task.names} must be different names, none of them empty.", [list(self.names)])
        if "*" in self.cors:
            raise UserError("task.cors=['*'] lets every web page use the server. Name the origins that may.")
        if ANY_HOST in self.hosts and not self.needs_key:
            raise UserError(
                f"task.hosts=['*'] lets every web page reach the server by its own name, so the server needs a key: "
                f"set the environment variable {KEY_VARIABLE} or task.api_key_file=FILE, or name the hosts."
            )
        if not self.needs_key and self.host not in LOOPBACK:
            raise Refusal(
                "{task.host} is reached from other machines, so the server needs a key: set the environment "
                f"variable {KEY_VARIABLE} or task.api_key_file=FILE, or drop {{task.host:name}}.",
                [self.host],
            )

    @property
    def needs_key(self) -> bool:
        """Whether requests must bring a key."""
        return self.api_key is not None or self.api_key_file is not None

    @property
    def drain_seconds(self) -> float:
        """Seconds that requests under way have after SIGTERM: as many as a request has, unless ``grace`` says less."""
        return self.timeout if self.grace is None else self.grace

    @property
    def hostnames(self) -> frozenset[str] | None:
        """The names by which a client may call the server, or None: any. A page elsewhere that a browser has open may
        point its own name at this machine; then the Host header still says that name."""
        if ANY_HOST in self.hosts or (self.host in EVERYWHERE and not self.hosts):
            return None  # every request brings the key, which such a page does not have
        names = LOOPBACK if self.host in (*LOOPBACK, *EVERYWHERE) else (self.host,)
        return frozenset(name.lower() for name in (*names, *self.hosts))


def key_of_server(setting: str | None, file: str | None, environment: Mapping[str, str]) -> str | None:
    """The key: as given, or from the environment; None where a file holds the keys, or without any. Raises UserError
    for a file that cannot be read, and a key that is not a key."""
    if setting is not None and file is not None:
        raise Refusal(
            "{task.api_key:name} and {task.api_key_file:quoted} exclude each other. Drop one of them.", [file]
        )
    if file is not None:
        keys_in_file(file)
        return None
    key = setting if setting is not None else environment.get(KEY_VARIABLE)
    if key is not None:
        check_key("task.api_key" if setting is not None else KEY_VARIABLE, key)
    return key
