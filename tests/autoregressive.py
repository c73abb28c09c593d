"""Compare greedy decodes of models that predict the next token: ``python tests/autoregressive.py FOLDER ...``.

A folder holds config.json, weights and reference.json, or folders that do. ``reference.json`` has under ``cases`` what
transformers decoded: ``prompt``, ``tokens`` until an end of text, and ``logprobs`` of each token. Every case is
decoded alone and in a batch of all, with the exact cache and with none. A line for each folder: the cases that are
equal, the largest error of a log-probability, and ``ok`` or what differs. Exit code: 0 all equal, 1 some differ, 2
there is nothing to compare.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dllm import Decoder, load
from dllm.common.errors import UserError
from dllm.parts import Order, Result

GATE = 1e-4  # of a log-probability, in float32
REFERENCE = "reference.json"
FIELDS = {"prompt", "tokens", "logprobs"}


def folders_in(folder: Path) -> list[Path]:
    """The folder, or those in it that have a reference, by name."""
    if (folder / REFERENCE).is_file():
        return [folder]
    return sorted(one.parent for one in folder.glob(f"*/{REFERENCE}"))


def decodes(folder: Path, cases: Sequence[Any]) -> Iterator[tuple[str, list[Result]]]:
    """The results of all cases under each setting."""
    model = load(folder)
    length = max(len(case["tokens"]) for case in cases)
    for cache in ("finished", "none"):
        for rows in (1, len(cases)):
            decoder = Decoder(
                model, Order("left_to_right"), "whole", cache, "stop_front", gen_length=length, batch_size=rows
            )
            yield f"cache={cache}, rows={rows}", list(decoder([case["prompt"] for case in cases], trace=True))


def difference(case: Any, result: Result) -> tuple[str, float]:
    """What differs (empty: nothing), and the largest error of a log-probability."""
    found = result.canvas[: len(case["tokens"])]
    for at, (ours, theirs) in enumerate(zip(found, case["tokens"], strict=True)):
        if ours != theirs:
            return f"token {at} is {ours}, not {theirs}", 0.0
    decided = [value for value in result.commit_logprobs if value is not None]
    if result.stop_reason == "eos" and len(decided) != len(case["tokens"]):
        return f"an end of text after {len(decided)} tokens, not {len(case['tokens'])}", 0.0
    worst = max(abs(ours - theirs) for ours, theirs in zip(decided, case["logprobs"], strict=False))
    return ("" if worst <= GATE else f"a log-probability is {worst:.2e} off"), worst


def line(folder: Path) -> tuple[str, bool]:
    """The folder's line, and whether all of it is equal."""
    cases = json.loads((folder / REFERENCE).read_text())["cases"]
    if unknown := {key for case in cases for key in case}.difference(FIELDS):
        return f"{folder.name}: fields that are not compared: {', '.join(sorted(unknown))}", False
    wrong, worst, equal = list[str](), 0.0, set(range(len(cases)))
    try:
        for setting, results in decodes(folder, cases):
            for number, (case, result) in enumerate(zip(cases, results, strict=True)):
                why, error = difference(case, result)
                worst = max(worst, error)
                if why:
                    equal.discard(number)
                    wrong.append(f"case {number} ({setting}): {why}")
    except UserError as error:
        return f"{folder.name}: refused: {error}", False
    told = "ok" if not wrong else "; ".join(wrong[:3])
    return f"{folder.name}: {len(equal)} of {len(cases)} cases equal, largest error {worst:.1e}: {told}", not wrong


def main(arguments: Sequence[str]) -> int:
    found = [one for argument in arguments for one in folders_in(Path(argument))]
    if not found:
        print(f"no {REFERENCE} in {', '.join(arguments) or 'no folder'}")
        return 2
    lines = [line(folder) for folder in found]
    print("\n".join(text for text, _ in lines))
    return 0 if all(equal for _, equal in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
