"""Attention over the first keys of each row gives what a mask gives, and everything that has such a mask says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as varlen
from harness import Combination, build, model, parts_of, requests, results
from model_folders import copy_of, published
from torch import Tensor

from dllm.parts import (
    FULL,
    ROWS_PER_STREAMED,
    AnswerBlocks,
    AttentionKind,
    BlockCausal,
    CausalByRank,
    ContextCausal,
    DenoisedBlock,
    ModelConfig,
    PipelinedBlocks,
    PromptBlock,
    SeededBlocks,
    UserError,
    Visible,
    agrees,
    attend,
    attend_first,
    describe,
    has_varlen,
    inspect_checkpoint,
    read_model_config,
)

CPU = torch.device("cpu")


def plainly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts_q: Tensor,
    starts_k: Tensor,
    most_q: int,
    most_k: int,
    *,
    enable_gqa: bool = False,
    seqused_k: Tensor,
    **rest: Any,
) -> Tensor:
    """What the documentation of PyTorch's ``varlen_attn`` says, row by row. No key outside a row's own is read."""
    assert starts_q.dtype == starts_k.dtype == seqused_k.dtype == torch.int32 and not rest
    assert enable_gqa == (query.shape[1] != key.shape[1])
    out, groups = torch.empty_like(query), query.shape[1] // key.shape[1]
    for row, count in enumerate(seqused_k.tolist()):
        begin, end, first = int(starts_q[row]), int(starts_q[row + 1]), int(starts_k[row])
        assert end - begin <= most_q and count <= most_k and first + count <= len(key)
        keys, values = (one[first : first + count].repeat_interleave(groups, 1) for one in (key, value))
        weights = torch.einsum("qhd,khd->hqk", query[begin:end], keys) / query.shape[2] ** 0.5
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights.softmax(-1), values)
    return out


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each call of the stand-in: how many rows it had."""
    made: list[int] = []

    def counted(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, *rest: Any, **named: Any) -> Tensor:
        made.append(len(starts) - 1)
        return plainly(query, key, value, starts, *rest, **named)

    monkeypatch.setattr(varlen, "varlen_attn", counted)
    yield made
    for name in ("tiny-llada", "tiny-dream", "dream_gqa", "sdar_b4"):
        model(name).use_kernels(False)


