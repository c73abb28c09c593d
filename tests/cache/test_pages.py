"""Pages of first columns: what is found is what was kept, least recently used pages go first, and no token changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from harness import PROMPTS, Combination, allowed, choices, drawn, model, parts_of, requests
from law import law

from dllm.laws import batch_claims
from dllm.parts import (
    FULL,
    PAGE_COLUMNS,
    AnswerBlocks,
    AttentionKind,
    Beginning,
    BlockCausal,
    CausalByRank,
    ContextCausal,
    DenoisedBlock,
    KnownPrefix,
    PageStore,
    PipelinedBlocks,
    PromptBlock,
    Sampling,
    SeededBlocks,
    Trial,
    decode_sharing,
    identity_of,
)

KINDS = [
    BlockCausal(4),
    AnswerBlocks(4),
    PromptBlock(4),
    PipelinedBlocks(4),
    SeededBlocks(4),
    ContextCausal(4),
    DenoisedBlock(4),
    CausalByRank(),
]
SHARED = (
    "sdar_b4",
    "tiny-wedlm",
    "tiny-nbdiff",
    "tiny-nemotron",
    "tiny-a2d-bd3lm",
    "tiny-fastdllm-v2",
    "efficient_dlm",
)


def cases() -> Iterator[Combination]:
    found = drawn(choices("sampler"), choices("blocks"), ["finished"], choices("eos"), SHARED)
    return filter(allowed, (Combination(*names) for names in found))


@law(cases, daily=2, least=400)
def test_a_known_prompt_changes_nothing(combination: Combination) -> None:
    parts = parts_of(combination)
    batch_claims.a_known_prompt_changes_nothing(
        Trial(model(combination.model), parts, tuple(requests()), Sampling().under(parts.sampler))
    )


def test_a_known_prompt_is_not_computed_again() -> None:
    network, parts = model("sdar_b4"), parts_of(Combination("confidence", "fixed", "finished", model="sdar_b4"))
    pages = PageStore(network.config.attention, b"", 1000)
    decode = partial(decode_sharing, network, parts, requests(), Sampling(), pages)
    assert [decode()[1], decode()[1]] == [0, sum(len(prompt) // 4 * 4 for prompt in PROMPTS)]


def test_rows_of_several_candidates_keep_no_pages() -> None:
    """A rule that drafts has some at the end of a row's first turn, so fewer columns are known than of other rules."""

    def known(sampler: str) -> int:
        parts = parts_of(Combination(sampler, "fixed", "finished", model="sdar_b4"))
        pages = PageStore(model("sdar_b4").config.attention, b"", 1000)
        how = Sampling().under(parts.sampler)
        for _ in range(2):
            _, columns = decode_sharing(model("sdar_b4"), parts, requests(), how, pages)
        return columns

    assert 0 < known("freedave") < known("confidence")


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_nothing_after_a_page_is_seen_by_it(kind: AttentionKind) -> None:
    """By brute force over every row of up to 40 columns: rank and reach say what depends on what."""
    for start, first in product(range(0, 21, 2), range(40)):
        if first < start:  # an infilling has given tokens after its start, a prompt has no masks
            continue
        masked = (torch.arange(44) >= first)[None]
        order = kind.order(masked, torch.tensor([start]))
        pieces = kind.pieces(masked, torch.tensor([start]))[0]
        assert order is not None
        for end in kind.page_ends(start, first):
            if bool((pieces[:end] >= pieces[first]).any()):
                continue  # the plan does not take these columns for final
            assert int(order.reach[0, :end].max()) < int(order.rank[0, end:].min()), (start, first, end)


def test_full_attention_has_no_pages() -> None:
    assert list(FULL.page_ends(5, 100)) == []


def test_pages_of_an_answer_grid_begin_with_the_rest_of_the_prompt() -> None:
    assert list(AnswerBlocks(4).page_ends(6, 15)) == [2, 6, 10, 14]
    assert list(PromptBlock(4).page_ends(6, 15)) == [6, 10, 14]
    assert list(BlockCausal(4).page_ends(6, 15)) == [4, 8, 12]
    assert list(CausalByRank().page_ends(6, 2 * PAGE_COLUMNS + 1)) == [PAGE_COLUMNS, 2 * PAGE_COLUMNS]


