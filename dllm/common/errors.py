"""One exception for everything a user can put right."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, Self

CHECKOUT = Path(__file__).parents[2]  # or where wheels are installed
LONGEST_NAME = 200  # characters of what may be a misspelt name
MOST_NAMES = 2000  # that a misspelt one is compared with, at 20 µs each
MISSPELT = 0.75  # names less alike are other words: tests/common/test_hints.py has the words that this rests on


class UserError(ValueError):
    """A mistake in what the user asked for. The message names the argument, its value, the rule and the way out."""


class Refusal(UserError):
    """A mistake as a value: worded for its reader, and listed, tested and applied without reading sentences.

    Args:
        says: the reason. ``{sampler}`` stands for a setting with its value, ``{sampler:name}`` for its name alone,
            ``{kind:value}`` for a value alone, ``{null}`` for the word for nothing.
        facts: values by the names in ``says`` and ``note``. Settings are called as on the command line.
        use: the ways out. Each one alone removes the refusal.
        note: a way out that no setting expresses, or what goes with one.
        at: the setting at fault (empty: the first one that ``says`` names).

    >>> refusal = Refusal("{sampling.top_k} leaves nothing.", {"sampling.top_k": 0}, (Set("sampling.top_k", None),))
    >>> refusal.at, refusal.value, refusal.text(COMMAND_LINE)
    ('sampling.top_k', 0, 'sampling.top_k=0 leaves nothing. Set sampling.top_k=null.')
    """

    def __init__(
        self, says: str, facts: Mapping[str, Any] | None = None, use: Sequence[Set] = (), note: str = "", at: str = ""
    ) -> None:
        named = PLACEHOLDER.search(says)
        self.says, self.facts, self.use, self.note = says, dict(facts or {}), tuple(use), note
        self.at = at or (named[1] if named else "")
        super().__init__(says, self.facts, self.use, note, at)  # what pickle calls it with

    @property
    def value(self) -> Any:
        """What the setting at fault has."""
        return self.facts.get(self.at)

    @property
    def reason(self) -> str:
        """The sentence without ways out."""
        return _in_use[-1].filled(self.says, self.facts)

    def but(self, use: Sequence[Set]) -> Self:
        """The same with other ways out."""
        return type(self)(self.says, self.facts, use, self.note, self.at)

    def text(self, words: Wording) -> str:
        """The sentence for those who use these words."""
        sentences = (words.filled(self.says, self.facts), words.ways(self.use), words.filled(self.note, self.facts))
        return " ".join(filter(None, sentences))

    def __str__(self) -> str:
        return self.text(_in_use[-1])


@dataclass(frozen=True)
class Set:
    """A way out: the value that a setting gets. ``Set(...) & Set(...)`` takes both."""

    name: str  # of the setting, as the command line calls it
    value: Any  # that it gets
    also: Set | None = None  # what it takes besides

    def __and__(self, other: Set) -> Set:
        return Set(self.name, self.value, other if self.also is None else self.also & other)

    @property
    def all(self) -> dict[str, Any]:
        """Every setting that the way out changes, with its value."""
        return {self.name: self.value, **({} if self.also is None else self.also.all)}


PLACEHOLDER = re.compile(r"\{([^{}:]+)(?::(\w+))?\}")
LITERAL_WORDS = {"null": None, "true": True, "false": False}


@dataclass(frozen=True)
class Wording:
    """What settings and values are called where a refusal is read."""

    # by a setting's name, what it is called here; what is not listed goes by the longest listed beginning, or keeps its
    # name. Each table reads what the one before it gave.
    tables: tuple[Mapping[str, str], ...] = ()
    # how None, True and False are written
    literals: Mapping[Any, str] = field(default_factory=lambda: {None: "null", True: "true", False: "false"})
    settings: Mapping[str, str] = field(default_factory=dict)  # of a setting with its value: what is said instead
    both: str = " "  # between the settings that one way out takes together

    def but(self, names: Mapping[str, str], settings: Mapping[str, str] | None = None) -> Wording:
        """The same, with what these words call something called by ``names``."""
        return replace(self, tables=(*self.tables, names), settings={**self.settings, **(settings or {})})

    def name(self, place: str) -> str:
        """What a setting is called."""
        for table in self.tables:
            begin = max((key for key in table if place == key or place.startswith((f"{key}.", f"{key}["))),
                        key=len, default=None)  # fmt: skip
            place = place if begin is None else f"{table[begin]}{place[len(begin) :]}".removeprefix(".")
        return place

    def field(self, place: str) -> str | None:
        """The field of a request that holds a setting; None: requests do not have it."""
        owner = self.name(re.split(r"[./]", place, maxsplit=1)[0])
        name = self.name(place)
        return None if name == place else owner if name.startswith(f"{owner}.") else name

    def value(self, value: Any) -> str:
        """How a value is written."""
        return self.literals[value] if value is None or isinstance(value, bool) else str(value)

    def setting(self, place: str, value: Any) -> str:
        """A setting with its value."""
        text = f"{self.name(place)}={self.value(value)}"
        return self.settings.get(text, text)

    def filled(self, says: str, facts: Mapping[str, Any]) -> str:
        """A sentence with these words in place of its ``{names}``."""

        def fill(match: re.Match[str]) -> str:
            name, form = match.groups()
            if name in LITERAL_WORDS:
                return self.value(LITERAL_WORDS[name])
            if form == "name":
                return self.name(name)
            if name not in facts:  # no placeholder: a sentence may quote JSON
                return match[0]
            if form == "quoted":
                return f"{self.name(name)}={facts[name]!r}"
            return self.value(facts[name]) if form == "value" else self.setting(name, facts[name])

        return PLACEHOLDER.sub(fill, says)

    def ways(self, use: Sequence[Set]) -> str:
        """``Use sampler=confidence, or set sampling.guidance=0.``"""
        by_verb: dict[str, list[str]] = {}
        for way in use:
            settings = self.both.join(self.setting(name, value) for name, value in way.all.items())
            by_verb.setdefault("set" if "." in way.name else "use", []).append(settings)
        sentence = ", or ".join(f"{verb} {either(ways)}" for verb, ways in by_verb.items())
        return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def either(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


COMMAND_LINE = Wording()
# A Python user gives the fields of ``Sampling`` as keywords.
PYTHON = Wording(({"sampling": "", "sampler/inner": "inner"},), {None: "None", True: "True", False: "False"})
_in_use = [PYTHON]


@contextmanager
def worded_in(words: Wording) -> Iterator[None]:
    """Refusals become text in these words: what ``str`` gives in all threads. A program begins so, no library call."""
    _in_use.append(words)
    try:
        yield
    finally:
        _in_use.pop()


class TooLarge(UserError):
    """What does not fit into memory; the sentence names what does. A sweep goes on with its other cells."""


class TooLargeForRanks(TooLarge):
    """The same, said by all ranks of a model together: none of them waits in a turn."""


class TooLong(UserError):
    """A prompt that the model's length does not hold."""


