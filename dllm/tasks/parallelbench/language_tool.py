"""LanguageTool servers that language_tool_python starts: from a folder of yours, or from a download."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dllm.errors import UserError, first_line, not_installed

JAR = "languagetool-server.jar"
# As the benchmark sets them: fewer suggestions, faster.
SERVER_SETTINGS = {"maxCheckThreads": 1, "maxSpellingSuggestions": 1}


def unpacked(place: Path) -> Path:
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
def started(folder: Path | None) -> str:
    """URL of a server that ends with this process. folder: as of ``unpacked``; None: a download (some 250 MB, once).

    Raises UserError when there is no server in the end.
    """
    known = os.environ.get("LTP_PATH")
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
        if known is not None:
            os.environ["LTP_PATH"] = known
    atexit.register(tool.close)
    return str(tool.url).rstrip("/").removesuffix("/v2")


def _tool() -> Any:
    """The library's object with its server running."""
    from language_tool_python import LanguageTool

    class OneTry(LanguageTool):  # type: ignore[misc]
        """The library tries 918 ports one after the other, also when it is not the port that fails."""

        def _start_server_on_free_port(self) -> None:
            self._start_local_server()

    return OneTry("en-US", config=SERVER_SETTINGS)


def _shelf(folder: Path) -> Path:
    """A folder in which the library finds ``folder`` as the version that it would download. Gone with this process."""
    from language_tool_python.download_lt import LTP_DOWNLOAD_VERSION

    shelf = Path(tempfile.mkdtemp(prefix="dllm-languagetool-"))
    atexit.register(shutil.rmtree, shelf, ignore_errors=True)
    (shelf / f"LanguageTool-{LTP_DOWNLOAD_VERSION}").symlink_to(folder, target_is_directory=True)
    return shelf
