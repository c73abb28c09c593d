"""``engine=ray`` where machines go, where there is no room, and where a worker raises what one process would raise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dllm.app.engines.ray_workers import places
from dllm.app.runs.folder import RunFolder
from tests.app.conftest import Run, cells_of, rows_of

RAY = ["engine=ray", "engine.shard=3"]


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
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'dllm[ray]'")
    from ray.cluster_utils import Cluster

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
def test_what_a_worker_raises_is_what_one_process_raises(run: Run) -> None:
    """As ``engine=local``: a mistake of the user in a sentence, a cell that is too large as a failure of that cell, and
    anything else with its traceback. None of them is a lost worker, and none is tried again."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'dllm[ray]'")
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
