"""Grammar as LanguageTool judges it: a server of yours, one started from its folder, or one that is downloaded.

The verdict is 1 when LanguageTool finds nothing in the text (en-US), else 0. Other versions find other things, so the
version belongs to every score. That is why requests are made here: language_tool_python's answers lack the version, and
do not tell a text that is too long from a server that fails.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import time
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from dllm.common.errors import UserError, first_line
from dllm.common.installing import not_installed

REPLY_SECONDS = 30  # for one text; a server that has just started needs some 5 for its first
TOO_LONG = 413
TRIES, PAUSE = 3, 0.5  # requests, and seconds after the first that failed


class GrammarChecker:
    """``setting``: the URL of a server, a LanguageTool folder (or its languagetool-server.jar), or ``download``.

    Raises UserError when nothing is there.
    """

    def __init__(self, setting: str) -> None:
        self.setting = setting
        if setting.startswith(("http://", "https://")):
            self.version  # noqa: B018 - asked now, so that a server that is down is refused before the run
        elif setting == "download":
            check_library(setting)
        else:
            language_tool_folder(Path(setting))

    @cached_property
    def url(self) -> str:
        """Where the server answers; starts it if need be."""
        if self.setting == "download":
            return start_server(None)
        if self.setting.startswith(("http://", "https://")):
            return self.setting.rstrip("/").removesuffix("/check").removesuffix("/v2")
        return start_server(language_tool_folder(Path(self.setting)))

    @cached_property
    def version(self) -> str:
        software = self._ask("All is well.").get("software", {})
        return f"{software.get('name', 'LanguageTool')} {software.get('version', 'unknown')}"

    def __call__(self, text: str) -> float | None:
        """1 or 0; None for a text that is longer than the server takes."""
        text = text.strip()
        if not text:
            return 0.0
        reply = self._ask(text)
        return None if reply.get("too long") else float(not reply["matches"])

    def _ask(self, text: str) -> dict[str, Any]:
        """The server's answer. Tries again, as a busy server may miss a request."""
        body = urlencode({"language": "en-US", "text": text}, errors="replace").encode()
        for more in reversed(range(TRIES)):
            try:
                with urlopen(Request(f"{self.url}/v2/check", body), timeout=REPLY_SECONDS) as reply:
                    return self._read(reply.read())
            except HTTPError as error:
                if error.code == TOO_LONG:
                    return {"too long": True}
                trouble = f"answered {error.code} {error.reason}."
            except OSError as error:
                reason = error.reason if isinstance(error, URLError) else error
                trouble = f"does not answer: {reason}."
            if more:
                time.sleep(PAUSE * (TRIES - more))
        raise UserError(
            f"task.grammar={self.setting!r} {trouble} Start a LanguageTool server there and run the same command again "
            "(finished samples are kept), or set task.grammar=null to leave the scores that need it out."
        )

    def _read(self, reply: bytes) -> dict[str, Any]:
        try:
            content = json.loads(reply)
            assert isinstance(content["matches"], list)
        except (ValueError, KeyError, TypeError, AssertionError):
            raise UserError(f"task.grammar={self.setting!r} is not a LanguageTool server: {reply[:60]!r}.") from None
        return content


JAR = "languagetool-server.jar"
# As the benchmark sets them: fewer suggestions, faster.
CHECKER_SETTINGS = {"maxCheckThreads": 1, "maxSpellingSuggestions": 1}


def language_tool_folder(place: Path) -> Path:
    """The folder of an unpacked LanguageTool; ``place`` is it or its jar. Raises UserError without it or Java."""
    place = place.expanduser()
    folder = place.parent if place.name == JAR else place
    if not (folder / JAR).is_file():
        raise UserError(
            f"task.grammar={str(place)!r} is not a URL and holds no {JAR}: give the folder of an unpacked LanguageTool "
            "or a server's URL such as http://localhost:8081, or download."
        )
    if shutil.which("java") is None:
        raise UserError(f"task.grammar={str(place)!r} needs Java 17 and there is no 'java' here: install it, or a URL.")
    check_library(str(place))
    return folder.resolve()


def check_library(setting: str) -> None:
    """Raises UserError when the library that starts servers is not installed."""
    if find_spec("language_tool_python") is None:
        raise not_installed(f"task.grammar={setting!r}", "language-tool-python", "text", "give a server's URL")


@cache
def start_server(folder: Path | None) -> str:
    """URL of a server that ends with this process. folder: as of ``unpacked``; None: a download (some 250 MB, once).

    Raises UserError when there is no server in the end.
    """
    before = os.environ.get("LTP_PATH")
    if folder is not None:
        os.environ["LTP_PATH"] = str(_shelf(folder))
    try:
        tool = _tool()
    except Exception as error:  # requests, zip, path and Java errors of four libraries: all mean that it is missing
        raise UserError(
            f"task.grammar={str(folder or 'download')!r} starts no LanguageTool server ({first_line(error)}). Give the "
            "folder of another one, or a server's URL."
        ) from None
    finally:
        os.environ.pop("LTP_PATH", None)
        if before is not None:
            os.environ["LTP_PATH"] = before
    atexit.register(tool.close)
    return str(tool.url).rstrip("/").removesuffix("/v2")


def _tool() -> Any:
    """The library's object with its server running."""
    from language_tool_python import LanguageTool

    class OneTry(LanguageTool):  # type: ignore[misc]
        """The library tries 918 ports one after the other, also when it is not the port that fails."""

        def _start_server_on_free_port(self) -> None:
            self._start_local_server()

    return OneTry("en-US", config=CHECKER_SETTINGS)


def _shelf(folder: Path) -> Path:
    """A folder in which the library finds ``folder`` as the version that it would download. Gone with this process."""
    from language_tool_python.download_lt import LTP_DOWNLOAD_VERSION

    shelf = Path(tempfile.mkdtemp(prefix="dllm-languagetool-"))
    atexit.register(shutil.rmtree, shelf, ignore_errors=True)
    (shelf / f"LanguageTool-{LTP_DOWNLOAD_VERSION}").symlink_to(folder, target_is_directory=True)
    return shelf
