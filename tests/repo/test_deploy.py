"""The files of deploy/: each is read by what it is for, where that is installed, and names what the server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from dllm.parts import JobFailure, Metrics, Model, Stats, bound_socket, composed, load
from tests.serve.live import live
from tests.serve.stand_in import OneByOne

DEPLOY = Path(__file__).parents[2] / "deploy"


def read(name: str) -> Any:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_every_metric_that_is_asked_for_is_there() -> None:
    page = Metrics(Stats, lambda: "ready").page().decode()
    there = set(re.findall(r"^# TYPE (dllm_\w+)", page, re.MULTILINE))
    for name in ("alerts.yml", "grafana.json"):
        asked = set(re.findall(r"dllm_[a-z_]+", (DEPLOY / name).read_text()))
        known = {metric for metric in asked if metric in there or re.sub("_(bucket|total)$", "", metric) in there}
        assert asked == known and len(asked) >= 5, name
    board = json.loads((DEPLOY / "grafana.json").read_text())
    shown = {re.sub("_(bucket|total)$", "", name) for name in re.findall(r"dllm_[a-z_]+", json.dumps(board["panels"]))}
    assert {re.sub("_total$", "", name) for name in there if not name.endswith("_created")} <= shown
    for target in (target for one in board["panels"] for target in one["targets"]):
        assert "sum" in target["expr"] or "{{instance}}" in target["legendFormat"], target


def test_settings_of_the_server_exist_and_times_outlast_an_answer() -> None:
    task = composed(["task=serve"]).task
    texts = {file.name: file.read_text() for file in DEPLOY.iterdir()}
    for name in re.findall(r"task\.(\w+)=", "".join(texts.values())):
        assert name in task, name
    longest = task.timeout if task.grace is None else task.grace
    (compose,) = read("docker-compose.yml")
    deployment, service, budget, monitor = read("kubernetes.yaml")
    pod = deployment["spec"]["template"]["spec"]
    assert int(compose["services"]["dllm"]["stop_grace_period"].removesuffix("s")) > longest
    (container,) = pod["containers"]
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > longest + sleep
    assert container["resources"]["limits"]["nvidia.com/gpu"] and "memory" in container["resources"]["requests"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == budget["spec"]["selector"]["matchLabels"] == monitor["spec"]["selector"]["matchLabels"]
    assert int(re.search(r"TimeoutStopSec=(\d+)", texts["dllm.service"])[1]) > longest  # type: ignore[index]
    assert {
        pod["containers"][0][f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")
    } == {"/health"}
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


def test_prometheus_takes_its_files(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        words = ["promtool", "check", kind, *(["--syntax-only"] if kind == "config" else []), name]
        done = subprocess.run(words, cwd=tmp_path / "deploy", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_where_a_replica_dies_and_where_streams_run_out_of_time() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    words = ["promtool", "test", "rules", "alerts_test.yml"]
    done = subprocess.run(words, cwd=DEPLOY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_takes_the_unit() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    words = ["systemd-analyze", "verify", "--man=no", str(DEPLOY / "dllm.service")]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60).stderr
    assert not [line for line in said.splitlines() if "dllm.service" in line and "not executable" not in line], said


@pytest.fixture
def served() -> Model:
    return load("mini-llada")


@contextmanager
def nginx(folder: Path, site: str) -> Iterator[httpx.Client]:
    """nginx with our file, in which ``site`` names the servers. The client begins under /llm/."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    (folder / "site.conf").write_text(site.replace("listen 8080", "listen 127.0.0.1:18080"))
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/log; events {{}}\n"
        f"http {{ access_log off; {temporary} include {folder}/site.conf; }}\n"
    )
    with subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)]) as proxy:
        try:
            with httpx.Client(
                base_url="http://127.0.0.1:18080/llm/", timeout=30, transport=httpx.HTTPTransport(retries=5)
            ) as client:
                yield client
        finally:
            proxy.terminate()


SITE = (DEPLOY / "nginx.conf").read_text()
ASKED = {"messages": [{"role": "user", "content": "w5"}], "max_tokens": 8, "stream": True}


def test_nginx_serves_it_under_a_path(served: Model, tmp_path: Path) -> None:
    site = lambda server: SITE.replace("127.0.0.1:8000", server.url.removeprefix("http://"))  # noqa: E731
    with live(served) as server, nginx(tmp_path, site(server)) as client:
        page = client.get("", headers={"accept": "text/html"})
        assert page.status_code == 200 and 'reach("v1/parts")' in page.text and '"/v1' not in page.text
        reply = client.post("v1/chat/completions", json=ASKED)
        assert reply.text.endswith("data: [DONE]\n\n") and len(reply.headers["x-request-id"]) == 32


def test_nginx_asks_the_other_server_while_one_is_replaced(served: Model, tmp_path: Path) -> None:
    """One after the other refuses connections, is ready again, and turns away what waits: streams, too."""
    with live(served) as other, bound_socket("127.0.0.1", 0) as away:
        down = f"127.0.0.1:{away.getsockname()[1]}"
        site = SITE.replace("127.0.0.1:8000", down).replace("# server 127.0.0.1:8001", f"server {other.url[7:]}")
        with nginx(tmp_path, site) as client:
            replies = [client.post("v1/chat/completions", json=ASKED) for _ in range(4)]
            away.close()
            with live(served, OneByOne(served), port=int(down.rpartition(":")[2])) as turning:
                turning.scheduler.script = lambda job, deliver: deliver(JobFailure("closing", "it stops.", "a"))
                replies += [client.post("v1/chat/completions", json=ASKED) for _ in range(4)]
                assert turning.scheduler.count > 0
                turning.scheduler.script, other.scheduler.state = None, "closing"
                replies += [client.post("v1/chat/completions", json=ASKED) for _ in range(4)]
            assert [(reply.status_code, reply.text[-14:]) for reply in replies] == [(200, "data: [DONE]\n\n")] * 12


ROOT = Path(__file__).parents[2]
# The keys of schema 1.2.0, whose root takes no others.
KEYS = {
    "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
    "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
    "repository-code", "title", "type", "url", "version",
}  # fmt: skip


@pytest.fixture
def citation() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_it_is_a_citation_file(citation: dict[str, Any]) -> None:
    assert citation.keys() <= KEYS and citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert all(isinstance(citation[key], str) and citation[key] for key in ("message", "title", "abstract"))
    assert citation["authors"] and all(
        author.get("name") or author.get("family-names") for author in citation["authors"]
    )
    assert date.fromisoformat(citation["date-released"]) <= date.today()
    assert len(set(citation["keywords"])) == len(citation["keywords"])


def test_version_and_license_are_the_packages(citation: dict[str, Any]) -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (package["version"], package["license"])
