"""What a student learns, from which answers, and how it is measured and written down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from dllm import Decoder, load
from dllm.parts import DIGEST, Adapter, DParallel, Fixed, Ids, Static, apart, parameter_source
from experiments.distill import __main__ as distill
from experiments.distill import decoding
from experiments.distill import student as students
from experiments.distill import train as training
from experiments.distill.data import Example, ended
from experiments.distill.recipe import Place, Recipe
from experiments.distill.student import Loss
from experiments.distill.train import Run, complementary, drawn, pack, rate_factor, seeded
from experiments.support.course import learning
from tests.experiments.distill.conftest import options
from tests.support.adapters import DATA, Tree, matrices
from tests.support.fake_gpu import GPU, FakeGPUs, place_of, put


@pytest.mark.parametrize(("name", "clip"), [("llada", 1.0), ("dream", 1e9)])
def test_an_update_is_that_of_every_view_by_itself(
    name: str, clip: float, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of AdamW by hand: no batches, no padding, logits read at position - shift."""
    monkeypatch.setattr(training, "CLIP", clip)
    folder = tiny if name == "llada" else DATA / "tiny-dream"
    model = load(folder, pack=False)
    ids = Ids(model.ids.mask, model.ids.eos, model.ids.stops)
    recipe = replace(Recipe(model=str(folder), data="x", block_length=8, batch=4, micro=2, tune="full", warmup=0.5,
                            learning_rate=1e-2, steps=10, schedule="cosine"),
                     segment="block" if name == "llada" else "answer", beta=1.5)  # fmt: skip
    examples = [Example([3 + n] * (2 + n), 12, [*range(9 + n, 15 + n), *[ids.eos] * 6]) for n in range(6)]
    (tmp_path / "out").mkdir()
    run = Run(
        students.build(folder, model.config, recipe, "cpu"),
        examples,
        recipe,
        Place(str(tmp_path / "out")),
        ids,
        Accelerator(cpu=True),
    )
    by_hand = students.build(folder, model.config, recipe, "cpu").model
    epoch, numbers = drawn(recipe, 0, len(examples))
    loss, losses = Loss(1.5), []
    for number in numbers:
        one = examples[number]
        whole = torch.tensor([*one.prompt, *(one.answer or [])])
        block = 8 if name == "llada" else None
        views = complementary(whole, len(one.prompt), block, ids.mask, seeded(0, epoch, number))
        for tokens, learnt in zip(views.tokens, views.loss, strict=True):
            hidden = by_hand.encode(tokens[None])
            at = learnt.nonzero().squeeze(1)
            logits = (
                torch.stack([by_hand.logits(hidden[0, int(place) - (name == "dream")]) for place in at])
                if len(at)
                else torch.zeros(0, model.config.vocab)
            )
            losses.append(loss(loss.terms(logits, whole[at], torch.zeros_like(at), 1)).sum())
    (sum(losses, torch.zeros(())) / 4).backward()
    wanted = [weight for weight in by_hand.parameters() if weight.requires_grad]
    norm = torch.stack([weight.grad.norm() for weight in wanted if weight.grad is not None]).norm()
    for weight in wanted:
        assert weight.grad is not None
        slope = weight.grad * min(1.0, clip / float(norm))
        # The first step of AdamW: slope / |slope| but for eps, at a sixth of the rate (warm-up over five steps).
        rate = 1e-2 / 6
        weight.data = weight.data * (1 - rate * 0.01) - rate * slope / (slope.abs() + 1e-8)
    run.advance()
    moved = {key: weight for key, weight in run.student.model.named_parameters() if weight.requires_grad}
    stays = {key for key, _ in by_hand.named_parameters()} - set(moved)
    assert stays == {"embed.weight", "lm_head.weight"} and len(moved) == len(wanted)
    for (key, weight), other in zip(moved.items(), wanted, strict=True):
        assert other.grad is not None
        slope = other.grad * min(1.0, clip / float(norm))
        assert torch.allclose(run.optimizer.state[weight]["exp_avg"], 0.1 * slope, atol=1e-5, rtol=1e-3), key
        sure = slope.abs() > 1e-5  # eps and rounding decide the rest
        assert torch.allclose(weight[sure], other[sure], atol=1e-4), key
    assert float(norm) > 1  # so that clipping shows


