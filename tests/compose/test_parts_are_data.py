"""Options are data: nothing in them is imported, called or interpolated. Configuration is the user's own, and is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dllm import UserError, part
from dllm.parts import Confidence, LocalLeap, build_part, choices, composed, part_config

CANARY = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
from dllm.parts.samplers.static import Static
class Mine(Static):
    pass
def make(*args, **options):
    Path(__file__).with_name("called").touch()
"""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that leaves a file where it is imported, and one where its function is called."""
    (tmp_path / "canary_of_parts.py").write_text(CANARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DLLM_SECRET", "swordfish")
    yield tmp_path
    sys.modules.pop("canary_of_parts", None)


def injections(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """A sampler, and options by which a stranger tries to run code or to read the environment."""
    path = str(folder / "made")
    secret, mine = "${oc.env:DLLM_SECRET}", {"_target_": "canary_of_parts.Mine"}
    return {
        "a function": ("confidence", {"threshold": {"_target_": "os.mkdir", "path": path}}),
        "a module": ("confidence", {"threshold": {"_target_": "canary_of_parts.make"}}),
        "a class of the kind": ("credit", {"inner": mine}),
        "the part itself": ("confidence", {"_target_": "canary_of_parts.Mine"}),
        "the environment": ("static", {"score": secret}),
        "within a list": ("prophet", {"thresholds": [mine, secret, 1.0]}),
        "within the inner one": ("credit", {"inner": {"name": "static", "score": secret}}),
        "a name": ("credit", {"inner": {"name": "../../canary_of_parts"}}),
        "an inner name with a setting": ("credit", {"inner": "static sampler._target_=canary_of_parts.Mine"}),
    }


@pytest.mark.parametrize("what", injections(Path()))
def test_options_run_nothing_and_read_nothing(what: str, canary: Path) -> None:
    name, options = injections(canary)[what]
    with pytest.raises(UserError) as refused:
        part("sampler", name, **options)
    assert not any((canary / file).exists() for file in ("ran", "called", "made"))
    assert "canary_of_parts" not in sys.modules and "swordfish" not in str(refused.value)


@pytest.mark.parametrize("name", ["confidence sampler._target_=canary_of_parts.Mine", "inner/eb", "../eos/keep", ""])
def test_a_name_is_one_of_the_choices(name: str, canary: Path) -> None:
    with pytest.raises(UserError, match="is unknown; choose one of"):
        part("sampler", name)
    assert not (canary / "ran").exists()


@pytest.mark.parametrize("group", ["samplers", "model", "sampler/inner"])
def test_a_group_is_one_that_has_parts(group: str) -> None:
    with pytest.raises(UserError, match=f"group='{group}' must be one of sampler, blocks, cache, eos, length, "):
        part(group, "confidence")


def test_what_looks_like_an_interpolation_is_a_text_where_texts_are_free() -> None:
    marked: Any = part("blocks", "tccf", marker="${oc.env:HOME}")
    assert marked.marker == "${oc.env:HOME}"


def test_a_configuration_names_a_class_of_the_users_own(canary: Path) -> None:
    """As ``sampler._target_=my.Class`` and an own YAML file do."""
    config = composed(["sampler=static", "sampler._target_=canary_of_parts.Mine", "seed=4", "sampler.steps=${seed}"])
    rule = build_part("sampler", config["sampler"])
    assert type(rule).__name__ == "Mine" and rule.steps == 4 and (canary / "ran").exists()
    wrapped = {"_target_": "dllm.parts.samplers.freedave.FreeDave", "inner": {"_target_": "canary_of_parts.Mine"}}
    assert type(build_part("sampler", wrapped).inner).__name__ == "Mine"


def test_a_configuration_too_builds_parts_only_where_parts_belong(canary: Path) -> None:
    mine = {"_target_": "canary_of_parts.Mine"}
    with pytest.raises(UserError, match=r"sampler\.threshold=.* must be a number"):
        build_part("sampler", {"_target_": "dllm.parts.samplers.confidence.Confidence", "threshold": mine})
    with pytest.raises(UserError, match=r"sampler\.score=.* must be text"):
        build_part("sampler", {"_target_": "dllm.parts.samplers.static.Static", "score": mine})
    with pytest.raises(UserError, match=r"sampler\.filter=.* must be a file, or the tensors"):
        build_part("sampler", {"_target_": "dllm.parts.samplers.learn2pd.Learn2PD", "filter": mine})
    assert not (canary / "ran").exists()


def test_a_part_inside_is_chosen_by_its_name() -> None:
    by_name: Any = part("sampler", "prophet", inner={"name": "credit", "beta": 0.5, "inner": "localleap"})
    assert (type(by_name.inner).__name__, by_name.inner.beta) == ("Credit", 0.5)
    assert isinstance(by_name.inner.inner, LocalLeap)
    own: Any = part("sampler", "credit", inner=Confidence(0.7))
    assert own.inner.threshold == 0.7
    config = composed(["sampler=prophet", "sampler/inner=credit", "sampler/inner@sampler.inner.inner=localleap"])
    assert part_config("sampler", "prophet", {"inner": {"name": "credit", "inner": "localleap"}}) == config["sampler"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"betta": 1}, "no option 'betta'; it has inner, beta, gamma, alpha, slots, adaptive. Did you mean 'beta'?"),
        ({"inner": {"threshold": 0.5}}, 'chooses no part: write {"name": NAME, OPTION: VALUE}'),
        ({"inner": "locallleap"}, "sampler.inner='locallleap' is unknown"),
        ({"inner": {"name": "localleap", "radios": 2}}, "sampler.inner=localleap has no option 'radios'"),
        ({"slots": {"a": 1}}, "sampler.slots={'a': 1} must be a value"),
    ],
)
def test_what_is_no_option_is_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        part("sampler", "credit", **options)
    assert sentence in str(refused.value)


def test_one_choice_never_changes_another_one() -> None:
    first: Any = part("blocks", "lengths")
    first.lengths.append(3)
    part_config("blocks", "lengths", {})["lengths"].append(4)
    again: Any = part("blocks", "lengths")
    assert again.lengths == [8, 16, 32]


def test_threads_may_compose_at_once() -> None:
    """Hydra composes from one object of the process, which one thread clears while another one uses it."""
    names, pause = choices("eos")[:3], sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda name: composed([f"eos={name}"])["eos"]["_target_"], names))
    finally:
        sys.setswitchinterval(pause)
    assert [target.split(".")[3] for target in found] == names
