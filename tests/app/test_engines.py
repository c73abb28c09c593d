"""Every engine and launcher gives what engine=local gives; a lost worker costs nothing but its own samples."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dllm.app.engines.ray_workers import places
from dllm.parts import PART_RESULTS, Ray, RunFolder, stored_cells
from tests.app.conftest import ROOT, Run, cells_of, command, rows_of, timeless

SWEEP = ["-m", "+task.count=6", "sampler=confidence,static", "sampling.temperature=1.0"]


def rank(number: int, port: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    """One of two processes as ``accelerate launch`` would start it."""
    where = {
        "RANK": f"{number}",
        "LOCAL_RANK": f"{number}",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    program = [sys.executable, str(ROOT / "run.py"), *arguments]
    return subprocess.Popen(program, env=os.environ | where, stderr=subprocess.PIPE)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.program
def test_two_processes_of_accelerate_decode_what_one_does(run: Run, tiny: Path) -> None:
    run(*SWEEP, "name=local")
    port, arguments = free_port(), command(tiny, *SWEEP, "engine=accelerate", "name=both")
    started = [rank(number, port, arguments) for number in range(2)]
    assert [process.communicate() and process.returncode for process in started] == [0, 0]
    assert cells_of(Path("runs/both")) == cells_of(Path("runs/local"))
    assert not list(Path("runs/both").glob("*/results-*"))


def test_what_a_killed_process_left_is_gathered_once(run: Run) -> None:
    """A line may stand in a process's file and in the results when a kill fell between."""
    run("name=a", "+task.count=4")
    rows = rows_of(Path("runs/a"))
    results = Path("runs/a/results.jsonl")
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:2]))
    Path("runs/a", PART_RESULTS.format(1)).write_bytes(b"".join(lines[1:3]) + lines[3][:-5])
    assert [row["id"] for row in stored_cells(Path("runs/a"))[0].rows] == ["q0", "q2", "q1"]  # by sub-task
    run("name=a", "+task.count=4")
    assert rows_of(Path("runs/a"))[:3] == rows[:3] and not Path("runs/a", PART_RESULTS.format(1)).exists()
    assert [timeless(row) for row in rows_of(Path("runs/a"))] == [timeless(row) for row in rows]


def test_several_processes_need_a_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = run(*SWEEP)
    assert outcome.code == 2 and "name=NAME" in outcome.err


def outcomes(arguments: list[str], kill: Path | None = None) -> list[tuple[int, str]]:
    """Exit code and last line of standard error of two processes. kill: the second one dies when this file is there."""
    port = free_port()
    started = [rank(number, port, arguments) for number in range(2)]
    while kill is not None and not kill.exists():
        assert started[1].poll() is None
        time.sleep(0.01)
    if kill is not None:
        started[1].kill()
    read = [process.communicate(timeout=120)[1].decode() for process in started]
    return [
        (process.returncode, text.strip().replace("\r", "\n").rpartition("\n")[2])
        for process, text in zip(started, read, strict=True)
    ]


@pytest.mark.program
def test_a_killed_process_is_noticed_within_a_minute(run: Run, tiny: Path) -> None:
    settings = ["+task.count=2000", "name=dead"]
    began = time.monotonic()
    (code, sentence), (killed, _) = outcomes(
        command(tiny, *settings, "engine=accelerate"), Path("runs/dead", PART_RESULTS.format(1))
    )
    assert (code, killed) == (75, -9) and time.monotonic() - began < 100
    assert "process 1 of engine=accelerate has died. Finished samples are kept: give the same command" in sentence


@pytest.mark.program
def test_what_one_process_refuses_all_refuse_in_its_words(run: Run, tiny: Path) -> None:
    assert run("name=a", "+task.count=2").code == 0
    both = outcomes(command(tiny, "name=a", "+task.count=2", "seed=7", "engine=accelerate"))
    assert both[0] == both[1] and both[0][0] == 2 and "runs/a was run with seed=0, not 7" in both[0][1]


@pytest.mark.program
def test_what_does_not_fit_fails_alone(run: Run, tiny: Path) -> None:
    """The other process's share is finished."""
    at_fault = ["+task.count=8", "batch_size=2", "+task.deadly=q4", "+task.fault=TooLarge", "name=large"]
    both = outcomes(command(tiny, *at_fault, "engine=accelerate"))
    assert [code for code, _ in both] == [3, 3]
    assert len(rows_of(Path("runs/large"))) >= 4 and not list(Path("runs/large").glob("results-*"))


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_launchers_of_hydra_decode_what_one_process_does(run: Run, tiny: Path, launcher: str) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.split('_')[0]}_launcher")
    run(*SWEEP, "name=local")
    arguments = [*command(tiny, *SWEEP), "name=jobs", f"hydra/launcher={launcher}"]
    more = ["hydra.launcher.n_jobs=2"] if launcher == "joblib" else ["hydra.launcher.timeout_min=5"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *arguments, *more],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert cells_of(Path("runs/jobs")) == cells_of(Path("runs/local"))


