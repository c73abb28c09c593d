"""Every sampler x cache x blocks x kind of model: it works, or it is refused before weights are read, with a way out.

``make test`` decodes each allowed sampler x cache pair with one block schedule and model, taken in turn; ``make laws``
all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import cycle

import pytest
from harness import Combination, Decoded, allowed, decode, every, full, parts_of, requests

from dllm import UserError

MODELS = ("tiny-llada", "tiny-dream", "sdar_b4")


def matrix() -> Iterator[Combination]:
    for sampler, cache, blocks in every("sampler", "cache", "blocks"):
        for name in MODELS:
            yield Combination(sampler, blocks, cache, model=name)


ALLOWED = [combination for combination in matrix() if allowed(combination)]


def chosen() -> list[Combination]:
    """One combination of each allowed pair, the blocks and models in turn so that all are met."""
    if full():
        return ALLOWED
    by_pair: dict[tuple[str, str], list[Combination]] = {}
    for combination in ALLOWED:
        by_pair.setdefault((combination.sampler, combination.cache), []).append(combination)
    turn = cycle(range(97))
    return [choices[next(turn) % len(choices)] for choices in by_pair.values()]


@pytest.mark.parametrize("combination", chosen(), ids=str)
def test_an_allowed_combination_decodes_its_rows_alone_and_together(combination: Combination) -> None:
    """Attended rows are written (law 5: the harness switches the assertion on), everything is filled, the prompt stays,
    and a row never depends on its neighbours."""
    together, alone = decode(combination, requests()), [decode(combination, [row])[0] for row in requests()]
    assert [one.canvases for one in together] == [one.canvases for one in alone]
    for one, request in zip(together, requests(), strict=True):
        result = finished(one)
        assert result.prompt_tokens == list(request.tokens[: request.answer_start])
        assert result.trace is not None and result.trace.mask_id not in result.canvas
        assert 0 < result.nfe <= 2 * len(result.canvas)


def finished(one: Decoded):  # type: ignore[no-untyped-def]
    assert one.result is not None
    return one.result


def test_every_refusal_names_something_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    refused, named = 0, re.compile(r"The nearest that works is cache=(\w+)\.")
    for combination in matrix():
        try:
            parts_of(combination)
        except UserError as error:
            refused += 1
            nearest = named.search(str(error))
            if nearest is not None:
                assert allowed(
                    Combination(combination.sampler, combination.blocks, nearest[1], model=combination.model)
                )
            else:  # the sampler or the blocks do not fit the model, whatever the cache
                assert not allowed(Combination(combination.sampler, combination.blocks, model=combination.model))
    with capsys.disabled():
        print(f"\nsampler x cache x blocks x model: {len(ALLOWED)} allowed, {refused} refused, {len(chosen())} decoded")
    assert len(ALLOWED) + refused == len(list(matrix()))
    assert len(ALLOWED) > 1000
