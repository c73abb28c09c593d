"""What every request passes: the key, the name that the server is called by, and the origin of a page."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from tests.serve.conftest import CHAT, Place, error_of

KEY = "a-key-of-the-tests"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/models", "/v1/parts", "/metrics", "/", "/nothing"])
def test_every_route_but_health_wants_the_key(placed: Callable[..., Place], path: str) -> None:
    locked = placed(api_key=KEY)
    method = "POST" if "completions" in path else "GET"
    for value in ("", "Bearer", "Bearer x", f"Bearer {KEY}x", f"Basic {KEY}", "Basic eDp5", "Bearer \xe9"):
        headers = {"authorization": value.encode("latin-1")} if value else {}
        reply = locked.call(method, path, headers=headers)  # type: ignore[arg-type]
        assert reply.status_code == 401 and "Authorization: Bearer KEY" in error_of(reply)["message"]
        assert ("www-authenticate" in reply.headers) == (path == "/")
    basic = base64.b64encode(f"anyone:{KEY}".encode()).decode()
    for value in (f"Bearer {KEY}", f"bearer {KEY}", f"Basic {basic}"):
        assert locked.call(method, path, headers={"authorization": value}).status_code != 401
    assert locked.call("GET", "/health").status_code == 200


def test_a_page_elsewhere_cannot_call_the_server_by_its_own_name(placed: Callable[..., Place], place: Place) -> None:
    for host, status in (
        ("evil.example", 421), ("127.0.0.1.evil.example:8000", 421), ("", 421), ("localhost", 200),
        ("LOCALHOST:8000", 200), ("[::1]:8000", 200), ("127.0.0.1:9", 200), ("localhost:evil", 421),
    ):  # fmt: skip
        assert place.call("GET", "/v1/models", headers={"host": host}).status_code == status, host
    named = placed(hosts=("dllm.example",))
    assert named.call("GET", "/v1/models", headers={"host": "dllm.example"}).status_code == 200
    key = {"authorization": f"Bearer {KEY}"}
    everywhere = placed(host="0.0.0.0", api_key=KEY)
    assert everywhere.call("GET", "/v1/models", headers={"host": "any.example", **key}).status_code == 200
    named = placed(host="0.0.0.0", api_key=KEY, hosts=("dllm.example",))
    for host, status in (("dllm.example", 200), ("192.0.2.1:8050", 200), ("[2001:db8::1]", 200), ("a.example", 421)):
        assert named.call("GET", "/v1/models", headers={"host": host, **key}).status_code == status, host
        assert named.call("GET", "/health", headers={"host": host}).status_code == 200, "probes ask by an address"
    starred = placed(api_key=KEY, hosts=("*",))
    assert starred.call("GET", "/v1/models", headers={"host": "a.example", **key}).status_code == 200
    assert place.call("GET", "/v1/models", headers={"host": "192.0.2.1"}).status_code == 421, "without a key"


def test_pages_of_other_origins_are_let_in_by_name_only(placed: Callable[..., Place], place: Place) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    closed = place.call("GET", "/v1/models", headers=asked)
    assert not [name for name in closed.headers if name.startswith("access-control")]
    assert place.call("OPTIONS", CHAT, headers=asked).status_code == 405
    open_ = placed(cors=("https://a.example",), api_key=KEY)
    assert open_.call("OPTIONS", CHAT, headers=asked).headers["access-control-allow-origin"] == "https://a.example"
    other = open_.call("OPTIONS", CHAT, headers={**asked, "origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers
