"""Builds the walls around a scored program, then starts ``jail`` within them.

Started by ``sandbox`` as ``python -I -S -B walls.py KIND JAIL PYTHON PATHS...`` with an empty environment, in a new and
empty folder. It does not import this package. KIND:

- ``namespaces``: the program has mounts, processes, network, IPC and users of its own. It sees the system and Python's
  folders read-only, ``/proc`` of its own processes, and a home in memory of ``HOME_BYTES``. Nothing else has a path.
- ``landlock``: the kernel denies it all files but those (Linux 5.13), the memory and environment of other processes,
  since 6.7 TCP, and since 6.12 signals. Disk, network in general and the number of processes of root stay open.
- ``none``: the audit hook of ``jail`` alone.

Where root runs it, the program runs as ``NOBODY``: limits on processes do not bind root. The exit code is the
program's, or 128 and the number of the signal that ended it.
"""

import ctypes
import os
import signal
import struct
import sys
import time
from contextlib import suppress

HOME = "/home/program"
HOME_BYTES, HOME_FILES = "64m", 16384  # HumanEval's and MBPP's programs write nothing
NOBODY = 65534
INSIDE = 1000  # the program's user id in a namespace of its own; 0 would own what the kernel keeps from a program
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store",
    "/etc/ld.so.cache", "/etc/ld-musl-x86_64.path", "/etc/ld-musl-aarch64.path", "/etc/alternatives", "/etc/localtime",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x20000, 0x4000000, 0x8000000  # linux/sched.h
NEW_USER, NEW_PIDS, NEW_NET = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18  # linux/mount.h
RELATIME = 1 << 21
DEATH_SIGNAL, SUBREAPER, NO_NEW_PRIVILEGES = 1, 36, 38  # linux/prctl.h
CREATE_RULES, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock's system calls, the same on every architecture

libc = ctypes.CDLL(None, use_errno=True)


def _check(what: str, result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = (None if word is None else os.fsencode(word) for word in (source, target, kind))
    options = None if data is None else data.encode()
    _check(f"mount {target}", libc.mount(*words, ctypes.c_ulong(flags), options))


def visible_paths(python: str, folders: list[str]) -> list[str]:
    """The system's, Python's folders by each of their names, and every link on the way from ``python`` to its file."""
    links = []
    while os.path.islink(python):
        links.append(python)
        python = os.path.join(os.path.dirname(python), os.readlink(python))
    folders = [name for folder in folders for name in (os.path.abspath(folder), os.path.realpath(folder))]
    paths = [path for path in (*SYSTEM, *folders, *links) if path != "/" and os.path.lexists(path)]
    return list(dict.fromkeys(paths))


class _View:
    """A root folder in memory that shows ``paths`` read-only, and DEVICES."""

    def __init__(self, paths: list[str]) -> None:
        links = {path: os.readlink(path) for path in paths if os.path.islink(path)}
        # Opened within our mounts, and while we may still go everywhere: root's own folder may hold Python.
        self.sources = {path: os.open(path, os.O_PATH) for path in (*paths, *DEVICES) if path not in links}
        self.links = links

    def build(self, root: str) -> None:
        mount("none", "/", None, REC | PRIVATE)
        mount("none", root, "tmpfs", NO_SUID, "size=1m,mode=755")
        for path, source in sorted(self.sources.items()):
            self.show(path, source, root + path)
        for path, to in self.links.items():
            if not os.path.lexists(root + path):
                os.makedirs(os.path.dirname(root + path), exist_ok=True)
                os.symlink(to, root + path)
        os.makedirs(root + HOME, exist_ok=True)
        os.mkdir(root + "/proc")
        for point in mount_points(root):
            mount("none", point, None, REMOUNT | BIND | READ_ONLY | NO_SUID | _mount_flags(point))
        mount("none", root + HOME, "tmpfs", NO_SUID | NO_DEV, f"size={HOME_BYTES},nr_inodes={HOME_FILES},mode=700")
        with suppress(OSError):  # refused in a container that hides parts of its own; then there is no /proc
            mount("none", root + "/proc", "proc", NO_SUID | NO_DEV | NO_EXEC)

    def show(self, path: str, source: int, target: str) -> None:
        if os.path.lexists(target):  # within a folder that is shown already
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(f"/proc/self/fd/{source}"):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        mount(f"/proc/self/fd/{source}", target, None, BIND | REC)


def mount_points(root: str) -> list[str]:
    with open("/proc/self/mountinfo", "rb") as file:
        names = [os.fsdecode(line.split()[4]) for line in file]
    for sign in (" ", "\t", "\n", "\\"):  # written as \040 and so on
        names = [name.replace(f"\\{ord(sign):03o}", sign) for name in names]
    return sorted({name for name in names if name == root or name.startswith(root + "/")})


def _mount_flags(point: str) -> int:
    """A namespace may add to the flags that a mount has outside, and take none away."""
    flags = os.statvfs(point).f_flag
    return (
        flags & (NO_SUID | NO_DEV | NO_EXEC | os.ST_NOATIME | os.ST_NODIRATIME)
        | bool(flags & os.ST_RELATIME) * RELATIME
    )


def in_namespaces(run: list[str], paths: list[str]) -> int:
    root = "/tmp"  # covered, in our own mounts alone
    enter_namespaces()
    view = _View(paths)
    os.setresgid(INSIDE, INSIDE, INSIDE)
    os.setresuid(INSIDE, INSIDE, INSIDE)
    return exit_code_of(fork_into(run, view, root))


def enter_namespaces() -> None:
    """New namespaces, in which we are ``INSIDE`` alone: outside that is NOBODY for root, else the same user."""
    user, group = (NOBODY, NOBODY) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    if os.geteuid() == 0:
        os.setgroups([])
    ready, go = os.pipe()
    parent = os.getpid()
    helper = os.fork()
    if helper == 0:  # stays outside, where root may name another user
        os.close(go)
        os.read(ready, 1)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{INSIDE} {user} 1"),
            ("gid_map", f"{INSIDE} {group} 1"),
        ):
            with open(f"/proc/{parent}/{name}", "w") as file:
                file.write(text)
        os._exit(0)
    os.close(ready)
    _check("unshare", libc.unshare(NEW_USER | NEW_MOUNTS | NEW_PIDS | NEW_NET | NEW_IPC | NEW_UTS))
    os.close(go)
    if os.waitpid(helper, 0)[1]:
        raise OSError("no user id can be mapped")


