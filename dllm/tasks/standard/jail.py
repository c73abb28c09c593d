"""Runs a program under limits within the walls: takes both from standard input, with a word and the number of a pipe.

It is run as a script by ``python -I -B`` and does not import this package. A program that reaches its last line has
its word written to the pipe; nothing else tells that it passed.

The audit hook (PEP 578) only helps: it gives a mistake a sentence. What a program may do is decided by ``walls``.
"""

import json
import os
import resource
import sys
from collections.abc import Callable

# What a solution to a programming exercise has no business with: processes, the network, native code, changing files
# outside its folder, and looking into the interpreter.
REFUSED_EVENTS = (
    "socket.", "subprocess.", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn",
    "os.startfile", "os.system", "os.chmod", "os.chown", "os.link", "os.symlink", "signal.pthread_kill", "sqlite3.",
    "os.utime", "os.setxattr", "os.removexattr", "gc.get_", "sys._current_", "sys.addaudithook", "sys.settrace",
    "sys.setprofile", "sys.monitoring.",
)  # fmt: skip
REFUSED_MODULES = ("_posixsubprocess", "_ctypes_test", "_testcapi", "_testinternalcapi")
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
    """The audit hook of a program that may change files in ``folder`` only, wherever it goes.

    All that it calls is its own, so that a program that changes a module does not change the hook.
    """
    real, decode, null, kinds, every = os.path.realpath, os.fsdecode, os.devnull, (str, bytes), isinstance
    events, modules, changes, writes = REFUSED_EVENTS, REFUSED_MODULES, dict(CHANGES), WRITE_FLAGS
    no_permission, no_import, is_number, as_set = PermissionError, ImportError, int, set

    def writable(path: object) -> bool:
        name = decode(path) if every(path, kinds) else None  # type: ignore[arg-type]  # an open file's number: unknown
        # The folder itself is opened for writing by ``tempfile``, for a file without a name.
        return name is not None and (name == null or f"{real(name)}/".startswith(f"{folder}/"))

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(events):
            raise no_permission(f"{event} is not allowed here")
        if event.startswith("ctypes."):  # numpy tries, and can do without it
            raise no_import(f"{event} is not allowed here")
        if event == "import":
            name, file = arguments[:2]
            if name in modules or (every(file, kinds) and f"{real(file)}/".startswith(f"{folder}/")):  # type: ignore[call-overload]
                raise no_import(f"import of {name} is not allowed here")
        paths: tuple[object, ...] = ()
        if event == "open" and every(arguments[2], is_number) and arguments[2] & writes:  # type: ignore[operator]
            paths = arguments[:1]
        elif event == "open" and every(arguments[0], kinds) and real(arguments[0]).startswith("/proc/"):  # type: ignore[call-overload]
            raise no_permission(f"reading {arguments[0]!r} is not allowed here")
        elif event in changes:
            count, folders = changes[event]
            paths = arguments[:count] if as_set(arguments[folders:]) <= {-1} else (None,)  # relative to an open folder
        for path in paths:
            if not writable(path):
                raise no_permission(f"changing {path!r} is not allowed here")

    return refuse


def hide_memory() -> None:
    """No one of our rights, ourselves included, reads this process's memory and environment in /proc."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        for name in ("ctypes", "ctypes._endian", "_ctypes"):
            sys.modules.pop(name, None)


def forbid_processes() -> None:
    """The one way to a process that has no audit event; ``asyncio`` imports its module, and is allowed."""
    import _posixsubprocess

    def refuse(*arguments: object) -> None:
        raise PermissionError("a process is not allowed here")

    _posixsubprocess.fork_exec = refuse  # type: ignore[assignment]


def request() -> dict[str, object]:
    """What standard input holds; afterwards it is empty, and no buffer of Python's has seen it."""
    with open(0, "rb", buffering=0, closefd=False) as file:
        job: dict[str, object] = json.loads(file.readall())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return job


def main(job: dict[str, object]) -> None:
    hide_memory()
    forbid_processes()
    for name, value in job.pop("limits").items():  # type: ignore[attr-defined]
        limit(name, value)
    program = compile(job.pop("program"), "program.py", "exec")  # type: ignore[call-overload]
    sys.addaudithook(refusing(os.path.realpath(os.getcwd())))  # noqa: PTH109
    # Pipe and word are on this frame's stack while the program runs: no name, frame or collector leads to them.
    os.write(*[job.pop("pipe"), job.pop("word").encode(), exec(program, {"__name__": "__main__"})][:2])  # type: ignore
    os._exit(0)


if __name__ == "__main__":
    main(request())
