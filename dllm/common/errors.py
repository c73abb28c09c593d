"""One exception for everything a user can put right."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import islice
from math import inf
from operator import and_
from typing import Any, Self

from dllm.common.grouping import grouped

LONGEST_NAME = 200  # characters of what may be a misspelt name
MOST_NAMES = 2000  # that a misspelt one is compared with, at 20 µs each
MISSPELT = 0.75  # names less alike are other words: tests/common/test_hints.py has the words that this rests on


class UserError(ValueError):
    """A mistake in what the user asked for. The message names the argument, its value, the rule and the way out."""


class Refusal(UserError):
    """A mistake as a value: worded for its reader, and listed, tested and applied without reading sentences.

    Args:
        says: the reason. ``{sampler}`` stands for a setting with its value, ``{sampler:name}`` for its name alone,
            ``{kind:value}`` for a value alone, ``{eos=none}`` for a setting with another value, ``{null}`` for the word
            for nothing. What a user wrote is a fact or ``verbatim``, for it may have braces of its own.
        facts: values by the names in ``says`` and ``note``, or in their order there. Settings are called as on the
            command line.
        use: the ways out. Each one alone removes the refusal.
        note: a way out that no setting expresses, or what goes with one.
        at: the setting at fault (empty: the first one that ``says`` names).

    >>> refusal = Refusal("{sampling.top_k} leaves nothing.", [0], [Set("sampling.top_k", None)])
    >>> refusal.at, refusal.value, refusal.text(COMMAND_LINE)
    ('sampling.top_k', 0, 'sampling.top_k=0 leaves nothing. Set sampling.top_k=null.')
    """

    def __init__(
        self,
        says: str,
        facts: Mapping[str, Any] | Sequence[Any] = (),
        use: Sequence[Set] = (),
        note: str = "",
        at: str = "",
    ) -> None:
        named = [name for name, _, _ in PLACEHOLDER.findall(says) if name]
        # not strict: what a user wrote may look like a placeholder, and stays as it is
        given = facts if isinstance(facts, Mapping) else zip(valued(f"{says} {note}"), facts, strict=False)
        self.says, self.facts, self.use, self.note = says, dict(given), tuple(use), note
        self.at = at or next(iter(named), "")
        super().__init__(says, self.facts, self.use, note, at)  # what pickle calls it with

    @property
    def value(self) -> Any:
        """What the setting at fault has."""
        written = {name: LITERAL_WORDS.get(other, other) for name, _, other in PLACEHOLDER.findall(self.says) if other}
        return {**written, **self.facts}.get(self.at)

    @property
    def places(self) -> frozenset[str]:
        """Every setting that it names."""
        ways = {name for way in self.use for name in way.all}
        return frozenset(ways.union(name for name, _, _ in PLACEHOLDER.findall(f"{self.says} {self.note}")))

    @property
    def reason(self) -> str:
        """The sentence without ways out."""
        return _in_use[-1].filled(self.says, self.facts)

    def but(self, use: Sequence[Set] | None = None, note: str | None = None) -> Self:
        """The same with other ways out, or another note."""
        use, note = self.use if use is None else use, self.note if note is None else note
        return type(self)(self.says, self.facts, use, note, self.at)

    def about(self, other: str) -> Self:
        """The same refusal of another setting."""
        says, note = (
            re.sub(rf"\{{{re.escape(self.at)}(?=[:=}}])", f"{{{other}", text) for text in (self.says, self.note)
        )
        facts = {other if name == self.at else name: value for name, value in self.facts.items()}
        use = [reduce(and_, (Set(other if k == self.at else k, v) for k, v in way.all.items())) for way in self.use]
        return type(self)(says, facts, use, note, other)

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


# its name, the form, or another value; none of them: an escaped brace
PLACEHOLDER = re.compile(r"\{(?:\{\}|([\w./\[\] ]+)(?::(\w+)|=([^{}]+))?\})")
LITERAL_WORDS = {"null": None, "true": True, "false": False}


def valued(says: str) -> list[str]:
    """The names in a sentence that stand for values, each once."""
    found = PLACEHOLDER.findall(says)
    no_fact = ("", *LITERAL_WORDS)
    return list(dict.fromkeys(n for n, form, other in found if form != "name" and not other and n not in no_fact))


def verbatim(text: str) -> str:
    """Text of a user's as a part of a sentence with placeholders."""
    return text.replace("{", "{{}")


