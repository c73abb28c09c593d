"""What a stranger may set: what is written down for it, and nothing else."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dllm.compose import choice_files
from dllm.parts import (
    OFFERED_GROUPS,
    Model,
    Sampler,
    SamplerTraits,
    UserError,
    arguments_of,
    choice_and_options,
    choice_text,
    choices,
    class_of,
    comments,
    composed,
    help_text,
    offers,
    parts_on_offer,
    plain_config,
    serve_limits,
    use_folder,
    validated_options,
)
from dllm.serve.http import offered
from tests.serve.conftest import Place

PARTS = [(group, name) for group in OFFERED_GROUPS for name in offers(group)]
NEVER = {("learn2pd", "filter"), ("pc", "frequencies"), ("oracle", "reference")}


def test_options_that_buy_work_are_bounded() -> None:
    most = {
        ("sampler", "freedave", "draft_steps"): 8,
        ("sampler", "credit", "slots"): 32,
        ("sampler", "ete", "explore_width"): 8,
        ("sampler", "ete", "lookahead_blocks"): 4,
        ("sampler", "remdm", "extra"): 16,
        ("blocks", "sliding", "max_block_length"): 4096,
        **{("blocks", name, "min_forwards"): 64 for name in choices("blocks") if name != "sliding"},
    }
    for (group, name, key), number in most.items():
        with pytest.raises(UserError, match=f"{group}.{key}={number + 1} is more than {number}, the most"):
            validated_options(group, name, {key: number + 1})
        assert validated_options(group, name, {key: number}) == {key: number}


def test_every_whole_number_is_bounded_and_every_default_is_allowed() -> None:
    seen = set()
    for group, name in PARTS:
        for key, option in offers(group)[name].options.items():
            seen.add(option.kind)
            assert (option.most is not None) or option.kind not in ("integer", "integers", "text") or option.choices
            assert option.kind == "part" or option.validate(key, option.default) == option.default
    assert seen == {"boolean", "text", "number", "integer", "numbers", "integers", "part"}


def test_what_names_a_file_is_not_offered() -> None:
    for name, key in NEVER:
        assert key not in getattr(offers("sampler").get(name), "options", {})
        if name in offers("sampler"):
            with pytest.raises(UserError, match=f"sampler.{key} is not offered; sampler={name} offers"):
                validated_options("sampler", name, {key: "/etc/passwd"})
    with pytest.raises(UserError, match="sampler='oracle' is not offered; choose one of"):
        choice_and_options("sampler", "oracle")
    assert set(choices("sampler")) - set(offers("sampler")) == {"oracle"}


class Fresh(Sampler):
    """A part that somebody adds, without a word about the server."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False)

    def __init__(
        self,
        threshold: float = 0.5,
        copies: int = 3,
        file: str = "table.json",
        sizes: Any = 4,
        spans: Any = None,
        fast: bool = True,
        lengths: tuple[int, ...] = (),
        names: str | None = None,
    ) -> None:
        self.threshold = threshold


def test_a_new_part_is_safe_by_what_its_file_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "_target_": f"{__name__}.Fresh",
        "threshold": 0.5,
        "copies": 3,
        "file": "table.json",
        "sizes": 4,
        "fast": True,
        "names": None,
    }
    text = "copies: 3   # of each\n"
    monkeypatch.setattr(offered, "options_of_choices", lambda group: {"fresh": config})
    monkeypatch.setattr(offered, "comes_along", lambda group, name: True)
    monkeypatch.setattr(choice_files, "choice_text", lambda group, name: text)
    assert set(dict(offered._options("sampler", "fresh"))) == {"threshold", "fast"}
    text = "copies: 3   # of each; serve_max 5\n"
    options = dict(offered._options("sampler", "fresh"))
    assert set(options) == {"threshold", "fast", "copies"}
    assert (options["copies"].most, options["copies"].note) == (5, "of each")


def test_every_limit_in_a_file_belongs_to_an_option_that_is_offered() -> None:
    for group in OFFERED_GROUPS:
        for name in choices(group):
            found = serve_limits(group, name)
            assert len(found) == len(re.findall("serve_max", choice_text(group, name)))
            assert set(found) <= set(offers(group)[name].options if name in offers(group) else {})


