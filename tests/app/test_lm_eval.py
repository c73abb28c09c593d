"""``dllm`` inside lm-evaluation-harness: its command line, requests, prefills, likelihoods and records."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dllm import Decoder, load
from dllm.parts import Estimator, Likelihood, UserError

pytest.importorskip("lm_eval", reason="the extra [eval] is not installed")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.evaluator import simple_evaluate  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from dllm.app.lm_eval import lm as module  # noqa: E402
from dllm.parts import DLLM, device_setting, request_seed

SORT = 'Sort the list:\n["Kai", "Emma", "Hugo"]'
ASKED = 4  # of 60 questions; an answer takes 0.25 s
TASK = Path(module.__file__).with_name("mini_lists.yaml")


@pytest.fixture(scope="module")
def model() -> DLLM:
    return DLLM(model="mini-llada", mc_num=4, mc_batch=4)


def generate(context: str, number: int = 0, **options: Any) -> Instance:
    return Instance("generate_until", {}, (context, {"max_gen_toks": 32, **options}), 0, metadata=("t", number, 1))


def chat(model: DLLM, text: str) -> str:
    return model.apply_chat_template([{"role": "user", "content": text}])


@pytest.mark.program
def test_the_stock_command_line_evaluates_the_mini_model_offline(tmp_path: Path) -> None:
    """``lm_eval --model dllm``, as installed, on a task that needs no hub; greedy answers, at most one wrong."""
    records = tmp_path / "records.jsonl"
    command = [
        str(Path(sys.executable).with_name("lm_eval")),
        "--model",
        "dllm",
        "--model_args",
        f"model=mini-llada,sampler=static,records={records}",
        "--tasks",
        str(TASK),
        "--apply_chat_template",
        "--output_path",
        str(tmp_path / "out"),
        "--limit",
        str(ASKED),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(file.read_text())
    assert found["results"]["mini_lists"]["score,none"] >= 1 - 1 / ASKED
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert [row["doc_id"] for row in rows] == list(range(ASKED)) and all(row["nfe"] == 32 for row in rows)
    assert found["config"]["dllm"]["nfe"] == ASKED * 32


def test_entry_point_and_detour_name_the_same_class(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.api.registry import get_model

    from dllm.app.lm_eval import __main__ as detour

    (point,) = (point for point in entry_points(group="lm_eval.models") if point.name == "dllm")
    assert point.load() is DLLM is get_model("dllm")
    called: list[bool] = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: called.append(True))
    detour.main()
    assert called == [True]


def test_models_of_lm_eval_stay_known_beside_ours() -> None:
    from lm_eval.api.registry import model_registry

    assert {"dllm", "dummy", "hf", "local-completions", "local-chat-completions"} <= set(model_registry.keys())
    manager = TaskManager(include_path=str(TASK.parent), include_defaults=False)
    found = simple_evaluate("dummy", tasks=["mini_lists"], task_manager=manager, limit=3, bootstrap_iters=0)
    assert found["results"]["mini_lists"]["score,none"] == 0


def test_batches_of_lm_eval_s_clients_are_served(model: DLLM) -> None:
    """Bodies as its classes for OpenAI's interface write them, and read them; a class itself wants ``tenacity``."""
    pytest.importorskip("uvicorn", reason="the server is not installed: pip install -e '.[serve]'")
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

    from tests.serve.bodies import mini_defaults
    from tests.serve.conftest import CHAT, Place

    place = Place(model.bundle, defaults=mini_defaults(model.bundle))
    decoder = Decoder(model.bundle, gen_length=32)
    questions = [SORT, 'Copy the list:\n["Kai", "Emma"]', 'Reverse the list:\n["Kai", "Emma"]']
    alone = [decoder(question)[0].text for question in questions]
    options = {"until": ["\n\n", "</s>"], "max_gen_toks": 32, "do_sample": False, "temperature": 0.0}
    plain, chats = object.__new__(LocalCompletionsAPI), object.__new__(LocalChatCompletion)
    plain.model, plain._max_gen_toks = chats.model, chats._max_gen_toks = "mini", 256
    prompts = [decoder.prompts.encode(question) for question in questions]
    body = plain._create_payload(prompts, generate=True, gen_kwargs=dict(options), eos="<|endoftext|>")
    assert plain.parse_generations(place.ask("/v1/completions", **body).json()) == alone
    messages = [{"role": "user", "content": SORT, "type": "text"}]  # with its type as up to 0.4.9
    body = chats._create_payload(messages, generate=True, gen_kwargs=dict(options), eos="<|endoftext|>")
    (choice,) = place.call("POST", CHAT, json=body).json()["choices"]
    assert choice["message"]["content"] == alone[0]
    told = place.ask("/v1/completions", **plain._create_payload(prompts)).json()["error"]["message"]
    assert "lm-eval measures likelihoods with --model dllm" in told
    place.close()


