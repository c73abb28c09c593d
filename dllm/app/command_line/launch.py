"""The ranks of ``model.tp=N``: processes that run one command together. torchrun starts them, or else the command does.

Rank 0 alone writes, prints and is told to stop. The others, its followers, decode the same and end with it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm.common.digest import digest
from dllm.common.errors import UserError, in_range
from dllm.common.links import Links, current_links, linked, links_over, open_links
from dllm.common.signals import ENDING
from dllm.common.terminal import excepthook
from dllm.common.versions import version_of
from dllm.compose.config_choices import choice_of

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

WITHOUT_WEIGHTS = ("check", "quantize")  # tasks that hold no model
COMING = 300.0  # seconds in which all ranks must have come; a busy machine imports PyTorch in up to a minute
# The timeout of an exchange, which waits for the work of rank 0 between two turns. ``Links`` notices who died.
EXCHANGE = timedelta(days=7)
LEAVING = 5.0  # seconds in which a follower that this command started must end after it
PORT = "MASTER_PORT"
LINK = "DLLM_LINK"  # descriptor of a follower's connection to the process that has started it
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # by which ranks of one machine exchange what is not local
LONGEST_HEADER = 100_000_000  # bytes that safetensors allows


@contextmanager
def with_ranks(settings: Mapping[str, Any], words: Sequence[str]) -> Iterator[None]:
    """Run what follows as a rank among ``model.tp``. words: the command line, for the ranks that it has to start.

    Raises UserError for more ranks than GPUs, and where ranks differ in what they run.
    """
    size, engine = settings["model"].get("tp", 1), choice_of("engine", settings["engine"])
    if size == 1 or engine == "ray" or settings["task"]["name"] in WITHOUT_WEIGHTS or current_links() is not None:
        yield
        return
    refuse_ranks(settings["model"], size, engine)
    ranks = Launched(size, ["-m", "dllm", *words])
    try:
        with linked(ranks.connected(float(settings["model"]["tp_timeout"]))) as links:
            refuse_differences(links, settings)
            quiet(links)
            ranks.initialise(settings["model"]["device"])
            yield
    finally:
        ranks.reap()


def refuse_ranks(model: Mapping[str, Any], size: int, engine: str) -> None:
    """Raise UserError for a number of ranks that this machine, or those who started its processes, do not have."""
    import torch

    in_range("model.tp_timeout", model["tp_timeout"], 1)
    there, world = torch.cuda.device_count(), int(os.environ.get("WORLD_SIZE", "1"))
    if model["device"] in ("auto", "cuda") and 0 < there < size:
        raise UserError(f"model.tp={size} needs a GPU for each rank, and torch finds {there}. Set model.tp={there}.")
    if "RANK" in os.environ and (world % size or (engine == "local" and world != size)):
        way_out = f"Start {size}" + ("" if world % size else ", or add engine=accelerate for groups of them")
        raise UserError(f"model.tp={size} takes {size} processes, and there are {world}. {way_out}.")


class Launched:
    """This process's place among the ranks of its model, and the followers that it has started. program: what they run,
    as arguments of Python."""

    def __init__(self, size: int, program: Sequence[str]) -> None:
        self.size, self.followers, self.before = size, list[subprocess.Popen[bytes]](), dict(os.environ)
        self.connections = list[socket.socket]()  # to ranks that one of them has started
        self.store = self._met() if "RANK" in os.environ else self._started(program)
        self.place, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def _met(self) -> Store:
        """The store of processes that torchrun, or another, has started."""
        from torch.distributed import DistError
        from torch.distributed.rendezvous import rendezvous

        if LINK in os.environ:
            self.connections = [socket.socket(fileno=int(os.environ.pop(LINK)))]
            self.connections[0].set_inheritable(False)
        try:
            store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=COMING)))
        except (DistError, ValueError) as error:
            raise UserError(f"model.tp={self.size}: the ranks did not find each other ({error}).") from None
        return store

    def _started(self, program: Sequence[str]) -> Store:
        """Start the followers, and the store by which they exchange tensors. Nothing listens beyond this machine."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        listening = socket.create_server(("127.0.0.1", 0))  # TCPStore would listen on every address
        store = TCPStore(
            "127.0.0.1",
            listening.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listening.detach(),
        )
        variables = {
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            PORT: str(store.port),
        }
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        variables |= {name: loopback for name in INTERFACES if loopback is not None and name not in os.environ}
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        for rank in range(1, self.size):
            ours, theirs = socket.socketpair()
            environment = {
                **os.environ,
                **variables,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "PYTHONPATH": path,
                LINK: str(theirs.fileno()),
            }
            command = [sys.executable, *program]
            with theirs:
                self.followers.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
                )
            self.connections.append(ours)
        os.environ.update(variables, RANK="0", LOCAL_RANK="0")
        return store

    def connected(self, timeout: float) -> Links:
        """The links to the other ranks of this process's model."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        group, rank = divmod(self.place, self.size)
        if self.connections:
            links = links_over(self.connections, rank, self.size, timeout, COMING)
        else:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives a restart
            store = PrefixStore(f"dllm/{attempt}/{group}", self.store)
            local = int(os.environ.get("LOCAL_WORLD_SIZE", self.world)) >= self.size
            links = open_links(rank, self.size, timeout, store, local, COMING)
        links.before_end = self.kill
        return links

    def initialise(self, device: str) -> None:
        """Begin ``torch.distributed``, unless it has begun. Ranks that share one GPU exchange over gloo: NCCL refuses
        them."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            return
        apart = torch.cuda.is_available() and device in ("auto", "cuda")
        if apart:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if apart else "gloo",
            store=self.store,
            rank=self.place,
            world_size=self.world,
            timeout=EXCHANGE,
        )

    def kill(self) -> None:
        """End the followers that this process has started: one may hang."""
        for follower in self.followers:
            follower.kill()

    def reap(self) -> None:
        """Wait for them to end, and take back what was set for them."""
        for follower in self.followers:
            try:
                follower.wait(LEAVING)
            except subprocess.TimeoutExpired:
                follower.kill()
        if self.followers:
            os.environ.clear()
            os.environ.update(self.before)