def stores(rows: int = 2, columns: int = 40, layers: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    make = torch.Generator().manual_seed(0)
    return [
        (torch.randn(rows, 3, columns, 5, generator=make), torch.randn(rows, 3, columns, 5, generator=make))
        for _ in range(layers)
    ]


def holds(found: KnownPrefix | None, kept: list[tuple[torch.Tensor, torch.Tensor]], row: int, columns: int) -> bool:
    return (
        found is not None
        and found.columns == columns
        and all(
            torch.equal(one.transpose(0, 1), store[row, :, :columns])
            for pair, layer in zip(found.layers, kept, strict=True)
            for one, store in zip(pair, layer, strict=True)
        )
    )


def test_what_is_found_is_what_was_kept() -> None:
    pages, kept, tokens = PageStore(BlockCausal(4), b"", 100), stores(), list(range(30))
    assert pages.find(Beginning(tokens, 30, 30)) is None
    assert pages.add(Beginning(tokens, 30, 30), 1, kept) == 28 and len(pages) == 28
    assert holds(pages.find(Beginning(tokens, 30, 30)), kept, 1, 28)
    assert holds(pages.find(Beginning(tokens, 11, 30)), kept, 1, 8)
    half = [*tokens[:10], 99, *tokens[11:]]  # half of the third page is another text
    assert holds(pages.find(Beginning(half, 30, 30)), kept, 1, 8)
    assert pages.find(Beginning([99, *tokens[1:]], 30, 30)) is None
    assert pages.find(Beginning(tokens, 30, 30, "another tenant")) is None


def test_a_page_is_no_other_one_of_the_same_tokens() -> None:
    """The same four tokens after other pages have other keys."""
    pages, kept = PageStore(BlockCausal(4), b"", 100), stores()
    pages.add(Beginning([1, 2, 3, 4, 5, 6, 7, 8], 8, 8), 0, kept)
    pages.add(Beginning([9, 9, 9, 9, 5, 6, 7, 8], 8, 8), 1, kept)
    assert holds(pages.find(Beginning([1, 2, 3, 4, 5, 6, 7, 8], 8, 8)), kept, 0, 8)
    assert holds(pages.find(Beginning([9, 9, 9, 9, 5, 6, 7, 8], 8, 8)), kept, 1, 8)


@pytest.mark.parametrize("most", [0, 4, 12, 40])
def test_the_least_recently_used_pages_go_first(most: int) -> None:
    """Beside a list that is kept by hand."""
    pages, kept, dice = PageStore(BlockCausal(4), b"", most), stores(columns=16), random.Random(1)
    texts, used = [[dice.randrange(3) for _ in range(12)] for _ in range(9)], list[tuple[int, ...]]()
    for _ in range(200):
        text = dice.choice(texts)
        own = [tuple(text[:end]) for end in (4, 8, 12)]
        known = next((at for at, one in enumerate(own) if one not in used), 3)
        found = pages.find(Beginning(text, 12, 12))
        assert (found.columns if found else 0) == 4 * known
        used = [one for one in used if one not in own[:known]] + own[:known][::-1]
        kept_pages = own[: most // 4]
        gone = [one for one in used if one not in own]
        fresh = [one for one in kept_pages if one not in used]
        room = most // 4 - len(used)
        for _ in range(max(0, len(fresh) - room)):
            used.remove(gone.pop(0))
        assert pages.add(Beginning(text, 12, 12), 0, kept) == 4 * len(kept_pages)
        used = [one for one in used if one not in own] + kept_pages[::-1]
        assert len(pages) == 4 * len(used) <= most


def test_every_choice_of_a_model_is_in_its_identity() -> None:
    from dllm import load

    one = load("tests/data/models/sdar_b4", dtype="float64")
    others = [
        replace(one, quantize="int8"),
        replace(one, quantize_head="int8"),
        replace(one, adapter=one.path),
        replace(one, draft_adapter=one.path),
        replace(one, kernels="invariant"),
        replace(one, path=one.path / "b"),
        replace(one, config=replace(one.config, attention=BlockCausal(8))),
        load("tests/data/models/sdar_b4", dtype="float32"),
    ]
    assert len({identity_of(other) for other in (one, *others)}) == 9
