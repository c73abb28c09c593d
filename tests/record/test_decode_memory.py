"""What ``dllm check`` says of a decode's memory, beside what PyTorch's allocator gave out."""

from dataclasses import replace

import pytest

from dllm.common.errors import UserError
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY
from dllm.record.decode_memory import MemoryModel, longest_fit, most_rows
from experiments.bench.memory import ANSWER, CASES, SHAPES, MemoryCase, allocated, predicted

NEAR = 0.1  # of what was measured


@pytest.mark.daily(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, vars(case).values())))
def test_what_is_said_is_what_is_allocated(case: MemoryCase) -> None:
    model = case.model()
    assert predicted(case, model) == pytest.approx(allocated(case, model), rel=NEAR)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_one_column_and_one_row_more_do_not_fit(cache: str) -> None:
    case = MemoryCase(cache=cache)
    model = case.model()
    counted = MemoryModel(model.config, case.parts(model), 10 << 20, 4, ANSWER)
    room = 200 << 20
    length, rows = longest_fit(counted, room, 3), most_rows(counted, room, 500)
    assert counted.use(3, length).most <= room < counted.use(3, length + 1).most
    assert counted.use(rows, 500).most <= room < counted.use(rows + 1, 500).most
    assert longest_fit(counted, 10 << 20, 1) == most_rows(counted, 0, 500) == 0  # the weights alone fill it
    assert longest_fit(counted, 1 << 50, 1) == model.config.max_length


def test_guidance_keeps_and_computes_every_row_twice() -> None:
    case = MemoryCase(cache="dual")
    model = case.model()
    parts = case.parts(model)
    guided = replace(parts, sampling=replace(parts.sampling, guidance=1.0))
    once, twice = (MemoryModel(model.config, one, 0, 4, ANSWER).use(2, 300) for one in (parts, guided))
    assert (twice.kept, twice.activations) == (2 * once.kept, 2 * once.activations)


def test_other_layers_are_not_counted() -> None:
    config = replace(SHAPES["llada"], family=MASKED_LM_FAMILY)
    model = MemoryCase().model()
    with pytest.raises(UserError, match="is not counted here"):
        MemoryModel(config, MemoryCase().parts(model), 0, 4, ANSWER)