def fork_into(run: list[str], view: _View, root: str) -> int:
    """Process 1 of the namespace: when it ends, every process inside ends."""
    first = os.fork()
    if first:
        return first
    libc.prctl(DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    view.build(root)
    os.chroot(root)  # which also keeps anything in there from making namespaces
    os.chdir(HOME)
    program = os.fork()
    if program == 0:
        start_inside(run, HOME)
    os._exit(exit_code_of(program))


def start_inside(run: list[str], home: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        _check("prctl", libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    os.execve(run[0], run, {**os.environ, "HOME": home, "TMPDIR": home})


def exit_code_of(process: int) -> int:
    """The exit code of ``process``, while all other orphans are taken in."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == process:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _alone(run: list[str], paths: list[str], landlock: bool) -> int:
    """Without namespaces: NOBODY where we are root, and every descendant is found and ended."""
    home = os.getcwd()
    if sys.platform == "linux":
        _check("prctl", libc.prctl(SUBREAPER, 1, 0, 0, 0))
    signal.signal(signal.SIGTERM, end_all)
    program = os.fork()
    if program == 0:
        if landlock:
            deny_files(paths, home)
        if os.geteuid() == 0 and all(open_to_all(path) for path in (os.path.realpath(run[0]), os.__file__, *paths)):
            with suppress(OSError):  # a container may have no other user
                os.chown(home, NOBODY, NOBODY)
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
        start_inside(run, home)
    code = exit_code_of(program)
    end_descendants()
    return code


def end_all(*_: object) -> None:
    end_descendants()
    os._exit(1)


def open_to_all(path: str) -> bool:
    """Whether every user may go to ``path``."""
    while path != "/":
        if not os.stat(path).st_mode & (1 if os.path.isdir(path) else 4):
            return False
        path = os.path.dirname(path)
    return True


def end_descendants() -> None:
    """Orphans become our children, so this ends when none is left. 5 s: what neither dies nor is ours stays."""
    deadline = time.monotonic() + 5
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            for child in children():
                with suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.002)


def children() -> list[int]:
    pids = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():  # PID (NAME) STATE PARENT
                pids.append(int(name))
    return pids


def deny_files(paths: list[str], home: str) -> None:
    """Landlock: ``paths`` may be read, DEVICES and ``home`` written; all else that the kernel knows is denied."""
    version = _check("landlock", libc.syscall(CREATE_RULES, None, 0, 1))
    files = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    rules = struct.pack("=QQQ", files, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _check("landlock", libc.syscall(CREATE_RULES, rules, len(rules), 0))
    read, write, of_files = 1 | 4 | 8, 2, 1 | 2 | 4 | (1 << 14) * (version >= 3)
    for path, rights in {**dict.fromkeys(paths, read), **dict.fromkeys(DEVICES, read | write), home: files}.items():
        with suppress(FileNotFoundError):
            rule = struct.pack("=Qi", rights if os.path.isdir(path) else rights & of_files, os.open(path, os.O_PATH))
            _check(f"landlock {path}", libc.syscall(ADD_RULE, ruleset, 1, rule, 0))
    _check("prctl", libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check("landlock", libc.syscall(RESTRICT_SELF, ruleset, 0))


def main(kind: str, jail: str, python: str, *folders: str) -> int:
    with open(jail) as file:
        run = [python, "-I", "-B", "-c", file.read()]
    if sys.platform == "linux":
        libc.prctl(DEATH_SIGNAL, signal.SIGTERM)
    paths = visible_paths(python, list(folders))
    return in_namespaces(run, paths) if kind == "namespaces" else _alone(run, paths, kind == "landlock")


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