class IncompatibleParts(Refusal):
    """Parts that each are fine and do not work together; a caller that knows all parts adds the nearest choice."""


class SettingWarning(Warning):
    """A setting that works but probably not as intended. The message says why, and names the way out."""


@lru_cache(1000)  # a run checks its parts and its checkpoint more than once; requests bring ever new numbers
def warn_once(sentence: str) -> None:
    """Warn, once in a process, of a setting that works but probably not as intended."""
    warnings.warn_explicit(sentence, SettingWarning, "dllm", 1)  # ``warnings.warn`` would keep each sentence


class UnknownChoice(Refusal):
    """A setting whose word is not among the ``known`` ones."""

    def __init__(self, name: str, value: object, known: Sequence[str], more: str = "") -> None:
        rule = f"must be one of {', '.join(known)}{more}.{nearest(str(value), known)}"
        super().__init__(f"{{{name}:quoted}} {rule}", {name: value}, at=name)
        self.known, self.args = tuple(known), (name, value, known, more)


def nearest(name: str, names: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for a misspelt name, or an empty string when nothing comes close."""
    if len(name) > LONGEST_NAME:  # no misspelling is so long; to compare a megabyte would take 36 MB for each name
        return ""
    best, likeness = "", MISSPELT
    for candidate in islice(names, MOST_NAMES):
        if len(candidate) <= LONGEST_NAME and (score := similarity(name, candidate, likeness)) >= likeness and (
            score > likeness or not best):  # fmt: skip
            best, likeness = candidate, score
    return f" Did you mean {best!r}?" if best else ""


def similarity(name: str, other: str, least: float = 0.0) -> float:
    """How alike two names look, from 0 to 1, without regard to case and to signs between words; 0 if that is under
    ``least``, which cheap bounds often tell. What is before the last dot does not count where both have it, or ``name``
    has none: it would make all options of a part alike."""
    (place, _, last), (there, _, end) = name.rpartition("."), other.rpartition(".")
    pairs = [(last, end)] if place == there else [(name, other)] if place else [(name, other), (name, end)]
    return max(_ratio(_bare(left), _bare(right), least) for left, right in pairs)


def _ratio(left: str, right: str, least: float) -> float:
    if 2 * min(len(left), len(right)) < least * (len(left) + len(right)):  # each letter of the shorter one matched
        return 0.0
    matcher = difflib.SequenceMatcher(None, left, right)
    return matcher.ratio() if matcher.quick_ratio() >= least else 0.0


def _bare(name: str) -> str:
    return name.casefold().replace("-", "_")


def first_line(error: BaseException) -> str:
    """The first line of what an error says, at most 200 characters and without a full stop; its class if it is mute."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def in_words(error: BaseException) -> str:
    """Why a file could not be read, in words instead of Python's: ``it lacks 'trace'`` for a KeyError."""
    match error:
        case KeyError():
            return f"it lacks {error.args[0]!r}" if error.args else "it lacks an entry"
        case IndexError() | StopIteration() | EOFError():
            return "it ends too early"
        case TypeError() | AttributeError() | AssertionError():
            return "it holds something else"
        case UnicodeDecodeError():
            return f"byte {error.start} is not UTF-8"
        case OSError():
            return error.strerror or first_line(error)
    return first_line(error)


def install_command(extra: str) -> str:
    """What installs an extra of dllm. It never asks an index for dllm itself, whose name has no owner there."""
    if (CHECKOUT / "pyproject.toml").is_file():
        return f"pip install -e '{'.' if Path.cwd() == CHECKOUT else CHECKOUT}[{extra}]'"
    from importlib.metadata import requires

    requirements = [line.partition(";") for line in requires("dllm") or ()]
    names = [name.strip() for name, _, rule in requirements if re.search(f"extra *== *['\"]{extra}['\"]", rule)]
    return "pip install " + " ".join(f"'{name}'" for name in names)


def not_installed(what: str, library: str, extra: str, instead: str = "") -> UserError:
    """The error for a missing library. what: the option that needs it; extra: what of dllm installs it."""
    way_out = f"Install it with: {install_command(extra)}{f', or {instead}' if instead else ''}."
    return UserError(f"{what} needs {library}, which is not installed. {way_out}")


TYPED_NAMES: dict[str, str] = {}  # of users' own classes: MODULE.CLASS -> what the command line called it


def name_of(part: object) -> str:
    """What a sampler, block schedule, cache or end-of-text policy is called in messages: the name that a user types.

    That of its file, as in the configuration. A part of the user's own has the name that was typed for its class, or
    else its class's. A part that has several names in the configuration says which one it has by ``name``.
    """
    kind = type(part)
    package, _, file = kind.__module__.rpartition(".")
    if package.partition(".")[0] != "dllm":
        return TYPED_NAMES.get(f"{kind.__module__}.{kind.__qualname__}", kind.__name__)
    return str(getattr(part, "name", kind.__name__.lower() if file == "base" else file))


def in_choices(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a value of the option ``name`` that is not ``allowed``."""
    choices = list(allowed)
    if value not in choices:
        raise UnknownChoice(name, value, choices)


def in_range(name: str, value: Any, low: float, high: float = inf, advice: str = "") -> None:
    """Refuse a parameter outside [low, high]; sequences and tensors are checked entry by entry. None passes."""
    if value is None or (isinstance(value, int | float) and low <= value <= high):
        return  # nearly always; a tensor of one number takes ten times as long
    import torch

    entries = torch.as_tensor(value, dtype=torch.float64)
    if bool(((entries < low) | (entries > high) | entries.isnan()).any()):
        rule = f"be at least {low:g}" if high == inf else f"lie in [{low:g}, {high:g}]"
        raise Refusal(f"{{{name}}} must {rule}.", {name: value}, note=advice, at=name)