@pytest.mark.parametrize("layout", ["buffer", "part of a buffer", "rows of a forward"])
def test_counts_are_what_their_mask_is(layout: str, calls: list[int]) -> None:
    noise = torch.Generator().manual_seed(5)
    query = torch.randn(4, 3, 6, 8, generator=noise)
    shape = (4, 30, 2, 8) if layout == "rows of a forward" else (4, 2, 30, 8)
    stores = [torch.randn(shape, generator=noise) for _ in "kv"]
    if layout == "rows of a forward":
        key, value = (store.transpose(1, 2) for store in stores)
    else:
        key, value = (store[:, :, : 30 if layout == "buffer" else 21] for store in stores)
    count = torch.tensor([21, 10, 1, 18])
    visible = Visible(torch.arange(key.shape[2]) < count[:, None], count)
    expected, some = attend(query, key, value, visible), torch.tensor([3, 0, 2])
    torch.testing.assert_close(attend_first(query, key, value, visible), expected)
    few = attend_first(query[some], key, value, Visible(count=count[some]), some)
    torch.testing.assert_close(few, expected[some])
    assert calls == [4, 3]


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", ["tiny-llada", "dream_gqa"])
@pytest.mark.parametrize("lag", [None, 1])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "dkv", "window", "elastic"])
def test_decodes_are_equal(
    cache: str, lag: int | None, name: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged rows in one call, of which some leave; ``window`` leaves gaps and ``elastic`` reads weights, so they keep
    the mask."""
    monkeypatch.setitem(ROWS_PER_STREAMED, "cpu", 64)  # as on a GPU; rows of one width need no mask
    if lag and not build("cache", cache).traits.bounds_late:
        pytest.skip("exact shapes alone, or no lag")
    parts = parts_of(Combination("confidence", "whole" if cache == "window" else "fixed", cache, "none", name))
    network = model(name)
    expected = [result.tokens for result in results(network, parts, requests(), lag=lag)]
    network.use_kernels(False, varlen=True)
    found = [result.tokens for result in results(network, parts, requests(), lag=lag)]
    assert found == expected
    assert (not calls) == (cache in ("window", "elastic"))


def test_block_causal_models_keep_their_mask(calls: list[int]) -> None:
    parts = parts_of(Combination("confidence", "fixed", "none", "none", "sdar_b4"))
    network = model("sdar_b4")
    expected = [result.tokens for result in results(network, parts, requests())]
    network.use_kernels(False, varlen=True)
    assert [result.tokens for result in results(network, parts, requests())] == expected and not calls


def wrong(*args: Any, **named: Any) -> Tensor:
    return plainly(*args, **named) * 1.1


def lacks(*args: Any, **named: Any) -> Tensor:
    raise RuntimeError("no kernel image is available for execution on the device")


@pytest.mark.parametrize(
    ("stand_in", "works"), [(plainly, True), (wrong, False), (lacks, False)], ids=["right", "wrong", "lacks"]
)
def test_it_is_used_only_where_it_agrees(
    stand_in: Callable[..., Tensor], works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    if stand_in is not lacks:
        assert agrees(CPU, torch.float32) == works
    monkeypatch.setattr("dllm.models.network.attention.agrees", lambda device, dtype: agrees(CPU, torch.float32))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert has_varlen(torch.device("cuda"), torch.bfloat16) == works
    assert not has_varlen(CPU, torch.bfloat16)
    assert not has_varlen(torch.device("cuda"), torch.float32)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not has_varlen(torch.device("cuda"), torch.bfloat16)


LENGTH = 13
Sees = Callable[[int, int, Sequence[bool], int], bool]


def by_rank(query: int, key: int, masked: Sequence[bool], start: int) -> bool:
    """Places in the published input: known tokens first, then masks, both as they stand; attention there is causal."""
    moved = [at for at in range(LENGTH) if not masked[at]] + [at for at in range(LENGTH) if masked[at]]
    return moved.index(key) <= moved.index(query)


def context(query: int, key: int, masked: Sequence[bool], start: int) -> bool:
    """Causal, and the block that holds the first mask sees itself whole; blocks of 4 count from the answer's start."""
    first = next((at for at in range(LENGTH) if masked[at]), None)
    active = [] if first is None else [at for at in range(start, LENGTH) if (at - start) // 4 == (first - start) // 4]
    return key <= query or (query in active and key in active)


def answer(query: int, key: int, masked: Sequence[bool], start: int) -> bool:
    """Blocks are laid from the answer's start to the right, and from there to the left."""
    ends = [start + 4 * block for block in range(-3, 4)]
    return key < next(end for end in ends if end > query)


def prompt_block(query: int, key: int, masked: Sequence[bool], start: int) -> bool:
    ends = [start, *(start + 4 * block for block in range(1, 5))]
    return key < next(end for end in ends if end > query)


@pytest.mark.parametrize(
    ("kind", "sees"),
    [
        (BlockCausal(4), lambda query, key, masked, start: key // 4 <= query // 4),
        (CausalByRank(), by_rank),
        (ContextCausal(4), context),
        (AnswerBlocks(4), answer),
        (PromptBlock(4), prompt_block),
        (PipelinedBlocks(4), prompt_block),
        (SeededBlocks(4), lambda query, key, masked, start: key // 4 <= query // 4),
    ],
    ids=[
        "block-causal",
        "causal-by-rank",
        "context-causal",
        "answer-blocks",
        "prompt-block",
        "pipelined",
        "seeded-blocks",
    ],
)
def test_a_column_sees_what_the_paper_says(kind: AttentionKind, sees: Sees) -> None:
    draw = random.Random(3)
    start = [draw.randrange(1, 6) for _ in range(40)]
    masked = [
        [at >= first and draw.random() < share for at in range(LENGTH)]
        for first, share in zip(start, [0, 0.2, 0.5, 0.8, 1] * 8, strict=True)
    ]
    order = kind.order(torch.tensor(masked), torch.tensor(start))
    assert order is not None
    visible = order.visible(order, None).tolist()
    for row, (holes, first) in enumerate(zip(masked, start, strict=True)):
        expected = [[sees(query, key, holes, first) for key in range(LENGTH)] for query in range(LENGTH)]
        assert visible[row] == expected


def test_full_attention_is_no_order() -> None:
    masked = torch.zeros(1, LENGTH, dtype=torch.bool)
    assert FULL.order(masked, torch.tensor([0])) is None and FULL.predicted(masked, torch.tensor([0])) is None


def test_the_forward_that_opens_a_block_predicts_its_first_column_alone() -> None:
    """Two blocks of 4 behind a prompt of 3; the second opens when the first is full."""
    kind, start = ContextCausal(4), torch.tensor([3] * 4)
    holes = ["...mmmmmmmm", "....mm.mmmm", ".......mmmm", ".........m."]
    masked = torch.tensor([[sign == "m" for sign in row] for row in holes])
    predicted, alone = (
        ["".join(".x"[int(sign)] for sign in row) for row in found(masked, start)]  # type: ignore[union-attr]
        for found in (kind.predicted, kind.alone)
    )
    assert predicted == ["...x.......", "....xxx....", ".......x...", "........xxx"]
    assert alone == ["...x.......", "...........", ".......x...", "..........."]
    assert kind.pieces(masked, start)[0].tolist() == [0] * 3 + [1] * 4 + [2] * 4


def test_seeds_of_blocks_from_column_0_leave_the_prompts_block_alone() -> None:
    """Blocks of 4; the prompt has 3 columns, so the first seed is column 4."""
    kind, start = SeededBlocks(4), torch.tensor([3] * 3)
    masked = torch.tensor([[sign == "m" for sign in row] for row in ["...mmmmmmmm", "....mmmmmmm", ".....mm.mmm"]])
    predicted, alone = (
        ["".join(".x"[int(sign)] for sign in row) for row in found(masked, start)]
        for found in (kind.predicted, kind.alone)
    )
    assert predicted == [".xxx.......", "....x......", ".....xxx..."]
    assert alone == ["...........", "....x......", "..........."]


@pytest.mark.parametrize(
    ("place", "given", "kind", "words"),
    [
        ("a2d", None, FULL, "full attention is taken, as the -mdlm checkpoints have it"),
        ("Qwen3-0.6B-diffusion-bd3lm-v0.1", None, AnswerBlocks(32), "blocks of 32 columns are taken, since the name"),
        ("models--dllm-hub--Qwen3-diffusion-bd3lm-v0.1/snapshots/0a", None, AnswerBlocks(32), "-bd3lm-v0.1 says so"),
        ("bd3lm/mdlm", None, FULL, "since the name mdlm says so"),
        ("bd3lm", 0, FULL, ""),
        ("mdlm", 16, AnswerBlocks(16), ""),
    ],
)
def test_an_a2d_folder_does_not_tell_its_attention(
    place: str, given: int | None, kind: object, words: str, tmp_path: Path
) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    folder = copy_of("a2d_qwen3", tmp_path).rename(tmp_path / place)
    config = read_model_config(folder, given)
    assert config.attention == kind
    report = inspect_checkpoint(folder, 130, given)
    assert report.usable and any("does not say which attention" in note for note in report.notes) == bool(words)
    assert not words or (words in config.unsaid and "attention_block" in config.unsaid)


def config_of(name: str, block: int | None, **changes: object) -> ModelConfig:
    return ModelConfig.from_published(published(name, **changes)).with_attention_block(block)


def test_a_block_that_the_file_leaves_out_is_the_users() -> None:
    assert config_of("sdar_b4", 32, block_size=None).attention == BlockCausal(32)
    assert config_of("sdar_b4", None, block_size=None).unsaid and not config_of("sdar_b4", 32, block_size=None).unsaid
    assert config_of("diffcoder", 8).attention == BlockCausal(8)
    assert config_of("fastdllm_v2", 16, bd_size=None).attention == SeededBlocks(16)
    assert config_of("sdar_b4", 4).attention == BlockCausal(4)
    assert config_of("dream_gqa", 32).attention == config_of("llada_gqa_tied", 32).attention == PipelinedBlocks(32)
    assert config_of("dream_gqa", 0).attention is config_of("dream_gqa", None).attention is FULL


@pytest.mark.parametrize(
    ("name", "block", "words"),
    [
        ("sdar_b4", 8, "attention_block=8, but config.json says block_size=4"),
        ("fastdllm_v2", 4, "attention_block=4, but config.json says bd_size=8"),
        ("dream_gqa", 999, "attention_block=999 must be from 0 to the model's"),
        ("llada_moe", 32, "attention_block=32: the attention of LLaDAMoEModelLM is full, which has no blocks"),
        ("wedlm_bias", 4, "known tokens before masks, which has no blocks"),
        ("a2d_qwen3", -1, "attention_block=-1 must be from 0 to the model's 256 positions"),
        ("a2d_qwen3", 257, "must be from 0 to"),
        ("diffcoder", 0, "must be from 1 to"),
        ("diffcoder", 999, "from 1 to"),
    ],
)
def test_a_block_that_cannot_be_is_refused(name: str, block: int, words: str) -> None:
    with pytest.raises(UserError) as caught:
        config_of(name, block)
    assert words in str(caught.value)


def test_a_mask_that_nothing_names_is_asked_for(tmp_path: Path) -> None:
    """151669 is no id of this vocabulary; iLLaDA's 5 is."""
    with pytest.raises(UserError, match="mask_id=None: neither config.json"):
        describe(copy_of("a2d_qwen3", tmp_path))
    assert describe(copy_of("illada", tmp_path))[3].mask == 5


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"architectures": ["VLMModel"]},
            "a Nemotron-Labs-Diffusion with a tower for images.*NemotronLabsDiffusionModel",
        ),
        ({"architectures": ["NemotronHTwoTowerForCausalLM"]}, "Nemotron-Labs-TwoTower.*Take Nemotron-Labs-Diffusion"),
        ({"architectures": ["MMadaModelLM"]}, "MMaDA, which reads and draws images"),
        ({"architectures": ["Other"], "vision_config": {}}, "towers beside the text model"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "predicts the next token, and a mask means nothing to it"),
        ({"architectures": ["NoSuchModel"]}, "known architectures are"),
    ],
)
def test_other_models_are_refused_by_name(config: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ModelConfig.from_published(published("diffcoder", **config, auto_map=None))


def test_an_older_diffcoder_is_told_by_its_remote_class() -> None:
    older = {"AutoModel": "modeling_seed_diffcoder.SeedDiffcoderForCausalLM"}
    config = ModelConfig.from_published(published("diffcoder", architectures=["LlamaForCausalLM"], auto_map=older))
    assert config.family == "diffcoder" and config.architecture == "StableDiffcoderForCausalLM"


@pytest.mark.parametrize(
    "kind", [BlockCausal(4), CausalByRank(), ContextCausal(4), DenoisedBlock(4)], ids=lambda kind: kind.name
)
def test_masks_of_some_queries_are_parts_of_the_mask(kind: AttentionKind, monkeypatch: pytest.MonkeyPatch) -> None:
    masked, start = torch.arange(LENGTH) >= torch.tensor([[5], [3]]), torch.tensor([5, 3])
    order, keys = kind.order(masked, start), torch.arange(LENGTH) < torch.tensor([[LENGTH], [9]])
    assert order is not None
    window = 3 if order.origin is not None else None
    whole = order.visible_to(order, keys, window)
    monkeypatch.setattr("dllm.models.network.attention.QUERIES_OF_A_MASK", 5)
    parts = order.visible_to(order, keys, window)
    assert parts.mask is None and whole.mask is not None
    query, key, value = torch.randn(3, 2, LENGTH, 4, 8, generator=torch.Generator().manual_seed(1)).double()
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    for some, all_ in ((parts, whole), (parts.in_window(), whole.in_window())) if window else ((parts, whole),):
        torch.testing.assert_close(attend(query, key, value, some), attend(query, key, value, all_))
        tiled = attend(query, key, value, all_, tiled=True)
        torch.testing.assert_close(attend(query, key, value, some, tiled=True), tiled, rtol=0, atol=0)


LONG = [
    ("confidence", "sdar_b4", "none"),
    ("confidence", "tiny-wedlm", "finished"),
    ("wino", "tiny-llada", "dual"),
    ("wino", "tiny-llada", "none"),
    ("wino", "sdar_b4", "none"),
]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("sampler", "name", "cache"), LONG)
def test_long_rows_decode_as_with_whole_masks(
    sampler: str, name: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_of(Combination(sampler, "fixed", cache, "none", name))
    expected = [one.canvas for one in results(model(name), parts, requests())]
    monkeypatch.setattr("dllm.models.network.attention.QUERIES_OF_A_MASK", 7)
    assert [one.canvas for one in results(model(name), parts, requests())] == expected
