"""What runs inside the subprocess of ``sandbox``: takes limits and a program from stdin, and runs it under them.

It is started as a script with ``python -I -B`` and imports nothing of this package. The exit code ``reached`` of its
request says that the program reached its last line. Every other code is a failure, also 0.
"""

import json
import os
import resource
import sys
from collections.abc import Callable

# Audit events (PEP 578) of what a solution to a programming exercise has no business with: processes, the network,
# native code, and changing files outside its folder.
REFUSED_EVENTS = (
    "socket.", "subprocess.", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn",
    "os.startfile", "os.system", "os.chmod", "os.chown", "os.link", "os.symlink", "signal.pthread_kill",
)  # fmt: skip
# Allowed inside the folder: how many of an event's arguments are paths, and from which on they are open folders.
CHANGES = {"os.mkdir": (1, 2), "os.remove": (1, 1), "os.rename": (2, 2), "os.rmdir": (1, 1), "os.truncate": (1, 2)}
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def limit(name: str, value: int) -> None:
    """Lower a limit for good; a hard limit that is lower already stays."""
    number = getattr(resource, name)
    hard = resource.getrlimit(number)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))


def refusing(folder: str) -> Callable[[str, tuple[object, ...]], None]:
    """The audit hook of a program that may change files in ``folder`` only, wherever it goes."""

    def writable(path: object) -> bool:
        name = os.fsdecode(path) if isinstance(path, str | bytes) else None  # an open file's number: unknown
        # The folder itself is opened for writing by ``tempfile``, for a file without a name.
        return name is not None and (name == os.devnull or f"{os.path.realpath(name)}/".startswith(f"{folder}/"))

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(REFUSED_EVENTS):
            raise PermissionError(f"{event} is not allowed here")
        if event.startswith("ctypes."):  # numpy tries, and can do without it
            raise ImportError(f"{event} is not allowed here")
        paths: tuple[object, ...] = ()
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITE_FLAGS:
            paths = arguments[:1]
        elif event in CHANGES:
            count, folders = CHANGES[event]
            paths = arguments[:count] if set(arguments[folders:]) <= {-1} else (None,)  # relative to an open folder
        for path in paths:
            if not writable(path):
                raise PermissionError(f"changing {path!r} is not allowed here")

    return refuse


def main() -> None:
    request = json.load(sys.stdin)
    for name, value in request["limits"].items():
        limit(name, value)
    program = compile(request["program"], "program.py", "exec")
    sys.addaudithook(refusing(os.path.realpath(os.getcwd())))  # noqa: PTH109
    exec(program, {"__name__": "__main__"})
    os._exit(request["reached"])


if __name__ == "__main__":
    main()