def test_views_do_not_depend_on_their_neighbours_and_empty_ones_are_left_out() -> None:
    recipe = Recipe(data="x", block_length=8, segment="block")
    ids = Ids(60, 61, (61,))
    examples = [Example([1] * (2 + n), 16, [2] * 16) for n in range(8)]
    alone = {n: pack(examples, [n], 3, recipe, ids) for n in range(8)}
    empty = [n for n in range(8) if not alone[n][2].any()]
    assert empty and len(empty) < 8  # with two whole blocks, one draw in three is empty
    tokens, target, learnt, valid = pack(examples, list(range(8)), 3, recipe, ids)
    kept = [n for n in range(8) if n not in empty]
    assert len(tokens) == 2 * len(kept)
    for place, number in enumerate(kept):
        rows, width = slice(2 * place, 2 * place + 2), 18 + number
        for whole, own in zip((tokens, target, learnt), alone[number], strict=False):
            assert torch.equal(whole[rows, :width], own)
        assert valid[rows].sum() == 2 * width and not learnt[rows, width:].any()


def test_losses_on_a_gpu_are_those_on_a_cpu(tiny: Path) -> None:
    """On a GPU that is not there: every tensor is where it must be."""
    recipe = Recipe(data="x", block_length=8, segment="block", beta=2.0, tune="full")
    ids = Ids(60, 61, (61,))
    built = students.build(tiny, load(tiny, pack=False).config, recipe, "cpu")
    given = pack([Example([1] * (2 + n), 16, [2, 3] * 8) for n in range(4)], range(4), 0, recipe, ids)
    wanted = [one.detach() for one in built(*given)]
    with FakeGPUs():
        for parameter in built.parameters():
            put(parameter, GPU)
        found = built(*(one.to("cuda") for one in given))
        assert all(place_of(one) == GPU for one in found)
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


def test_in_bfloat16_adapters_learn_in_float32(tiny: Path, tmp_path: Path) -> None:
    recipe = replace(
        Recipe(model=str(tiny), data="x", block_length=8, batch=2, dtype="bfloat16", steps=2),
        segment="block",
        beta=2.0,
        tune="lora",
        rank=2,
        alpha=2.0,
    )
    built, ids = students.build(tiny, load(tiny, pack=False).config, recipe, "cpu"), Ids(60, 61, (61,))
    assert {weight.dtype for weight in learning(built).values()} == {torch.float32}
    assert {weight.dtype for weight in built.parameters() if not weight.requires_grad} == {torch.bfloat16}
    before = {name: weight.clone() for name, weight in learning(built).items()}
    Run(built, [Example([1, 2], 12, [3] * 12)] * 3, recipe, Place(str(tmp_path)), ids, Accelerator(cpu=True)).train()
    moved = [name for name, weight in learning(built).items() if not torch.equal(weight, before[name])]
    assert len(moved) == len(before) and all(weight.isfinite().all() for weight in learning(built).values())


def test_each_epoch_is_a_permutation_and_the_rate_is_warmed_up() -> None:
    recipe = replace(Recipe(data="x", batch=3, micro=1), schedule="constant", warmup=0.0)
    epochs = [[number for step in range(3) for number in drawn(recipe, 3 * epoch + step, 11)[1]] for epoch in range(2)]
    assert all(len(set(one)) == 9 for one in epochs) and epochs[0] != epochs[1]
    assert {rate_factor(step, 10, recipe) for step in range(10)} == {1.0}
    falling = [rate_factor(step, 100, replace(recipe, schedule="cosine", warmup=0.05)) for step in range(100)]
    assert falling[:5] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6]) and falling[5] == 1
    assert falling[5:] == sorted(falling[5:], reverse=True) and falling[-1] < 1e-3