@dataclass(frozen=True)
class Wording:
    """What settings and values are called where a refusal is read."""

    # by a setting's name, what it is called here; what is not listed goes by the longest listed beginning, or keeps its
    # name. Each table reads what the one before it gave.
    tables: tuple[Mapping[str, str], ...] = ()
    # how None, True and False are written
    literals: Mapping[Any, str] = field(default_factory=lambda: {None: "null", True: "true", False: "false"})
    settings: Mapping[str, str] = field(default_factory=dict)  # of a setting with its value: what is said instead
    typed: tuple[str, ...] = ()  # settings whose value is a type: ``response_format of type regex``
    both: str = " "  # between the settings that one way out takes together
    form: str = "settings"  # how hints write what to give: settings, keywords (of Python) or json

    def but(self, names: Mapping[str, str], settings: Mapping[str, str] | None = None) -> Wording:
        """The same, with what these words call something called by ``names``."""
        return replace(self, tables=(*self.tables, names), settings={**self.settings, **(settings or {})})

    def name(self, place: str) -> str:
        """What a setting is called."""
        for table in self.tables:
            begin = max(
                (key for key in table if place == key or place.startswith((f"{key}.", f"{key}["))),
                key=len,
                default=None,
            )
            place = place if begin is None else f"{table[begin]}{place[len(begin) :]}".removeprefix(".") or place
        return place

    def field(self, place: str) -> str | None:
        """The field of a request that holds a setting; None: requests do not have it."""
        owner = self.name(re.split(r"[./]", place, maxsplit=1)[0])
        name = self.name(place)
        known = name != place or any(place in table for table in self.tables)
        return (owner if name.startswith(f"{owner}.") else name) if known else None

    def value(self, value: Any) -> str:
        """How a value is written."""
        return self.literals[value] if value is None or isinstance(value, bool) else str(value)

    def setting(self, place: str, value: Any) -> str:
        """A setting with its value."""
        name, shown = self.name(place), self.value(value)
        said = f"{name}={shown}"
        return self.settings.get(said, f"{name} of type {shown}" if place in self.typed else said)

    def filled(self, says: str, facts: Mapping[str, Any]) -> str:
        """A sentence with these words in place of its ``{names}``."""

        def fill(match: re.Match[str]) -> str:
            name, form, other = match.groups()
            if name is None:
                return "{"
            if other is not None:
                return self.setting(name, LITERAL_WORDS.get(other, other))
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

    def way(self, way: Set) -> str:
        """A way out: what it sets."""
        return self.both.join(self.setting(name, value) for name, value in way.all.items())

    def ways(self, use: Sequence[Set]) -> str:
        """``Use sampler=confidence, or set sampling.guidance=0.``"""
        by_verb = grouped(("set" if "." in way.name else "use", self.way(way)) for way in use)
        sentence = ", or ".join(f"{verb} {either(ways)}" for verb, ways in by_verb.items())
        return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def either(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


COMMAND_LINE = Wording()
# A Python user gives the fields of ``Sampling`` to ``Decoder`` as keywords, and the settings of a model to ``load``.
PYTHON = Wording(
    ({"sampling": "", "model": "", "sampler/inner": "inner"},),
    {None: "None", True: "True", False: "False"},
    form="keywords",
)
_in_use = [PYTHON]


@contextmanager
def worded_in(words: Wording) -> Iterator[None]:
    """Refusals become text in these words: what ``str`` gives in all threads. A program begins so, no library call."""
    _in_use.append(words)
    try:
        yield
    finally:
        _in_use.pop()


class Undecodable(Refusal):
    """What shows while samples are decoded, so that some are left. A sweep goes on with its other cells."""


class TooLarge(Undecodable):
    """What does not fit into memory; the sentence names what does."""


class TooLargeForRanks(TooLarge):
    """The same, said by all ranks of a model together: none of them waits in a turn."""


class TooLong(Refusal):
    """A prompt that the model's length does not hold."""


class IncompatibleParts(Refusal):
    """Parts that each are fine and do not work together; a caller that knows all parts adds the nearest choice."""


class SettingWarning(Warning):
    """A setting that works but probably not as intended. The message says why, and names the way out."""


@lru_cache(1000)  # a run checks its parts and its checkpoint more than once; requests bring ever new numbers
def warn_once(sentence: str) -> None:
    """Warn, once in a process, of a setting that works but probably not as intended. sentence: with placeholders."""
    sentence = _in_use[-1].filled(sentence, {})
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
        if (
            len(candidate) <= LONGEST_NAME
            and (score := similarity(name, candidate, likeness)) >= likeness
            and (score > likeness or not best)
        ):
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
