"""Whole decodes of a checkpoint on a CPU, from the command to the answer: ``python -m experiments.bench.whole_decodes
FOLDER``.

Each decode is a process of its own: it starts Python, loads, and decodes one prompt of 64 token ids, a fixed number of
tokens a forward. So weights may be random (``experiments.bench.random_checkpoint`` writes them). ``--llama-diffusion
PROGRAM`` adds llama.cpp's (``cmake --build BUILD --target llama-diffusion-cli``) on a file of LLaDA-8B's shape with
random weights: it computes the whole canvas and all logits in every forward. Prints a Markdown table with the seconds
of the wall's clock and of the CPU; where they differ much, the machine was busy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dllm.common.errors import UserError
from experiments.bench import llama_cpp
from experiments.support import markdown
from experiments.support.scripts import counted, refusing

PROMPT, FIRST, BLOCK = 64, 100, 32  # FIRST: id of the prompt's first token
LLAMA_KIND = "Q4_0"
ROOT = Path(__file__).parents[2]
WEIGHTS = ("bfloat16", "int8", "int4", "int8-rows", "int4-rows")  # rows: ``model.activations=int8``
HEADS = ("weights", "tokens", "a forward", "forwards", "wall s", "CPU s", "tokens per CPU s")


@dataclass(frozen=True)
class Spent:
    """What a process took."""

    wall: float  # seconds of the clock
    cpu: float  # seconds of all its threads


def spent(command: Sequence[str]) -> Spent:
    """Run a command to its end, on one thread. Raises UserError where it fails."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    except OSError as error:
        raise UserError(f"{command[0]} does not run ({error.strerror}). Name a program that was built.") from None
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UserError(f"{' '.join(command[:3])} ended with {done.returncode}: {said}")
    return Spent(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def ours(folder: Path, weights: str, tokens: int, per_step: int) -> tuple[int, Spent]:
    """Forwards and seconds of a decode by ``run.py``."""
    kind, _, rows = weights.partition("-")
    narrow = [] if kind == "bfloat16" else [f"model.quantize={kind}", *(["model.activations=int8"] if rows else [])]
    with tempfile.TemporaryDirectory() as place:
        prompts, runs = Path(place) / "prompts.jsonl", Path(place) / "runs"
        prompts.write_text(json.dumps({"tokens": list(range(FIRST, FIRST + PROMPT))}) + "\n")
        took = spent(
            [
                sys.executable,
                str(ROOT / "run.py"),
                f"model.path={folder}",
                "model.device=cpu",
                "model.dtype=bfloat16",
                f"prompts={prompts}",
                f"output={runs}",
                f"gen_length={tokens}",
                f"blocks.block_length={BLOCK}",
                "cache=dual",
                "eos=none",
                "sampler=static",
                f"sampler.per_step={per_step}",
                *narrow,
            ]
        )
        (results,) = runs.rglob("results.jsonl")
        return int(json.loads(results.read_text().splitlines()[0])["nfe"]), took


def theirs(program: Path, file: Path, tokens: int, per_step: int) -> tuple[int, Spent]:
    """Forwards and seconds of a decode by llama.cpp's program, whose canvas is as long as a physical batch."""
    canvas, forwards = PROMPT + tokens, -(-tokens // per_step)
    took = spent(
        [
            str(program), "-m", str(file), "-p", "a" * PROMPT, "-ngl", "0", "-t", "1", "--temp",
            "0", "-c", str(canvas), "-b", str(canvas), "-ub", str(canvas), "--diffusion-steps", str(forwards),
            "--diffusion-eps", "0.001",
        ],
    )  # fmt: skip
    return forwards, took


def found(options: argparse.Namespace) -> Iterator[list[str]]:
    """The table's lines, each as soon as it is measured."""
    asked = [(tokens, per_step) for tokens in options.tokens for per_step in options.per_step]
    for weights in options.weights:
        for tokens, per_step in asked:
            yield told(weights, tokens, per_step, *ours(options.folder, weights, tokens, per_step))
    if options.llama_diffusion:
        with tempfile.TemporaryDirectory(dir=options.scratch) as place:
            file = Path(place) / "model.gguf"
            llama_cpp.write(file, LLAMA_KIND, options.layers, spelt=True)
            for tokens, per_step in asked:
                took = theirs(options.llama_diffusion, file, tokens, per_step)
                yield told(f"llama.cpp {LLAMA_KIND}", tokens, per_step, *took)


def told(weights: str, tokens: int, per_step: int, forwards: int, took: Spent) -> list[str]:
    seconds = f"{took.wall:.0f}", f"{took.cpu:.0f}", f"{tokens / took.cpu:.2f}"
    return [weights, str(tokens), str(per_step), str(forwards), *seconds]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkpoint with full attention, LLaDA's or Dream's")
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=WEIGHTS)
    parser.add_argument("--tokens", nargs="+", type=counted, default=[64, 256], help="of the answer (64 256)")
    parser.add_argument("--per-step", nargs="+", type=counted, default=[1, 3], help="tokens a forward (1 3)")
    parser.add_argument("--llama-diffusion", type=Path, metavar="PROGRAM", help="llama.cpp's, measured beside")
    parser.add_argument("--layers", type=counted, default=32, help="of llama.cpp's file: as many as the checkpoint has")
    parser.add_argument("--scratch", type=Path, help="where llama.cpp's file may be, 4 to 16 GB")
    options = parser.parse_args(arguments)
    print(f"One thread, load {os.getloadavg()[0]:.1f}\n\n{markdown.head(HEADS)}", flush=True)
    for row in found(options):
        print(markdown.line(row), flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