def test_ray_decodes_the_same_and_outlives_its_workers(run: Run, tmp_path: Path) -> None:
    """One worker dies once over an item, which another one then decodes; in the next cell every worker dies over it."""
    pytest.importorskip("ray")
    settings = ["-m", "+task.count=6", "+task.deadly=q3", f"+task.tally={tmp_path / 'died'}"]
    run(*settings, "+task.deaths=0", "name=local")
    (expected,) = cells_of(Path("runs/local")).values()
    ray = ["engine=ray", "engine.replicas=2", "engine.shard=3", "engine.retries=1"]
    outcome = run(*settings, "+task.deaths=1,9", "name=ray", *ray)
    assert outcome.code == 3 and "Failed: q3/0" in outcome.err and "worker was lost 2 times" in outcome.err
    assert len(list(tmp_path.glob("died-9.*"))) == 2 and len(list(tmp_path.glob("died-1.*"))) == 1
    lacking, whole = sorted(cells_of(Path("runs/ray")).values(), key=len)
    assert whole == expected and lacking == [row for row in expected if row["id"] != "q3"]


def test_ray_says_what_is_wrong_before_it_starts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "engine.shard=0 must be at least 1" in run("name=a", "engine=ray", "engine.shard=0").err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "[ray]', or use engine=local" in run("name=a", "engine=ray").err


RAY = ["engine=ray", "engine.shard=3"]
RAY_METHODS = (
    "NodeInfoGcsService/GetAllNodeInfo",
    "InternalKVGcsService/InternalKVPut",
    "NodeManagerService/GetNodeStats",
    "NodeManagerService/RequestWorkerLease",
    "CoreWorkerService/PushTask",
    "ObjectManagerService/Push",
)


@pytest.mark.parametrize(
    ("node", "cpus", "gpus", "room"),
    [
        ({"CPU": 3.0}, 1.0, 0, 3),
        ({"CPU": 1.5}, 1.0, 0, 1),
        ({"CPU": 2.0}, 0.1, 0, 20),
        ({"CPU": 16.0, "GPU": 2.0}, 1.0, 1.0, 2),
        ({"CPU": 16.0, "GPU": 2.0}, 1.0, 0.4, 4),  # two on each GPU: none is cut across GPUs
        ({"CPU": 16.0, "GPU": 3.0}, 1.0, 2.0, 1),
        ({"CPU": 1.0, "GPU": 8.0}, 1.0, 1.0, 1),
        ({"memory": 1e9}, 1.0, 0, 0),
    ],
)
def test_a_worker_lies_on_one_machine(node: dict[str, float], cpus: float, gpus: float, room: int) -> None:
    assert places(node, cpus, gpus) == room


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two machines of one core."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_AUTH_TOKEN", "0" * 64)  # Ray reads it once in a process: for all clusters of the tests
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    found.second = found.add_node(num_cpus=1)
    found.wait_for_nodes()
    yield found
    found.shutdown()