def test_limits_stay_out_of_configurations_and_of_the_help() -> None:
    config = plain_config(composed(["sampler=freedave"])["sampler"])
    assert set(config) == {"_target_", "inner", "draft_steps", "as_published"}
    assert "serve_max" not in help_text(["sampler=credit", "cache=elastic"])
    assert comments("a: 1   # one; serve_max 3\nb: 2   # serve_max 4\n") == {"a": "one"}


def test_defaults_are_those_that_the_command_line_composes() -> None:
    """The offer reads the files by itself, which is a hundred times faster."""
    for overrides in (["sampler=credit", "cache=elastic", "eos=eotp"], ["sampler=prophet", "cache=dkv_pd"]):
        config = composed(overrides)
        for group, name in (text.split("=") for text in overrides):
            assert offered._config(group, name) == plain_config(config[group])


def test_the_offer_names_everything_that_a_part_takes_or_leaves_it_out_on_purpose() -> None:
    left_out = set()
    for group, name in PARTS:
        config = offered._config(group, name)
        arguments = set(arguments_of(class_of(group, config["_target_"]))) & set(config)
        left_out |= {(name, key) for key in arguments - set(offers(group)[name].options)}
    assert left_out == (NEVER - {("oracle", "reference")}) | {("adablock", "delimiter_ids")}


def test_words_are_those_of_the_parts_themselves() -> None:
    def of(group: str, name: str, key: str) -> tuple[str, ...]:
        return offers(group)[name].options[key].choices

    assert of("sampler", "order", "positions") == ("random", "left_to_right")
    assert of("sampler", "static", "score") == ("low_confidence", "random", "margin", "entropy")
    assert of("cache", "dkv_pd", "shift_type") == ("un_right", "un")
    assert of("eos", "eotp", "scope") == ("suffix", "block")
    assert of("blocks", "tccf", "marker") == () and offers("blocks")["tccf"].options["marker"].most == 64


def test_the_page_is_told_everything_as_json() -> None:
    page = json.loads(json.dumps(parts_on_offer()))
    assert [list(page[group]) for group in OFFERED_GROUPS] == [list(offers(group)) for group in OFFERED_GROUPS]
    assert all(len(part["doc"]) > 8 for group in OFFERED_GROUPS for part in page[group].values())
    option = page["sampler"]["freedave"]["options"]["draft_steps"]
    assert (option["kind"], option["default"], option["most"]) == ("integer", 4, 8)
    inner = page["sampler"]["credit"]["options"]["inner"]
    assert inner["kind"] == "part" and inner["default"] == "confidence" and "localleap" in inner["choices"]