def test_the_detour_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from dllm.app.lm_eval import __main__ as detour

    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    with pytest.raises(SystemExit):
        detour.main()
    assert "[eval]'" in capsys.readouterr().err

    def refuse() -> None:
        raise UserError("Something to\nput right.")

    monkeypatch.setitem(sys.modules, "lm_eval.__main__", SimpleNamespace(cli_evaluate=refuse))
    with pytest.raises(SystemExit):
        detour.main()
    assert capsys.readouterr().err == "Error: Something to put right.\n"


def test_the_evaluator_gets_what_the_decoder_gives(model: DLLM) -> None:
    """Through simple_evaluate, with a live model: the same texts as Decoder alone, in the order of the documents."""
    manager = TaskManager(include_path=str(TASK.parent), include_defaults=False)
    found = simple_evaluate(
        model, tasks=["mini_lists"], task_manager=manager, limit=5, apply_chat_template=True, bootstrap_iters=0
    )
    decoder = Decoder(load("mini-llada"), gen_length=32)
    samples = sorted(found["samples"]["mini_lists"], key=lambda sample: sample["doc_id"])
    assert [sample["resps"][0][0] for sample in samples] == [decoder(s["doc"]["prompt"])[0].text for s in samples]
    record = model.records["mini_lists", 3, 0]
    assert record["text"] == samples[3]["resps"][0][0] and record["nfe"] >= 1 and record["seconds"] > 0


def test_answers_come_in_order_whatever_is_decoded_together(model: DLLM) -> None:
    texts = [SORT, 'Copy the list:\n["Nell", "Hugo", "Kai"]', 'Reverse the list:\n["Nell", "Hugo", "Kai"]']
    lengths = [32, 16, 32]
    requests = [
        generate(chat(model, text), number, max_gen_toks=length)
        for number, (text, length) in enumerate(zip(texts, lengths, strict=True))
    ]
    answers = model.generate_until(requests, disable_tqdm=True)
    assert answers == ['["Emma", "Hugo", "Kai"]', '["Nell", "Hugo", "Kai"]', '["Kai", "Hugo", "Nell"]']
    assert [len(model.records["t", number, 0]["canvas"]) for number in range(3)] == lengths


def test_stop_strings_cut_the_answer_unless_they_are_escaped(model: DLLM) -> None:
    request = generate(chat(model, SORT), until=[', "Kai"'])
    assert model.generate_until([request], disable_tqdm=True) == ['["Emma", "Hugo"']
    escaped = DLLM(model="mini-llada", escape_until=True)
    assert escaped.generate_until([request], disable_tqdm=True) == ['["Emma", "Hugo", "Kai"]']


def test_a_prefill_is_given_and_not_decoded(model: DLLM) -> None:
    history = [{"role": "user", "content": SORT}, {"role": "assistant", "content": '["Emma'}]
    context = model.apply_chat_template(history, add_generation_prompt=False)
    (answer,) = model.generate_until([generate(context)], disable_tqdm=True)
    assert answer == '", "Hugo", "Kai"]'
    given = model.records["t", 0, 0]["prompt_tokens"]
    assert model.prompts.text(given).endswith('["Emma')


