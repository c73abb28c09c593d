"""TDAR's two requests: a coarse text up to a marker, then a fine one from a prompt that holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from accidents import stand_in
from replay_parts import Case, CaseParts
from torch import Tensor

from dllm.parts import BACD, Canvas, Confidence, EndOfText, EosTraits, Fixed, Sampler, Step, View, one_of

METHODS = {"tccf_requests"}
EOS = 61
Decode = Callable[[Case, Sequence[int], int, CaseParts], Any]  # of a case's model: prompt, length and parts to a Record


@stand_in
class StopAtBlock(EndOfText):
    """A full block that holds one of ``stops`` ends the row; what follows it is not decided."""

    traits = EosTraits(at_once=True, shrinks=True, fills=True)

    def __init__(self, *stops: int) -> None:
        self.stops = stops

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        full = ~(candidates.undecided & view.blocks.in_block).any(1)
        held = one_of(candidates.tokens, self.stops) & candidates.committed & view.blocks.in_block
        return candidates.stop_at(view.blocks.end, full & held.any(1), attended=True)


def rule(params: Case) -> Sampler:
    if "upper" in params:
        return BACD(params["lower"], params["upper"])
    return Confidence(params["threshold"])


def upto(tokens: Sequence[int], stops: Sequence[int], length: int) -> tuple[list[int], int | None]:
    """The tokens before the first stop, and the stop. lmdeploy looks for none in a block that reaches the length: there
    the last token alone may be one."""
    first = 0 if len(tokens) < length else length - 1
    at = next((at for at, token in enumerate(tokens) if at >= first and token in stops), None)
    return (list(tokens), None) if at is None else (list(tokens[:at]), tokens[at])


def replayed(case: Case, decode: Decode) -> Case:
    """What this project's parts make of the two requests, in the file's fields."""
    params, prompt = case["params"], case["prompt"]
    records, found = [], []
    sizes = (
        (params["think_block_size"], params["max_token"], (params["marker"], EOS)),
        (params["final_block_size"], params["final_tokens"], (EOS,)),
    )
    for size, length, stops in sizes:
        record = decode(case, prompt, length, CaseParts(rule(params), Fixed(size), eos=StopAtBlock(*stops)))
        decided = record.nfe and max(end for _, _, end in record.blocks)
        records.append(record)
        found.append(upto(record.tokens[len(prompt) : decided], stops, length))
        prompt = [*prompt, *found[-1][0], *(params["insert"] if len(records) == 1 else ())]
    coarse, fine = records
    return {
        "stage1": found[0][0],
        "stop1": found[0][1],
        "stop2": found[1][1],
        "tokens": prompt,
        "prompt2": [*case["prompt"], *found[0][0], *params["insert"]],
        "committed": coarse.committed,
        "committed2": fine.committed,
        "forwards": [coarse.nfe, fine.nfe],
        "nfe": coarse.nfe + fine.nfe,
    }


def outcomes(data: Case, decode: Decode, sample: bool) -> Iterator[str | None]:
    """What is wrong with every case: None where all is equal."""
    for number, case in enumerate(data["cases"]):
        unknown = case.keys() - {"model", "params", "prompt", *FIELDS}
        if unknown:
            yield f"{', '.join(sorted(unknown))} cannot be compared here"
            continue
        ours = case if sample and number % 2 else replayed(case, decode)
        differ = [name for name in FIELDS if name in case and case[name] != ours[name]]
        yield f"{', '.join(differ)} differ" if differ else None


FIELDS = ("stage1", "stop1", "stop2", "tokens", "prompt2", "committed", "committed2", "forwards", "nfe")
