"""Keys in a file: several at once, rotated while the server runs, and a file that vanishes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from dllm.errors import UserError
from dllm.serve.api_keys import LOOK_SECONDS, Keys, keys_in_file
from tests.serve.conftest import Place

OLD, NEW = "key-of-yesterday", "key-of-tomorrow"


def status(place: Place, key: str) -> int:
    return place.call("GET", "/v1/models", headers={"authorization": f"Bearer {key}"}).status_code


def test_keys_are_rotated_without_a_restart(
    placed: Callable[..., Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dllm.serve.api_keys.LOOK_SECONDS", 0.0)
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