def test_settings_travel_with_a_request_and_sampling_only_when_asked(model: DLLM) -> None:
    slow = generate(chat(model, SORT), **{"sampler.threshold": 1.0, "temperature": 5.0})
    model.generate_until([slow], disable_tqdm=True)
    one_by_one = model.records["t", 0, 0]
    model.generate_until([generate(chat(model, SORT))], disable_tqdm=True)
    assert one_by_one["nfe"] > model.records["t", 0, 0]["nfe"] and one_by_one["text"] == '["Emma", "Hugo", "Kai"]'
    hot = generate(chat(model, SORT), do_sample=True, temperature=50.0)
    assert model.generate_until([hot], disable_tqdm=True) != ['["Emma", "Hugo", "Kai"]']
    with pytest.raises(UserError, match="sampler.treshold"):
        model.generate_until([generate("x", **{"sampler.treshold": 1})], disable_tqdm=True)


def test_repeats_differ_and_repeat_themselves(model: DLLM) -> None:
    request = generate(chat(model, SORT), 7, do_sample=True, temperature=2.0)
    first = model.generate_until([request] * 3, disable_tqdm=True)
    seeds = {model.records["t", 7, number]["seed"] for number in range(3)}
    assert len(seeds) == 3 and request_seed(0, ("t", 7, 0)) in seeds
    assert model.generate_until([request] * 3, disable_tqdm=True) == first


def likely(context: str, target: str, place: int) -> Instance:
    return Instance("loglikelihood", {}, (context, target), place, metadata=("m", 0, 1))


def test_loglikelihoods_are_the_estimator_s(model: DLLM) -> None:
    context, targets = chat(model, SORT), ['["Emma"', '["Kai"', "["]
    found = model.loglikelihood([likely(context, t, n) for n, t in enumerate(targets)], disable_tqdm=True)
    alone = Likelihood(model.bundle, Estimator(samples=4, rows=4))
    for place, (target, (value, greedy)) in enumerate(zip(targets, found, strict=True)):
        assert value == pytest.approx(alone(*model._encode_pair(context, target)).value) and greedy is False
        assert model.records["m", 0, place]["value"] == value
    assert found[0][0] > found[1][0], "the sorted list begins with Emma"


def test_rolling_likelihoods_cover_texts_longer_than_the_model(model: DLLM) -> None:
    text = "Kai " * 300
    request = Instance("loglikelihood_rolling", {}, (text,), 0, metadata=("r", 0, 1))
    (total,) = model.loglikelihood_rolling([request], disable_tqdm=True)
    assert total < -100
    short = Instance("loglikelihood_rolling", {}, ("Kai",), 0, metadata=("r", 1, 1))
    target = model.tok_encode("Kai")
    truth = model.likelihood([model.prefix_token_id], target).value
    assert model.loglikelihood_rolling([short], disable_tqdm=True) == [pytest.approx(truth)]


def test_bos_is_added_once(model: DLLM) -> None:
    adding = DLLM(model="mini-llada", add_bos_token=True)
    bos = adding.prefix_token_id
    assert adding.tok_encode("Kai") == [bos, *model.tok_encode("Kai")]
    assert adding.tok_encode(chat(model, "Kai"))[:2].count(bos) == 1
    assert model.tok_encode("Kai")[0] != bos


def test_the_command_line_s_default_device_means_the_model_s_own_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device_setting("cuda:0", {}) == {} and device_setting("cpu", {}) == {"model.device": "cpu"}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert device_setting("cuda:0", {}) == {"model.device": "cuda:0"}
    assert device_setting("cuda:0", {"model.device": "cpu"}) == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "mini-lada"}, "Did you mean 'mini-llada'"),
        ({"smapler": "static"}, "smapler"),
        ({"batch_size": "auto"}, "batch_size='auto'"),
        ({"likelihood": "mc"}, "mc_count"),
        ({"gen_length": 768}, "no room for a prompt"),
    ],
)
def test_wrong_arguments_are_refused_before_weights_are_read(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "load", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(UserError, match=words):
        DLLM(**options)
