"""What runs inside the subprocess of ``sandbox``: takes limits and a program from stdin, and runs it under them.

It is started as a script with ``python -I -B`` and imports nothing of this package. Exit code 77 says that the
program's last line was reached; anything else is a failure, also a program that ends itself with code 0.
"""

import json
import os
import resource
import sys

REACHED = 77
# Audit events (PEP 578) of what a solution to a programming exercise has no business with: processes, the network,
# native code, and changing files outside its folder.
REFUSED = (
    "socket.", "subprocess.", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn",
    "os.startfile", "os.system", "ctypes.", "os.chmod", "os.chown", "os.link", "os.remove", "os.rename", "os.rmdir",
    "os.symlink", "os.truncate", "shutil.", "signal.pthread_kill",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def limit(name: str, value: int) -> None:
    """Lower a limit for good; a hard limit that is lower already stays."""
    number = getattr(resource, name)
    hard = resource.getrlimit(number)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event.startswith(REFUSED):
        raise PermissionError(f"{event} is not allowed here")
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
        path = arguments[0]
        inside = isinstance(path, str) and os.path.realpath(path).startswith(os.getcwd() + os.sep)  # noqa: PTH109
        if not inside and path != os.devnull:
            raise PermissionError(f"writing {path!r} is not allowed here")


def main() -> None:
    request = json.load(sys.stdin)
    for name, value in request["limits"].items():
        limit(name, value)
    program = compile(request["program"], "program.py", "exec")
    sys.addaudithook(refuse)
    exec(program, {"__name__": "__main__"})
    os._exit(REACHED)


if __name__ == "__main__":
    main()
