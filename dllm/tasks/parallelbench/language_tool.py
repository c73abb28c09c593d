"""LanguageTool servers of our own: from a folder with its jar, or downloaded through language_tool_python."""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

from dllm.errors import UserError
from dllm.tasks.parallelbench.text_metrics import INSTALL, first_line

JAR = "languagetool-server.jar"
SETTINGS = {"maxCheckThreads": 1, "maxSpellingSuggestions": 1}  # as the benchmark sets them: fewer suggestions, faster
START_SECONDS = 90


def jar_in(place: Path) -> Path:
    """The server's jar: ``place`` itself or inside that folder. Raises UserError without it, or without Java."""
    place = place.expanduser()
    jar = place / JAR if place.is_dir() else place
    if jar.name != JAR or not jar.is_file():
        raise UserError(
            f"task.grammar={str(place)!r} is no URL and holds no {JAR}: give the folder of an unpacked LanguageTool, a "
            "server's URL such as http://localhost:8081, or download."
        )
    if shutil.which("java") is None:
        raise UserError(f"task.grammar={str(place)!r} needs Java 17 and there is no 'java' here: install it, or a URL.")
    return jar


@cache
def started(jar: Path) -> str:
    """URL of a server started from its jar; it ends with this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="dllm-languagetool-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in SETTINGS.items()))
    command = ["java", "-cp", str(jar), "org.languagetool.server.HTTPServer", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--config", str(folder / "server.properties")], stdout=log, stderr=subprocess.STDOUT
        )
    atexit.register(server.kill)
    url = f"http://127.0.0.1:{port}"
    limit = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < limit:
        try:
            with urlopen(f"{url}/v2/languages", timeout=5):
                return url
        except OSError:
            time.sleep(0.2)
    server.kill()
    said = (folder / "log").read_text(errors="replace").strip().splitlines() or ["nothing"]
    raise UserError(f"task.grammar={str(jar.parent)!r}: its server did not start. It said last: {said[-1]}")


@cache
def downloaded() -> str:
    """URL of a server that language_tool_python downloads (some 250 MB, once) and starts."""
    if find_spec("language_tool_python") is None:
        raise UserError(f"task.grammar=download needs the library language-tool-python: {INSTALL}.")
    import language_tool_python

    try:
        tool = language_tool_python.LanguageTool("en-US", config=SETTINGS)
    except Exception as error:  # requests, zip, path and Java errors of four libraries: all mean that there is none
        raise UserError(
            f"task.grammar=download could not get LanguageTool: {first_line(error)} Give the folder of an unpacked "
            "one, or a server's URL."
        ) from None
    atexit.register(tool.close)
    return str(tool.url).rstrip("/").removesuffix("/v2")
