"""What ``/metrics`` tells: counts and times of requests, and the scheduler's own figures. Labels have fixed values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector as Exporter

from dllm.common.versions import version_of
from dllm.serve.dialects.wire import ParsedRequest
from dllm.serve.engine.jobs import Stats

ROUTES = {
    "/": "playground",
    "/health": "health",
    "/metrics": "metrics",
    "/v1/models": "models",
    "/v1/parts": "parts",
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/decisions": "decisions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
    "/api/chat": "ollama_chat",
    "/api/generate": "ollama_generate",
    "/openapi.json": "openapi",
    "/docs": "docs",
}
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
# The scheduler's figures (``dllm.serve.engine.jobs.Stats``): as they are now, and as they grew.
NOW = {
    "waiting": "Answers that wait to join.",
    "rows": "Answers that are decoded.",
    "prefix_columns": "Columns whose keys and values later requests may take over.",
    "lanes": "Running batches of different settings.",
    "tokens_in_flight": "Rows times columns of all running batches.",
}
SO_FAR = {
    "turns": "Turns of running batches.",
    "turn_seconds": "Seconds that turns took.",
    "forwards": "Forwards of finished answers.",
    "tokens": "Tokens of finished answers.",
    "query_tokens": "Query rows that the caches of finished answers asked for.",
    "computed_tokens": "Query rows that the network computed for them.",
    "cached_tokens": "Tokens of prompts that earlier requests had computed.",
    "prefix_evicted": "Pages of prompts that made room for others.",
    "reads": "Finished reads of decisions.",
    "read_forwards": "Forwards of such reads.",
    "read_seconds": "Seconds that these forwards took.",
}
# Where a figure's name says too little.
_METRIC_NAMES = {
    "query_tokens": "query_rows_wanted",
    "computed_tokens": "query_rows_computed",
    "cached_tokens": "prompt_tokens_cached",
    "prefix_evicted": "prefix_pages_evicted",
}
ENDS = ("done", "aborted", "timeout", "forwards", "memory", "closing", "error")
BUILD = ("version", "model")
STATES = ("ready", "closing", "failed", "closed")


class Metrics(Exporter):
    """One registry for each server, so that several can live in a process. The scheduler's own figures are read when a
    page is asked for."""

    everywhere: Callable[[bytes], bytes] = bytes  # from this server's page to that of all that share its address

    def __init__(self, figures: Callable[[], Stats], state: Callable[[], str], model: str = "", ranks: int = 1) -> None:
        self.figures, self.state, self.registry = figures, state, CollectorRegistry()
        self.registry.register(self)
        options: dict[str, Any] = {"registry": self.registry}
        build = Gauge("dllm_build_info", "1; the labels say what is served, and by which version.", BUILD, **options)
        build.labels(version_of("dllm") or "checkout", model).set(1)
        Gauge("dllm_ranks", "Processes that hold the model together.", **options).set(ranks)
        labels = ("route", "status")
        self.requests = Counter("dllm_http_requests", "Replies by route and status.", labels, **options)
        self.seconds = Histogram(
            "dllm_request_seconds", "From a request's arrival to its last byte.", ("route",), buckets=SECONDS, **options
        )
        self.first = Histogram(
            "dllm_first_text_seconds", "Until the first final text of a request.", buckets=SECONDS, **options
        )
        self.prompt_tokens = Counter("dllm_prompt_tokens", "Tokens of the prompts of finished requests.", **options)
        self.cut = Counter("dllm_requests_cut", "Requests that ended before their answer.", ("reason",), **options)

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def count_reply(self, path: str, status: int, seconds: float) -> None:
        """Count a reply."""
        route = "models" if path.startswith("/v1/models/") else ROUTES.get(path, "other")
        self.requests.labels(route, str(status)).inc()
        if route in ("chat", "completions", "decisions"):
            self.seconds.labels(route).observe(seconds)

    def count_answer(self, request: ParsedRequest, first_text: float | None) -> None:
        """Count a finished request."""
        self.prompt_tokens.inc(request.prompt_tokens)
        if first_text is not None:
            self.first.observe(first_text)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The families of the scheduler's figures."""
        stats = self.figures()
        for name, words in NOW.items():
            yield GaugeMetricFamily(f"dllm_{name}", words, value=getattr(stats, name))
        for name, words in SO_FAR.items():
            yield CounterMetricFamily(f"dllm_{_METRIC_NAMES.get(name, name)}", words, value=getattr(stats, name))
        answers = CounterMetricFamily("dllm_answers", "Answers by how they ended.", labels=["end"])
        for end in ENDS:
            answers.add_metric([end], stats.endings[end])
        yield answers
        states = GaugeMetricFamily("dllm_state", "1 for the state that the server is in.", labels=["state"])
        now = self.state()
        for state in STATES:
            states.add_metric([state], float(state == now))
        yield states


def sum_of_pages(pages: Iterable[bytes], kinds: tuple[str, ...] = ("counter", "histogram", "gauge")) -> bytes:
    """One page of several servers. Counters, histograms and gauges add up, so ``dllm_state`` counts servers;
    ``dllm_build_info`` stays 1, and times at which counters began are left out. kinds: of the families that stay."""
    families: dict[str, dict[str, float]] = {}  # values by a family's first line, and by what is before the value
    types: dict[str, str] = {}  # the second line
    for line in chain.from_iterable(page.decode().splitlines() for page in pages):
        if line.startswith("# HELP"):
            first = line
        elif line.startswith("# TYPE"):
            types[first] = line
        else:
            head, _, value = line.rpartition(" ")
            values = families.setdefault(first, {})
            values[head] = 1.0 if head.startswith("dllm_build_info") else values.get(head, 0.0) + float(value)
    stay = [first for first in families if types[first].endswith(kinds) and not first.split()[2].endswith("_created")]
    lines = ((first, types[first], *(f"{head} {value}" for head, value in families[first].items())) for first in stay)
    return "".join(f"{line}\n" for line in chain.from_iterable(lines)).encode()


def counters_of(page: bytes) -> bytes:
    """What stays of a server that is gone: what it has counted, and nothing of its last state."""
    return sum_of_pages([page], ("counter", "histogram"))