def test_the_teacher_decodes_one_token_a_forward_and_its_answers_end_in_ends_of_text(
    tiny: Path, data: Path, tmp_path: Path
) -> None:
    assert distill.main(options(tiny, data, tmp_path / "out", "stop_at=1")) == 0
    plan = distill.Plan.of(options(tiny, data, tmp_path / "out"))
    train, held = distill.Phases(plan, Accelerator(cpu=True)).answered()
    model = load(tiny)
    decoder = Decoder(model, Static(), Fixed(8), gen_length=12)
    given = 0
    for one in (*train, *held):
        result = decoder([list(one.prompt)])[0]
        if one.prompt == decoder.encode("w8"):
            given += 1
            assert one.answer == [3, 4, *[61] * 10]
        else:
            assert one.answer == [*result.tokens, *[61] * (12 - len(result.tokens))]
            assert result.nfe >= len(result.tokens)
    assert given == 1 and len(train) + len(held) <= 11
    assert ended([5, 6, 62, 7, 7], 6, Ids(60, 61, (61, 62))) == [5, 6, 62, 61, 61, 61]
    assert ended([5, 6, 7], 2, Ids(60, 61, (61,))) == [5, 6]


def test_a_measurement_is_what_the_decoder_does(tiny: Path) -> None:
    model, recipe = load(tiny), Recipe(data="x", block_length=8, decode_rows=2, threshold=0.3)
    decoder = Decoder(model, DParallel(0.3), Fixed(8), gen_length=8)
    wanted = [decoder([5 + one, 6])[0] for one in range(3)]
    examples = [Example(row.prompt_tokens, 8, ended(row.canvas, 8, model.ids), judge=len) for row in wanted[:2]]
    examples.append(Example(wanted[2].prompt_tokens, 8, [0] * 8, judge=len))
    rows = decoding.measurement(model, recipe)(examples)
    assert [row["forwards"] for row in rows] == [row.nfe for row in wanted]
    assert [row["equal"] for row in rows] == [1, 1, 0]
    assert [row["score"] for row in rows] == [len(row.text) for row in wanted]
    network = load(tiny, pack=False).transformer
    for one, row in zip(examples, rows, strict=True):  # one block: its first forward sees all masks
        logits = network.logits(network.encode(torch.tensor([[*one.prompt, *[model.ids.mask] * 8]])))[0, -8:].double()
        logits[:, model.ids.mask] = -torch.inf  # never proposed
        chances = logits.softmax(-1)
        entropy = -(chances * chances.clamp(min=1e-300).log()).sum(-1).mean()
        assert row["entropy"] == pytest.approx(float(entropy), rel=1e-4)
    assert decoding.means([{"forwards": 1}, {"forwards": 3}])["forwards"] == pytest.approx((2, 1.96))


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_an_adapter_is_what_peft_reads_and_gives_the_student(name: str, tiny: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    folder = tiny if name == "llada" else DATA / "tiny-dream"
    lines = [{"tokens": [one, one + 1]} for one in range(1, 12)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = options(folder, tmp_path / "data.jsonl", tmp_path / "out", "tune=lora", "rank=3", "steps=3")
    assert distill.main(arguments) == 0
    adapter = tmp_path / "out" / "adapter"
    wrapped = PeftModel.from_pretrained(Tree(folder), str(adapter))
    assert wrapped.active_peft_config.r == 3 and wrapped.active_peft_config.lora_alpha == 3
    adapted = sum(hasattr(module, "lora_A") for module in wrapped.modules())
    wanted = matrices(wrapped.merge_and_unload())
    merged = load(folder, pack=False, adapter=adapter).transformer
    found = {parameter_source(key, merged.config).name: tensor for key, tensor in apart(merged)}
    changed = 0
    for key, tensor in matrices(Tree(folder)).items():
        assert torch.equal(found[key], wanted[key]), key
        changed += not torch.equal(tensor, wanted[key])
    assert adapted == changed == 7 * merged.config.layers  # every product of every layer; the head stays
    # The student, with peft's adapters still apart, computes what the merged model computes.
    plan = distill.Plan.of(arguments)
    built = students.build(folder, plan.config, plan.recipe, "cpu")
    built.load_state_dict(torch.load(tmp_path / "out" / "training.pt", weights_only=True)["weights"], strict=False)
    tokens = torch.arange(20).view(2, 10)
    assert torch.allclose(built.model.encode(tokens), merged.encode(tokens), atol=1e-5)
    assert learning(built) and all(".lora_" in key for key in learning(built))
    assert Adapter.read(adapter).digest is not None and DIGEST == "dllm.base"