@pytest.mark.parametrize(
    ("choice", "options", "sentence"),
    [
        ("credit", {"inner": "oracle"}, "sampler.inner='oracle' is not offered"),
        ("credit", {"inner": {"_target_": "os.mkdir"}}, "sampler.inner={'_target_': 'os.mkdir'} must be NAME or"),
        ("credit", {"inner": {"name": "eb", "gama": 1}}, "sampler.inner.gama does not exist; sampler=eb offers gamma."),
        ("confidence", {"_target_": "os.mkdir"}, "sampler._target_ is not offered"),
        ("confidence", {"threshold": {"_target_": "os.mkdir"}}, "sampler.threshold={'_target_': 'os.mkdir'} must be a"),
        ("confidence", {"threshold": [0.5, 0.6]}, "sampler.threshold=[0.5, 0.6] must be a number"),
        ("confidence", {"threshold": "high"}, "sampler.threshold='high' must be a number, such as 0.9."),
        ("static", {"score": "${oc.env:HOME}"}, "sampler.score='${oc.env:HOME}' must not hold ${"),
        ("static", {"steps": 4.0}, "sampler.steps=4.0 must be a whole number or null"),
        ("static", {"steps": True}, "sampler.steps=True must be a whole number"),
        ("prophet", {"thresholds": [1.0] * 65}, "sampler.thresholds has 65 entries. At most 64 are served."),
        ("prophet", {"anchor_text": "x" * 65}, "sampler.anchor_text has 65 characters. At most 64 are served."),
        ("prophet", {"thresholds": [1.0, {"_target_": "os.mkdir"}]}, "sampler.thresholds=[1.0, {'_target_'"),
        ("order", {"positions": [2, 1, 0]}, "sampler.positions=[2, 1, 0] must be text"),
        ("my.Class", {"threshold": 0.5}, "sampler=my.Class is the server's own; none of its options can be set."),
    ],
)
def test_what_is_not_offered_is_a_sentence(choice: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        validated_options("sampler", choice, options)
    assert sentence in str(refused.value)


def test_wrappers_within_wrappers_end() -> None:
    deep: Any = "static"
    for _ in range(2):
        deep = {"name": "prophet", "inner": deep}
    assert validated_options("sampler", "prophet", {"inner": deep["inner"]})
    with pytest.raises(UserError, match="is a part within 3 others"):
        validated_options(
            "sampler", "prophet", {"inner": {"name": "prophet", "inner": {"name": "prophet", "inner": deep}}}
        )


OWN_RULE = """# idea: Whatever is surest
_target_: own_rules.Rule
low: 0.8   # probability from which a position is committed
high: 0.9
most: 3   # positions of a forward; serve_max 8
inner: {_target_: dllm.parts.samplers.static.Static}
word: a
odd: [1.0]
"""
OWN_MODULE = """
from typing import Literal, Optional
from dllm.contract.canvas import PerRequest
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.confidence import Confidence

class Rule(Confidence):
    per_request = ("low", *Confidence.per_request)
    def __init__(self, low: PerRequest = 0.8, high: Optional[float] = None, most: Optional[int] = None,
                 inner: Optional[Sampler] = None, word: Literal["a", "b"] = "a",
                 odd: tuple[float, ...] = (1.0,)):
        super().__init__(0.9)
        self.low, self.inner = low, inner
"""


@pytest.fixture
def own_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A rule in a folder of a user's own, in a module whose annotations Python evaluates."""
    with own_choices(tmp_path, monkeypatch, "own_rules", OWN_MODULE, "rule", OWN_RULE):
        yield


@contextmanager
def own_choices(
    folder: Path, patch: pytest.MonkeyPatch, module: str, code: str, name: str, text: str
) -> Iterator[None]:
    made = types.ModuleType(module)
    patch.setitem(sys.modules, module, made)
    exec(compile(code, module, "exec", dont_inherit=True), made.__dict__)
    (folder / "sampler").mkdir()
    (folder / "sampler" / f"{name}.yaml").write_text(text)
    use_folder(folder)
    kept = offered.offers, offered.offer_of, offered._builds
    for one in kept:
        one.cache_clear()
    yield
    use_folder(None)
    for one in kept:
        one.cache_clear()


@pytest.mark.usefixtures("own_rule")
def test_a_rule_of_the_users_own_folder_is_offered_by_its_annotations_as_python_evaluates_them() -> None:
    assert "rule" in choices("sampler") and "confidence" in offers("sampler")
    made = offers("sampler")["rule"]
    told = {key: (option.kind, option.default, option.null, option.most) for key, option in made.options.items()}
    assert told == {
        "low": ("number", 0.8, False, None),
        "high": ("number", 0.9, True, None),
        "most": ("integer", 3, True, 8),
        "inner": ("part", "static", False, None),
    }
    assert (made.doc, made.options["low"].note) == (
        "Whatever is surest",
        "probability from which a position is committed",
    )
    assert "rule" in offers("sampler")["credit"].options["inner"].choices
    json.dumps(parts_on_offer())


@pytest.mark.parametrize("asked", ["rule", {"name": "rule", "low": 0.5}, {"name": "credit", "inner": "rule"}], ids=str)
@pytest.mark.usefixtures("own_rule")
def test_a_request_may_choose_a_rule_of_the_users_own_folder(served: Model, asked: Any) -> None:
    place = Place(served)
    found = place.ask(diffusion={"sampler": asked})
    place.close()
    assert found.status_code == 200, found.text


def test_the_guides_sampler_is_offered_and_served_as_the_page_writes_it(
    served: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "add_a_sampler.md"
    blocks = re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    code, text = (text for path, text in blocks if not path.startswith("tests/"))
    with own_choices(tmp_path, monkeypatch, "dllm.parts.samplers.alternate", code, "alternate", text):
        place = Place(served)
        parts = place.call("GET", "/v1/parts").json()
        assert parts["sampler"]["alternate"]["options"]["threshold"]["kind"] == "number"
        for name in ("alternate", "eb"):
            assert (
                place.ask(
                    diffusion={"sampler": {"name": name}, "threshold": 0.5}
                    if name == "alternate"
                    else {"sampler": name}
                ).status_code
                == 200
            )
        place.close()
