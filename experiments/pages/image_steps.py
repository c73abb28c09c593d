"""Run the steps of the Dockerfile without Docker: ``make image-steps``, or ``python -m experiments.pages.image_steps``.

An empty folder gets the files that COPY names and a virtual environment for what RUN installs. The entry point is
started there, asked for its health and an answer, and told to stop. What needs root (a user, a port below) is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
KEY, ASK = "key-of-the-image-steps", 'Copy the list:\n["Kai", "Emma", "Hugo"]'


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Instruction and argument of every step of a Dockerfile."""
    joined = re.sub(r"\\\n\s*", "", text)
    for line in joined.splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def copied(argument: str, folder: Path) -> None:
    """Obey COPY: several files into a folder, or one folder to a new name."""
    *sources, target = shlex.split(argument)
    for source in sources:
        place = folder / target if len(sources) == 1 else folder / target / source
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, place)


def installed(folder: Path, index: str | None) -> tuple[list[str], str]:
    """Do all steps; returns the entry point and the command of the health check."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    given, entry, health = {}, [], ""
    for word, argument in steps((ROOT / "Dockerfile").read_text()):
        if word == "ARG":
            name, _, value = argument.partition("=")
            given[name] = index or value
        elif word == "COPY":
            copied(argument, folder)
        elif word == "RUN" and argument.startswith("pip "):
            for name, value in given.items():
                argument = argument.replace(f"${{{name}}}", value)
            print("RUN", argument, flush=True)
            subprocess.run([folder / "venv/bin/pip", *shlex.split(argument)[1:]], cwd=folder, check=True)
        elif word == "ENTRYPOINT":
            entry = json.loads(argument)
        elif word == "HEALTHCHECK":
            health = json.loads(argument.partition("CMD ")[2])[2]
    return entry, health


def served(folder: Path, entry: list[str], health: str) -> None:
    """Start the entry point on a free port, and ask it. Raises where it does not answer, or does not stop."""
    place = {"PATH": f"{folder}/venv/bin:{os.environ['PATH']}", "HOME": str(folder), "DLLM_API_KEY": KEY}
    command = [f"{folder}/venv/bin/{entry[0]}", *entry[1:], "task.port=0"]
    with subprocess.Popen(command, cwd=folder, env=place, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        print(said, end="", flush=True)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
        assert found, "the server did not start"
        check = health.replace(":8000", f":{found[1]}")
        subprocess.run([folder / "venv/bin/python", "-c", check], env=place, check=True)
        body = json.dumps({"messages": [{"role": "user", "content": ASK}]}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        asked = urllib.request.Request(f"{found[0]}/v1/chat/completions", body, headers)
        print(json.loads(urllib.request.urlopen(asked, timeout=120).read())["choices"][0]["message"]["content"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, f"exit code {process.returncode}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-index", help="URL of an index of PyTorch's builds, in place of the Dockerfile's")
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        entry, health = installed(Path(folder), given.torch_index)
        served(Path(folder), entry, health)
    print("The image's steps work.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