def refuse_differences(links: Links, settings: Mapping[str, Any]) -> None:
    """Raise UserError, which names the first difference, where ranks run different things."""
    digests = digest_of(settings)
    if not links.leads:
        links.tell(digests)
        return
    for rank, theirs in sorted(links.hear() for _ in links.links):
        for name in sorted(digests.keys() | theirs.keys()):
            if digests.get(name) != theirs.get(name):
                raise UserError(
                    f"model.tp={links.size}: {name} is {digests.get(name)} on rank 0 and {theirs.get(name)} on "
                    f"rank {rank}. Give all ranks the same."
                )


def digest_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """By name everything in which ranks must not differ: settings, versions, and what files say of their weights."""
    import torch

    from dllm.models.weights.checkpoint_path import locate
    from dllm.record.folders import flatten

    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "none"  # type: ignore[no-untyped-call]
    versions = {"PyTorch": torch.__version__, "NCCL": nccl, "dllm": version_of("dllm") or "checkout"}
    headers = dict(headers_of(locate(settings["model"]["path"], weights=False)))
    return {**{name: str(value) for name, value in flatten(settings).items()}, **versions, **headers}


def headers_of(place: Path) -> Iterator[tuple[str, str]]:
    """By name the digest of each file of a checkpoint that is not large, and of the headers of those that are."""
    for file in sorted(place.iterdir()) if place.is_dir() else [place]:
        if file.suffix == ".json":
            yield file.name, digest(file.read_bytes())
        elif file.suffix == ".safetensors":
            with file.open("rb") as stream:
                size = int.from_bytes(stream.read(8), "little")
                yield f"the header of {file.name}", digest(stream.read(min(size, LONGEST_HEADER)))


def quiet(links: Links) -> None:
    """Have a follower write nothing, and leave signals to rank 0, which ends it. A traceback of a bug is still seen."""
    if links.leads:
        return
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_IGN)
    terminal = sys.stderr

    def show(kind: type[BaseException], error: BaseException, place: Any) -> None:
        with redirect_stderr(terminal):
            excepthook(kind, error, place)

    sys.excepthook, sys.stdout = show, open(os.devnull, "w")  # noqa: PTH123, SIM115  until the process ends
    sys.stderr = sys.stdout


def is_repeated_sentence(sentence: str) -> bool:
    """Whether another process of torchrun's has said the same before, where they have no links yet."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or current_links() is not None:
        return False
    from torch.distributed import DistError
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=LEAVING)))
        return bool(store.add(f"dllm/said/{digest(sentence.encode())}", 1) > 1)
    except (DistError, RuntimeError, ValueError):
        return False
