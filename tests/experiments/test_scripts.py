"""What the commands of ``experiments`` share: a mistake is one sentence and the exit code 2."""

from __future__ import annotations

from importlib import import_module

import pytest

from dllm import UserError
from experiments.support.scripts import refusing

NOWHERE = {  # commands that take a model, and how they are told of one
    "bench.overhead": ["--model", "nosuch"], "compare.caches": ["nosuch"], "compare.kinds": ["nosuch"],
    "compare.samplers": ["nosuch"], "compare.constrained_tasks": ["nosuch"], "compare.own_sampler": ["nosuch"],
    "mini.card": ["nosuch", "--again", "speed"], "mini.derive": ["nosuch"], "mini.evaluate": ["nosuch"],
    "mini.token_frequencies": [__file__, "--model", "nosuch"], "distill.filter": ["model=nosuch"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "given"), NOWHERE.items(), ids=NOWHERE.keys())
def test_a_model_that_there_is_not(name: str, given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(f"experiments.{name}").main(given) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "'nosuch'" in said and said.count("\n") == 1


@pytest.mark.parametrize("given", ["0", "-1", "many"])
@pytest.mark.parametrize("name", ["compare.caches", "compare.kinds", "compare.samplers", "compare.own_sampler"])
def test_a_count_that_counts_nothing(name: str, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        import_module(f"experiments.{name}").main(["--count", given])
    assert exit_.value.code == 2
    assert f"argument --count: {given!r} must be a whole number from 1 on" in capsys.readouterr().err


def test_only_what_the_user_can_put_right_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    @refusing
    def command(error: Exception | None, code: int = 0) -> int:
        if error is not None:
            raise error
        return code

    assert (command(None), command(None, code=1), command(UserError("a is\n  wrong."))) == (0, 1, 2)
    assert command(FileNotFoundError(2, "No such file or directory", "a/b")) == 2
    sentence = "a/b: No such file or directory. Put that right, or name another place."
    assert capsys.readouterr().err == f"error: a is wrong.\nerror: {sentence}\n"
    with pytest.raises(KeyError):
        command(KeyError("ours"))
