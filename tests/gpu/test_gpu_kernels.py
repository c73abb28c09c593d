"""Every kernel that we ship, on the device at the shapes it is built for, against its definition.

Tolerances, relative and absolute: 1e-9 in float64, 1e-5 in float32 (sums in another order), four units in the last
place in float16 and bfloat16, whose definitions round two or three times. The definition runs in float64 on the CPU
where it is cheap enough, so that no fault of the device can hide in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from place import DEVICE, GPU
from torch import Tensor

from dllm.kernels import (
    add_norm,
    attention_scores,
    credit,
    drift_sums,
    grouped_narrow_product,
    grouped_product,
    gumbel_argmax,
    head_statistics,
    narrow_product,
    rope_scatter,
    row_statistics,
    silu_times,
    slot_logits,
)
from dllm.parts import Build, Kernel, agrees, has_varlen
from tests.kernels.builds import BUILDS
from tests.kernels.conftest import poison  # noqa: F401  outputs start as NaN

KINDS = {"*fp64": torch.float64, "*fp32": torch.float32, "*fp16": torch.float16, "*bf16": torch.bfloat16}
BITS = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}
VOCABULARY, ROWS = (126_464, (1, 33, 300)) if GPU else (3_008, (1, 5))
NOISE, DICE = torch.Generator(DEVICE), torch.Generator()


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=NOISE, device=DEVICE).to(dtype)


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.cpu().double(), expected.cpu().double(), rtol=tolerance, atol=tolerance)


def kind_of(build: Build, name: str) -> torch.dtype:
    return KINDS[str(build.types[name])]


def adds_and_norms(build: Build) -> None:
    kind, width = kind_of(build, "x"), build.config.blocks["BLOCK"]
    for rows in ROWS:
        x, gain = noise(rows, width, dtype=kind), noise(width, dtype=kind)
        residual = None if build.types["residual"] is None else noise(rows, width, dtype=kind)
        ours, theirs = (torch.zeros(rows + 5, width, dtype=kind, device=DEVICE) for _ in range(2))
        places = torch.randperm(rows + 5, generator=DICE)[:rows].to(DEVICE)
        kept = [None if build.types["kept"] is None else add_norm.KeepRows(one, places) for one in (ours, theirs)]
        found = add_norm.add_norm(x, residual, gain, 1e-5, kept[0], triton=True)
        for one, other in zip(found, add_norm.reference(x, residual, gain, 1e-5, kept[1]), strict=True):
            close(one, other, BITS[kind])
        close(ours, theirs, BITS[kind])


def gates(build: Build) -> None:
    kind, gelu = kind_of(build, "a"), build.constants["GELU"]
    for rows in ROWS:
        a, b = noise(rows, 2 * 12_288, dtype=kind).chunk(2, -1)
        close(silu_times.silu_times(a, b, gelu, True), silu_times.reference(a, b, gelu), BITS[kind])


def rotates_and_stores(build: Build) -> None:
    kind, size, half = kind_of(build, "query"), build.constants["SIZE"], build.constants["HALF"]
    rows, n, heads, kv_heads, length = (3, 33, 32, 8, 1050) if GPU else (2, 3, 4, 2, 9)
    query, key, value = (noise(rows, n, count, size, dtype=kind) for count in (heads, kv_heads, kv_heads))
    angles = noise(rows, n, 1, half)
    cos, sin = (torch.cat(halves, -1) for halves in ((angles.cos(), angles.cos()), (-angles.sin(), angles.sin())))
    columns = None
    if build.types["columns"] is not None:
        columns = torch.stack([torch.randperm(length, generator=DICE)[:n] for _ in range(rows)]).to(DEVICE)
        columns[0, 0] = length  # padding
    ours, theirs = (
        [torch.full((rows, kv_heads, length, size), -7.0, dtype=kind, device=DEVICE) for _ in "kv"] for _ in "ab"
    )
    wide, norms = not build.constants["ROUND"], None
    if build.types["query_gain"] is not None:
        gains = (1 + noise(size, dtype=kind) / 4 for _ in "qk")
        norms = rope_scatter.HeadNorms(*gains, build.constants["EPS"])
    own, other = (
        None if build.types["queries"] is None else torch.zeros(rows, length, heads, size, dtype=kind, device=DEVICE)
        for _ in "ab"
    )
    found = rope_scatter.rope_scatter(query, key, value, cos, sin, columns, *ours, wide, norms, own, triton=True)
    close(found, rope_scatter.reference(query, key, value, cos, sin, columns, *theirs, wide, norms, other), BITS[kind])
    close(ours[0], theirs[0], BITS[kind])
    if own is not None and other is not None:
        close(own, other, BITS[kind])
    assert torch.equal(ours[1], theirs[1])


def statistics_are(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    clear = expected["gap"].cpu() > 2 * tolerance
    assert torch.equal(found["token"].cpu()[clear], expected["token"].cpu()[clear])
    for name in row_statistics.ROW_STATISTICS:
        close(found[name], expected[name], tolerance)


def summarises_rows(build: Build) -> None:
    kind = kind_of(build, "logits") if "logits" in build.types else torch.float32
    for rows in ROWS:
        z = 4 * noise(rows, VOCABULARY)
        z[0, 7], z[-1, : VOCABULARY // 2] = 60.0, -torch.inf
        z = z.to(kind)
        statistics_are(row_statistics.row_statistics(z, triton=True), row_statistics.reference(z.cpu().double()), 1e-5)


def multiplies_the_head(build: Build) -> None:
    """A bfloat16 logit near 16 moves by 2^-4 where two orders of a sum round apart."""
    rows, width = build.config.blocks["BLOCK_R"], 4096 if GPU else 64
    weight = noise(VOCABULARY, width, dtype=torch.bfloat16) * (4 / width**0.5)
    for count in (rows, rows // 2 + 1):
        hidden = noise(count, width, dtype=torch.bfloat16)
        found = head_statistics.fused_head(hidden, weight, (5, VOCABULARY - 1))
        statistics_are(found, head_statistics.reference(hidden, weight, (5, VOCABULARY - 1)), 0.13)
        assert not torch.isin(found["token"].cpu(), torch.tensor([5, VOCABULARY - 1])).any()


def fuses_credit(build: Build) -> None:
    for rows in ROWS:
        z = 4 * noise(rows, VOCABULARY)
        found = row_statistics.reference(z)
        ids = torch.randint(0, VOCABULARY, (rows, credit.SLOTS), generator=DICE).to(DEVICE)
        ids[:, 3] = found["token"]
        held = (torch.rand(rows, credit.SLOTS, generator=DICE).double() - 0.3).clamp(min=0).to(DEVICE)
        masked = (torch.rand(rows, generator=DICE) > 0.2).to(DEVICE)
        rates = (torch.rand(rows, generator=DICE).double().to(DEVICE) for _ in range(3))
        arguments = (z.gather(1, ids), found["token"], found["first"], found["logsumexp"], ids, held, masked, *rates)
        for one, other in zip(credit.sparse_credit(*arguments, True), credit.reference(*arguments), strict=True):
            close(one, other, 1e-9)


def looks_logits_up(build: Build) -> None:
    kind, width = kind_of(build, "hidden"), 4096 if GPU else 64
    weight = noise(VOCABULARY, width, dtype=kind) / width**0.5
    for rows in ROWS:
        ids = torch.randint(0, VOCABULARY, (rows, credit.SLOTS), generator=DICE).to(DEVICE)
        hidden = noise(rows, width, dtype=kind)
        close(
            slot_logits.slot_logits(hidden, weight, ids, True), slot_logits.reference(hidden, weight, ids), BITS[kind]
        )


def multiplies_groups(build: Build) -> None:
    """Groups of random sizes, some of them empty."""
    groups, width = build.constants["GROUPS"], 2048 if GPU else 64
    rows, kind = groups * build.config.blocks["BLOCK_R"], kind_of(build, "rows")
    x, weight = noise(rows, width, dtype=kind), noise(groups, width, width, dtype=kind) / width**0.5
    ends = torch.randint(0, rows + 1, (groups,), generator=DICE).sort().values
    ends[-1] = rows
    found = grouped_product.grouped_product(x, weight, ends.to(DEVICE), True)
    close(found, grouped_product.reference(x, weight, ends), BITS[kind])


def multiplies_narrow_weights(build: Build) -> None:
    """Weights in eight or four bits, widened tile by tile."""
    rows, width, outputs = build.config.blocks["BLOCK_R"], 4096 if GPU else 256, 12_288 if GPU else 64
    weight = noise(outputs, width, dtype=torch.bfloat16) / width**0.5
    narrow = narrow_product.narrowed(weight, 4 if build.constants["FOUR"] else 8)
    for count in (rows, rows // 2 + 1):
        x = noise(count, width, dtype=torch.bfloat16)
        close(
            narrow_product.narrow_product(x, *narrow, True), narrow_product.reference(x, *narrow), BITS[torch.bfloat16]
        )


def multiplies_narrow_groups(build: Build) -> None:
    """Groups of random sizes, some of them empty. 704 columns, as DiffusionGemma's experts have, end inside a tile."""
    most, bits = build.constants["GROUPS"], 4 if build.constants["FOUR"] else 8
    groups, outputs, width = (most, 2816, 704) if GPU else (most // 2 + 1, 8, 96)
    rows = groups * (build.config.blocks["BLOCK_R"] // 2 + 1)
    pairs = (
        narrow_product.narrowed(noise(outputs, width, dtype=torch.bfloat16) / width**0.5, bits) for _ in range(groups)
    )
    weight, scale = map(torch.stack, zip(*pairs, strict=True))
    x = noise(rows, width, dtype=torch.bfloat16)
    ends = torch.randint(0, rows + 1, (groups,), generator=DICE).sort().values
    ends[-1] = rows
    found = grouped_narrow_product.grouped_narrow_product(x, weight, scale, ends.to(DEVICE), True)
    close(found, grouped_narrow_product.reference(x, weight, scale, ends), BITS[torch.bfloat16])


def draws(build: Build) -> None:
    z, state = 3 * noise(37, VOCABULARY, dtype=kind_of(build, "logits")), torch.arange(37) * 977 - 5
    random = torch.arange(37) % 3 > 0
    found = gumbel_argmax.gumbel_argmax(z, state.to(DEVICE), random.to(DEVICE), True)
    assert torch.equal(found.cpu(), gumbel_argmax.reference(z.cpu(), state, random))


def scores_attention(build: Build) -> None:
    kind, size, group = kind_of(build, "query"), build.constants["SIZE"], build.constants["GROUP"]
    rows, length, kv_heads, most = (3, 1050, 4, 40) if GPU else (2, 200, 1, 3)
    query, keys = noise(rows, most, kv_heads * group, size, dtype=kind), noise(rows, kv_heads, length, size, dtype=kind)
    count = torch.randint(1, length, (rows,), generator=DICE).int().to(DEVICE)
    listed = build.types["columns"] is not None
    columns = torch.randint(0, most, (rows, most - 2), generator=DICE).to(DEVICE) if listed else None
    found = attention_scores.attention_scores(query, columns, keys, count, True)
    for one, other in zip(found, attention_scores.reference(query, columns, keys, count), strict=True):
        close(one, other, BITS[torch.float16])  # a GPU may multiply the definition's float32 in fewer bits


def sums_drift(build: Build) -> None:
    rows, length, heads, width, watched = (3, 1050, 32, 16, 33) if GPU else (2, 50, 3, 2, 3)
    old, new = (noise(rows, width + watched, heads, 64) for _ in range(2))
    keys, count = noise(rows, heads, length, 64), torch.tensor([length, 7, length - 9][:rows]).int().to(DEVICE)
    scores = [
        attention_scores.reference(one[:, :most], None, keys, count)
        for one, most in ((new, width + watched), (old, watched))
    ]
    real, mean = noise(rows, width) > -1, noise(rows, watched).abs()
    found = drift_sums.drift_sums(scores[0], scores[1], real, mean, count, True)
    for one, other in zip(found, drift_sums.reference(scores[0], scores[1], real, mean, count), strict=True):
        close(one, other, 1e-4)


CHECKS: dict[str, Callable[[Build], None]] = {
    "_add_norm": adds_and_norms,
    "_silu_times": gates,
    "_rope_scatter": rotates_and_stores,
    "_summarise": summarises_rows,
    "_finish": summarises_rows,
    "_head": multiplies_the_head,
    "_credit": fuses_credit,
    "_slot_logits": looks_logits_up,
    "_grouped": multiplies_groups,
    "_narrow": multiplies_narrow_weights,
    "_grouped_narrow": multiplies_narrow_groups,
    "_gumbel_argmax": draws,
    "_scores": scores_attention,
    "_drift_sums": sums_drift,
}


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_a_kernel_is_its_definition(build: Build) -> None:
    """And what was launched is the build."""
    NOISE.manual_seed(1)
    DICE.manual_seed(1)
    launched, launch = list[dict[str, Any]](), Kernel._launch

    def noted(kernel: Kernel, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        if kernel is build.kernel:
            launched.append(options)
        launch(kernel, grid, *args, **options)

    with patch.object(Kernel, "_launch", noted):
        CHECKS[build.kernel.function.__name__](build)
    shipped = {**build.constants, **build.config.arguments}
    for name in ("UPCAST", *["EPS"] * (build.types.get("query_gain", "") is None)):
        shipped.pop(name, None)  # the interpreter's alone; of norms that there are none of
    assert any(shipped.items() <= options.items() for options in launched)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_attention_over_intervals_agrees(kind: torch.dtype) -> None:
    if not has_varlen(DEVICE, kind):
        pytest.skip(f"no attention over rows of various lengths in {kind}: heads are repeated under a mask")
    assert agrees(DEVICE, kind)
