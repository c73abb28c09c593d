"""What every request passes: the key, the name that the server is called by, and the origin of a page."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from dllm.parts import (
    CHAT_WORDS,
    LOOK_SECONDS,
    ApiError,
    Keys,
    Refusal,
    Set,
    UserError,
    as_refusal,
    keys_in_file,
    verbatim,
)
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
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8000", 421),
        ("", 421),
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("[::1]:8000", 200),
        ("127.0.0.1:9", 200),
        ("localhost:evil", 421),
    ):
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


PLAIN = {"content-type": "text/plain"}  # which a page may send without a question of its browser


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 200), ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403), ({"origin": ""}, 403),
    ({"origin": "http://evil.example", "content-type": "application/json"}, 403),
    ({"origin": "http://127.0.0.1.evil.example"}, 403), ({"origin": "http://localhost.evil.example:80"}, 403),
    ({"origin": "http://evil.example", "sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403), ({"sec-fetch-site": "none"}, 200),
    ({"host": "evil.example"}, 421), ({"origin": "http://evil.example", "host": "evil.example"}, 421),  # by DNS
    ({"origin": "http://127.0.0.1:8000"}, 200), ({"origin": "http://localhost:3000"}, 200),
    ({"origin": "http://[::1]:80"}, 200), ({"origin": "vscode-webview://x1"}, 200), ({"origin": "app://a.b"}, 200),
    ({"origin": "https://dllm.example", "sec-fetch-site": "same-origin"}, 200),  # behind a proxy that sets Host
], ids=str)  # fmt: skip
def test_pages_of_other_sites_reach_no_route_that_takes_any_type(
    place: Place, headers: dict[str, str], status: int
) -> None:
    reply = place.call("POST", "/api/show", content="{}", headers={**PLAIN, **headers})
    assert reply.status_code == status, reply.text
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_a_page_that_is_let_in_by_name_may_use_ollamas_routes(placed: Callable[..., Place]) -> None:
    open_ = placed(cors=("https://a.example",))
    for origin, status in (("https://a.example", 200), ("https://b.example", 403)):
        reply = open_.call("POST", "/api/show", content="{}", headers={**PLAIN, "origin": origin})
        assert reply.status_code == status


def test_pages_of_other_origins_are_let_in_by_name_only(placed: Callable[..., Place], place: Place) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    closed = place.call("GET", "/v1/models", headers=asked)
    assert not [name for name in closed.headers if name.startswith("access-control")]
    assert place.call("OPTIONS", CHAT, headers=asked).status_code == 405
    open_ = placed(cors=("https://a.example",), api_key=KEY)
    assert open_.call("OPTIONS", CHAT, headers=asked).headers["access-control-allow-origin"] == "https://a.example"
    other = open_.call("OPTIONS", CHAT, headers={**asked, "origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers


OLD, NEW = "key-of-yesterday", "key-of-tomorrow"


def status(place: Place, key: str) -> int:
    return place.call("GET", "/v1/models", headers={"authorization": f"Bearer {key}"}).status_code


def test_keys_are_rotated_without_a_restart(
    placed: Callable[..., Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dllm.serve.http.api_keys.LOOK_SECONDS", 0.0)
    file = tmp_path / "keys"
    file.write_text(f"# the two of this month\n{OLD}\n\n  {NEW}  \n")
    place = placed(api_key_file=str(file))
    assert [status(place, key) for key in (OLD, NEW, "# the two", "", f"{OLD}\n{NEW}")] == [200, 200, 401, 401, 401]
    file.write_text(NEW)
    assert [status(place, key) for key in (OLD, NEW)] == [401, 200]
    with caplog.at_level(logging.WARNING):
        for broken in (file.unlink, lambda: file.write_text("short"), lambda: file.write_text("")):
            broken()
            assert [status(place, key) for key in (OLD, NEW, "")] == [401, 200, 401]
            assert status(place, NEW) == 200
    told = [record.getMessage() for record in caplog.records if "still hold" in record.getMessage()]
    assert len(told) == 2 and "cannot be read (No such file" in told[0] and "at least 8" in told[1], "each once"
    assert "key-of" not in caplog.text
    file.write_text(OLD)
    assert [status(place, key) for key in (OLD, NEW)] == [200, 401]


def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD)
    keys = Keys(None, str(file))
    file.write_text(NEW)
    assert keys.opens(OLD) and LOOK_SECONDS == 1.0
    keys.looked -= LOOK_SECONDS
    assert keys.opens(NEW) and not keys.opens(OLD)
    assert not Keys().opens("") and Keys("a-key-given").opens("a-key-given")


@pytest.mark.parametrize("text", ["", "# none\n", "tooshort7"[:7], "with a space in it\n", "good-enough\nbad\n"])
def test_a_file_without_sound_keys_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(UserError, match=r"task\.api_key_file='.*keys' must hold a key of at least 8"):
        keys_in_file(str(file))


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o400, False), (0o644, True), (0o620, True)])
def test_a_key_file_that_others_may_read_gets_a_warning(
    mode: int, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text("a-key-of-many-letters\n")
    file.chmod(mode)
    Keys(file=str(file))
    assert ("chmod 600" in capsys.readouterr().err) == warns


@pytest.mark.parametrize(("refusal", "told", "param"), [
    (Refusal("{gen_length} must be a multiple of {blocks.block_length}.", [40, 32]),
     "max_tokens=40 must be a multiple of diffusion.blocks.block_length=32.", "max_tokens"),
    (Refusal("{cache} reads {sampling.top_p}.", ["dkv_greedy", 0.5], [Set("cache", "dual")]),
     "diffusion.cache=dkv_greedy reads top_p=0.5. Use diffusion.cache=dual.", "diffusion.cache"),
    (Refusal("put credit inside: {sampler=prophet} {sampler/inner=credit}."),
     "put credit inside: diffusion.sampler=prophet diffusion.sampler.inner=credit.", "diffusion.sampler"),
    (Refusal("{infill} has nothing to fill in.", [["a"]]), "diffusion.canvas=['a'] has nothing to fill in.",
     "diffusion.canvas"),
    (Refusal("{constraint}: its text is long. Raise {gen_length:name} to 5.", ["regex"]),
     "response_format of type regex: its text is long. Raise max_tokens to 5.", "response_format"),
    (Refusal("{constraint.schema:name} at #/a: lower {constraint.depth:name}."),
     "response_format.json_schema.schema at #/a: lower diffusion.constraint.depth.", "response_format"),
    (Refusal("{task.max_rows} is the server's. The sampler is slow; infilling, too.", [8]),
     "task.max_rows=8 is the server's. The sampler is slow; infilling, too.", None),
    (Refusal(f"{{stop:quoted}} is a value, and so is {verbatim('{cache=dual}')}.", ["gen_length=4"]),
     "stop='gen_length=4' is a value, and so is {cache=dual}.", "stop"),
    (UserError("a sentence names cache=dual, and is nobody's setting."),
     "a sentence names cache=dual, and is nobody's setting.", None),
])  # fmt: skip
def test_settings_are_called_as_requests_call_them(refusal: UserError, told: str, param: str | None) -> None:
    with pytest.raises(ApiError) as found, as_refusal():
        raise refusal
    assert (found.value.message, found.value.param) == (told, param)


@pytest.mark.parametrize(
    ("setting", "field"), [("sampler.threshold", "diffusion.threshold"), ("gen_length", "max_completion_tokens")]
)
def test_a_field_with_several_names_is_called_as_it_was_sent(setting: str, field: str) -> None:
    names = {"diffusion.sampler.threshold": "diffusion.threshold", "max_tokens": "max_completion_tokens"}
    with pytest.raises(ApiError) as refused, as_refusal(words=CHAT_WORDS.but(names)):
        raise Refusal(f"{{{setting}}} must be 1.", [2])
    assert (refused.value.message, refused.value.param) == (f"{field}=2 must be 1.", field)
