"""Tasks of lm-evaluation-harness as ours: the same prompts, filters and scores, from local files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dllm.parts import Decoder, UserError, composed_settings, likeliest_choice, load, task_of

lm_eval = pytest.importorskip("lm_eval", reason="the extra [eval] is not installed")

from lm_eval.tasks import TaskManager  # noqa: E402

from dllm.parts import (  # noqa: E402
    MMLU,  # noqa: E402
    Harness,  # noqa: E402
    IFEval,  # noqa: E402
    Math500,  # noqa: E402
    config_of,
    literal,
    stock_folder,
)

GSM8K = ["question", "answer"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def index() -> TaskManager:
    """lm-eval's list of its tasks, of three folders only: all of them take six seconds to read."""
    folders = [stock_folder() / name for name in ("gsm8k", "minerva_math", "mmlu/default", "squadv2", "cruxeval")]
    return TaskManager(include_path=folders, include_defaults=False)


def written(file: Path, *rows: object) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def sums(count: int, start: int = 0) -> list[dict[str, str]]:
    return [
        {"question": f"What is {n} + {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"}
        for n in range(start, start + count)
    ]


@pytest.fixture
def gsm8k(tmp_path: Path) -> Harness:
    return Harness("gsm8k", GSM8K, "flexible-extract", written(tmp_path / "q", *sums(3, 600)), shots=0)


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("600 + 600 = 1200\n#### 1200", 1, 1),
        ("#### 1,200", 1, 1),
        ("The answer is $1,200.", 0, 1),
        ("#### 1200 and then 7", 1, 0),
        ("1200 apples, 3 left", 0, 0),
        ("#### 12", 0, 0),
        ("no number", 0, 0),
        ("", 0, 0),
    ],
)
def test_gsm8k_filters(gsm8k: Harness, text: str, strict: int, flexible: int) -> None:
    scores = gsm8k.score(gsm8k.items()[0], text)
    assert scores == {"score": flexible, "strict-match": strict, "flexible-extract": flexible}


def test_gsm8k_is_asked_as_the_harness_asks(tmp_path: Path) -> None:
    """Prompt and stops; with worked examples, the very contexts that lm-eval's own evaluator hands to a model."""
    questions, examples = written(tmp_path / "q", *sums(4)), written(tmp_path / "s", *sums(9, 50))
    task = Harness("gsm8k", GSM8K, path=questions, shots_path=examples)
    items = task.items()
    assert items[1].stop == ("Question:", "</s>", "<|im_end|>")
    assert str(items[1].prompt).endswith("Question: What is 1 + 1?\nAnswer:")
    assert str(items[1].prompt).count("\n#### ") == 5

    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(stock_folder() / "gsm8k" / "gsm8k.yaml")
    data = {"test": Dataset.from_list(sums(4)), "train": Dataset.from_list(sums(9, 50))}
    theirs = ConfigurableTask(config={**config, "tag": None, "custom_dataset": lambda **_: data})
    theirs.set_fewshot_seed(1234)
    theirs.build_all_requests()
    assert [item.prompt for item in items] == [instance.args[0] for instance in theirs.instances]


def test_the_stamp_follows_questions_and_template(tmp_path: Path, gsm8k: Harness) -> None:
    stamp = gsm8k.stamp()
    assert stamp["suite"].startswith("lm-eval ") and stamp["suite"].endswith(" gsm8k")
    other = Harness("gsm8k", GSM8K, path=written(tmp_path / "other", *sums(3, 601)), shots=0).stamp()
    assert other["data"] != stamp["data"] and other["template"] == stamp["template"]
    examples = written(tmp_path / "s", *sums(9, 50))
    more = Harness("gsm8k", GSM8K, path=written(tmp_path / "q", *sums(3, 600)), shots=1, shots_path=examples).stamp()
    assert more["template"] != stamp["template"]


def test_math500_has_the_harness_prompt_and_a_grader_that_works_here(tmp_path: Path) -> None:
    path = written(tmp_path / "q", {"problem": "What is $1/2 + 1/4$?", "answer": "\\frac{3}{4}"})
    task = Math500(path=path, fields=["problem", "answer"])
    (item,) = task.items()
    assert item.stop == ("Problem:",) and str(item.prompt).endswith("Problem:\nWhat is $1/2 + 1/4$?\n\nSolution:")
    assert str(item.prompt).count("Problem:") == 5, "four worked examples"
    assert task.score(item, "so $0.75$") == {"score": 1.0, "math_verify": 1.0, "exact_match": 0.0}
    assert task.score(item, "\\boxed{\\frac{3}{4}}")["exact_match"] == 1.0


def test_ifeval_follows_and_counts_instructions(tmp_path: Path) -> None:
    rules = ["punctuation:no_comma", "change_case:english_lowercase"]
    row = {"key": 1, "prompt": "Say yes.", "instruction_id_list": rules, "kwargs": [{}, {}]}
    task = IFEval("ifeval", score="prompt_level_strict_acc", path=written(tmp_path / "q", row))
    (item,) = task.items()
    assert item.prompt == "Say yes." and item.budget == 1280 and item.stop == ()
    good, half = task.score(item, "yes, of course"), task.score(item, "yes it is what you want me to say here")
    assert (good["score"], half["score"]) == (0.0, 1.0) and "inst_level_strict_acc" not in good
    assert task.judged(item, "yes, of course")[1] == {
        "inst_level_strict_acc": [False, True],
        "inst_level_loose_acc": [False, True],
    }


def test_ifeval_has_no_score_where_its_data_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    task = IFEval("ifeval", score="prompt_level_strict_acc", path=written(tmp_path / "q", row))
    (item,) = task.items()

    def missing(*_: object) -> None:
        raise LookupError("punkt_tab")

    monkeypatch.setattr(task.parts["ifeval"], "process_results", missing)
    assert [set(task.score(item, text).values()) for text in ("a", "b")] == [{None}, {None}]
    assert capsys.readouterr().err.count("cannot score answers of ifeval (punkt_tab)") == 1