@pytest.mark.program
def test_a_machine_that_goes_costs_nothing_but_time(cluster: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lost worker has no room any more: nothing may be handed to it."""
    run("-m", "+task.count=12", "name=local")
    write = RunFolder.write

    def removing(self: RunFolder, *arguments: Any) -> None:
        write(self, *arguments)
        if len(self.rows) == 2:
            cluster.remove_node(cluster.second)

    monkeypatch.setattr(RunFolder, "write", removing)
    outcome = run("-m", "+task.count=12", "name=ray", *RAY, f"engine.address={cluster.address}")
    assert outcome.code == 0, outcome.err
    assert cells_of(Path("runs/ray")) == cells_of(Path("runs/local"))


@pytest.mark.program
def test_without_any_room_the_run_ends_in_a_sentence(cluster: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has both machines; what is decoded is kept."""
    import ray

    class Holder:
        def hold(self) -> bool:
            return True

    ray.init(address=cluster.address)
    holders = [ray.remote(Holder).options(num_cpus=1).remote() for _ in range(2)]
    ray.get([holder.hold.remote() for holder in holders])
    monkeypatch.setattr(ray, "init", lambda **_: None)  # the connection that holds them must stay
    began = time.monotonic()
    outcome = run("name=a", "+task.count=4", *RAY, "engine.wait=3")
    assert time.monotonic() - began < 60
    assert outcome.code == 2 and "2 of 2 workers have no room: each takes engine.cpus=1" in outcome.err, outcome.err
    assert "0 of 2 cores free, for engine.wait=3 s" in outcome.err and "give the same command again" in outcome.err


@pytest.mark.program
def test_more_replicas_than_room_are_refused(cluster: Any, run: Run) -> None:
    where = f"engine.address={cluster.address}"
    outcome = run("name=a", "+task.count=4", *RAY, "engine.replicas=4", where)
    assert outcome.code == 2 and "engine.replicas=4: there is room for 2" in outcome.err, outcome.err
    assert "Set engine.replicas=2, or add machines" in outcome.err and not Path("runs/a").exists()
    outcome = run("name=a", "+task.count=4", *RAY, "engine.cpus=2", where)  # two cores, on two machines
    assert outcome.code == 2 and "there is room for 0" in outcome.err and not Path("runs/a").exists()


@pytest.mark.program
def test_ray_started_for_one_command_answers_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ports are open to other machines: each that speaks Ray's protocol asks for the token of this command."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    grpc = pytest.importorskip("grpc")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def answer(port: int, method: str, *token: tuple[str, str]) -> str:
        """Of an empty message, whatever the method makes of it."""
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                channel.unary_unary(f"/ray.rpc.{method}")(b"", metadata=token, timeout=5)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    Ray().connect()
    try:
        ray.get(ray.remote(lambda: None).options(num_cpus=0).remote())  # a worker has ports, too
        me = psutil.Process()
        sockets = [each for one in [me, *me.children(recursive=True)] for each in one.net_connections("inet")]
        ports = {each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN}
        found = {method: {port: answer(port, method) for port in ports} for method in RAY_METHODS}
        asked = {method: [port for port in ports if found[method][port] == "UNAUTHENTICATED"] for method in found}
        assert all(asked.values()) and "OK" not in str(found), found
        token = ("authorization", f"Bearer {os.environ['RAY_AUTH_TOKEN']}")
        assert answer(asked[RAY_METHODS[0]][0], RAY_METHODS[0], token) == "OK"
    finally:
        ray.shutdown()


@pytest.mark.program
def test_what_a_worker_raises_is_what_one_process_raises(run: Run) -> None:
    """As ``engine=local``: a mistake of the user in a sentence, a cell that is too large as a failure of that cell, and
    anything else with its traceback. None of them is a lost worker, and none is tried again."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    settings = ["+task.count=6", "+task.deadly=q3"]
    for engine in ([], [*RAY, "engine.replicas=1"]):
        name = f"name={len(engine)}"
        outcome = run(*settings, "+task.fault=UserError", f"{name}-user", *engine)
        assert outcome.code == 2 and "Error: q3 is at fault\n" in outcome.err, outcome.err
        outcome = run(*settings, "+task.fault=TooLarge", f"{name}-large", *engine)
        assert outcome.code == 3 and "q3/0" in outcome.err and ": q3 is at fault" in outcome.err, outcome.err
        with pytest.raises(ValueError, match="q3 is at fault") as raised:
            run(*settings, "+task.fault=ValueError", f"{name}-other", *engine)
        notes = "".join(getattr(raised.value, "__notes__", []))
        assert bool(engine) == ("tests/app/questions.py" in notes) and "\x1b" not in notes
        assert len(rows_of(Path("runs", f"{len(engine)}-other"))) < 6


@pytest.mark.program
def test_replicas_of_two_ranks_decode_what_one_process_does(run: Run) -> None:
    """On a CPU each rank asks for a core. A worker that dies takes its follower with it, and another begins again."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    settings = [*SWEEP, "model.dtype=float64"]
    run(*settings, "name=local")
    replicas = [*RAY, "engine.replicas=1", "engine.cpus=0.5", "model.tp=2"]
    outcome = run(*settings, "name=ranks", *replicas)
    assert outcome.code == 0, outcome.err
    one, two = ([rows for _, rows in sorted(cells_of(Path("runs", name)).items())] for name in ("local", "ranks"))
    assert sorted(map(str, one)) == sorted(map(str, two)) and len(two) == 2
    outcome = run("+task.count=6", "+task.deadly=q3", "+task.fault=TooLarge", "name=large", *replicas)
    assert outcome.code == 3 and "q3/0" in outcome.err, outcome.err


def test_ranks_of_a_replica_take_a_gpu_each(run: Run) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    outcome = run("name=a", "engine=ray", "model.tp=2", "model.device=cuda", "engine.gpus=0.5")
    assert outcome.code == 2 and "engine.gpus=0.5 with model.tp=2: each rank takes one GPU" in outcome.err