CHOICES = [
    {"question": "A bone?", "choices": ["femur", "car", "flu", "tea"], "answer": 0, "subject": "anatomy"},
    {"question": "A virus?", "choices": ["femur", "car", "flu", "tea"], "answer": 2, "subject": "virology"},
]
COLUMNS = ["question", "choices", "answer", "subject"]


def test_mmlu_offers_letters_and_the_likeliest_is_its_answer(tmp_path: Path) -> None:
    task = MMLU(harness="mmlu", fields=COLUMNS, path=written(tmp_path / "q", *CHOICES), shots=0, mc_num=8)
    bone, virus = task.items()
    assert (bone.task, virus.task, bone.choices) == ("mmlu_anatomy", "mmlu_virology", (" A", " B", " C", " D"))
    assert str(virus.prompt).startswith("The following are multiple choice questions (with answers) about virology.")
    assert str(virus.prompt).endswith("A virus?\nA. femur\nB. car\nC. flu\nD. tea\nAnswer:")
    assert task.score(virus, " C") == {"score": 1.0, "acc": 1.0} and task.score(virus, " A")["score"] == 0.0
    decoder = Decoder(load("mini-llada"), chat=False)
    assert task.estimator is not None
    found = likeliest_choice(decoder.model, decoder.prompts, virus, task.estimator)
    assert found.text in virus.choices and decoder.prompts.text(found.tokens).strip() == found.text.strip()
    assert found.nfe >= 1


def test_mmlu_subjects_are_chosen_and_their_examples_come_first(tmp_path: Path) -> None:
    questions = written(tmp_path / "q", *CHOICES)
    examples = written(tmp_path / "s", *[row | {"question": "An example?"} for row in CHOICES])
    options = {"harness": "mmlu", "fields": COLUMNS, "path": questions, "shots": 1, "shots_path": examples}
    (only,) = MMLU(subjects="virology", **options).items()
    assert "An example?" in str(only.prompt) and "Answer: C\n\n" in str(only.prompt)
    with pytest.raises(UserError, match="Did you mean 'virology'"):
        MMLU(subjects=["virolgy"], **options)
    with pytest.raises(UserError, match="no row of task.subjects"):
        MMLU(subjects="astronomy", **options)


def test_missing_examples_columns_networks_and_tasks_are_a_sentence_each(tmp_path: Path) -> None:
    path = written(tmp_path / "q", *sums(2))
    with pytest.raises(UserError, match="task.shots=0, or name a file"):
        Harness("gsm8k", GSM8K, path=path)
    with pytest.raises(UserError, match="no 'problem'"):
        Math500(path=path, fields=["problem", "answer"])
    with pytest.raises(UserError, match="task.limit=0"):
        Harness("gsm8k", GSM8K, path=path, limit=0)
    with pytest.raises(UserError, match="openai/gsm8k from the hub .* task.path=FILE"):
        Harness("gsm8k", GSM8K)


def test_a_task_that_judges_several_answers_together_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Harness, "config", lambda self, place: config_of("gsm8k", place, True) | {"repeats": 10})
    with pytest.raises(UserError, match="judges 10 answers to a question together"):
        Harness("gsm8k", GSM8K, path=written(tmp_path / "q", *sums(2)), shots=0).items()


def test_tasks_that_run_code_by_themselves_are_refused() -> None:
    """The sandbox cannot reach into lm-eval's own runner, which its YAML would import."""
    with pytest.raises(UserError, match="task=humaneval"):
        Harness("humaneval")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("minerva_math500", "Use task=math500"),
        ("gsm9k", "unknown to lm-eval. Did you mean 'gsm8k'"),
        ("own_mine", "lists all"),
        ("mmlu", "a group of tasks"),
        ("squadv2", "class of lm-eval's own, .* --tasks squadv2"),
    ],
)
def test_other_tasks_of_the_harness_are_found_or_refused(
    name: str, words: str, index: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda: index)
    with pytest.raises(UserError, match=words):
        Harness(name)


def test_a_missing_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(UserError, match=r"pip install -e '.*\[eval\]'"):
        Harness("gsm8k")


def test_examples_are_read_from_source_and_not_by_import(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("import no_such_library\ndef examples():\n    return [{'a': 1}]\n")
    assert literal(f"{tmp_path}/utils.examples") == [{"a": 1}]
    with pytest.raises(UserError, match="task.shots=0"):
        literal(f"{tmp_path}/utils.others")


@pytest.mark.parametrize("name", ["gsm8k", "math500", "humaneval", "mbpp", "ifeval", "mmlu"])
def test_the_configuration_builds_every_task(tmp_path: Path, name: str) -> None:
    rows = {
        "gsm8k": sums(1)[0],
        "math500": {"problem": "p", "answer": "1"},
        "mmlu": CHOICES[0],
        "humaneval": {"prompt": "def f():\n", "test": "", "entry_point": "f"},
        "mbpp": {"text": "t", "test_list": ["assert f()", "assert f()", "assert f()"]},
        "ifeval": {"key": 1, "prompt": "p", "instruction_id_list": [], "kwargs": []},
    }
    settings = {"task": name, "task.path": written(tmp_path / "q", rows[name])}
    settings |= {} if name == "ifeval" else {"task.shots": 0}
    settings |= {"allow_code": True} if name in ("humaneval", "mbpp") else {}
    task = task_of(composed_settings(settings)["task"])
    assert len(task.items()) == 1 and task.name == name and set(task.stamp()) == {"suite", "template", "data"}
