"""What does not go together, as rows of tables: when it is so, why, and what to choose instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, attrgetter
from typing import Any

from dllm.common.errors import IncompatibleParts, Refusal, Set, name_of, valued
from dllm.contract.checks import needs_of
from dllm.contract.needs import Need, readouts_of
from dllm.contract.readouts import Readout
from dllm.contract.setting import Sampling, Setting
from dllm.contract.traits import SamplerTraits
from dllm.models.config import ModelConfig
from dllm.models.network.attention_order import AttentionKind


@dataclass(frozen=True)
class Selection:
    """Everything that is chosen before weights are read."""

    setting: Setting  # the model, the blocks, lengths and sampling
    sampler: Any  # the parts are as their rooms have them
    cache: Any = None  # None: rows that ask for the part are not read
    eos: Any = None  # what follows an end of text
    length: Any = None  # how long rows are
    # whose rows are read, and its group: of a wrapped rule not the sampler that is chosen
    part: Any = None  # (a part)
    group: str = ""  # (sampler, blocks, cache, eos or length)
    stop: Sequence[str] = ()  # strings that end an answer
    runtime: Any = None  # how forwards run, and where
    device: str = ""  # its kind, as torch calls it
    ranks: int = 1  # that share the model

    @property
    def model(self) -> ModelConfig:
        """The checkpoint's description."""
        return self.setting.model

    @property
    def attention(self) -> AttentionKind:
        """Who sees whom in the model."""
        return self.setting.model.attention

    @property
    def blocks(self) -> Any:
        """The block schedule."""
        return self.setting.blocks

    @property
    def sampling(self) -> Sampling:
        """How tokens are proposed."""
        return self.setting.sampling

    @property
    def gen_length(self) -> int | None:
        """Masks after the prompt (None: infilling)."""
        return self.setting.gen_length

    @property
    def does(self) -> SamplerTraits:
        """The sampler's traits."""
        traits: SamplerTraits = self.sampler.traits
        return traits

    @cached_property
    def needs_by_group(self) -> Mapping[str, Sequence[Need]]:
        """What each part needs. Raises UserError for a part whose needs are none."""
        parts = {group: getattr(self, group) for group in ("sampler", "blocks", "eos", "length", "cache")}
        needs = {group: needs_of(group, part) for group, part in parts.items() if part is not None}
        return {group: own for group, own in needs.items() if group != "cache"}

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """What all parts need."""
        return tuple(need for own in self.needs_by_group.values() for need in own)

    @cached_property
    def reads(self) -> Sequence[Readout[Any]]:
        """What they read, each once."""
        return readouts_of(self.needs)

    def fact(self, name: str) -> Any:
        """What stands at a placeholder: the name of a part, an option's value, or a word for the model's attention."""
        if name == "kind":
            return self.attention.is_called
        group, _, option = name.partition(".")
        value = self.part if group == self.group else getattr(self, group)
        return attrgetter(option)(value) if option else value if name in ("gen_length", "ranks") else name_of(value)


@dataclass(frozen=True)
class Clash:
    """Choices that do not go together.

    >>> row = Clash(lambda c: c.sampling.guidance, "{sampling.guidance} has no meaning.", [Set("sampling.guidance", 0)])
    """

    # whether a combination holds them. A text is ``{what:value}`` of the sentence, a mapping has values for several
    # placeholders
    when: Callable[[Selection], Any]
    says: str  # why, as a ``Refusal`` has it
    use: Sequence[Set | Callable[[Selection], Set]] = ()  # ways out, each by itself; one may depend on the combination
    note: str = ""  # a way out that no setting expresses
    at: str = ""  # the setting at fault, if it is not the first one that ``says`` names
    # of the refusal. For ``IncompatibleParts`` the nearest parts that work are searched, too
    kind: type[Refusal] = Refusal

    def refusal(self, combination: Selection, when: Any) -> Refusal:
        """The row's refusal of a combination that it holds ``when`` of."""
        facts = dict(when) if isinstance(when, Mapping) else {"what": when}
        for name in valued(f"{self.says} {self.note}"):
            if name not in facts:
                facts[name] = combination.fact(name)
        ways = tuple(way if isinstance(way, Set) else way(combination) for way in self.use)
        return self.kind(self.says, facts, ways, self.note, self.at)


@dataclass(frozen=True)
class Mismatch(Clash):
    """Parts that each are fine and do not work together."""

    kind: type[Refusal] = IncompatibleParts  # of the refusal


# The group of a part and the part, whose own rows these are; None: rows of no part.
PartRows = tuple[str, Any, Iterable[Clash]]


def first_clash(combination: Selection, tables: Iterable[PartRows]) -> Refusal | None:
    """The refusal of the first row that a combination meets; None: all of it goes together."""
    own = object.__new__(Selection)  # as ``copy`` makes one, in a tenth of the time: a server validates each request
    known = vars(own)
    known.update(vars(combination))
    for group, part, rows in tables:
        known["part"], known["group"] = part, group
        for row in rows:
            if when := row.when(own):
                return row.refusal(own, when)
    return None


def refuse_clashes(combination: Selection, *tables: PartRows) -> None:
    """Raise the first clash (Refusal)."""
    if (refusal := first_clash(combination, tables)) is not None:
        raise refusal


# Ways out that many rows name.
USE_CONFIDENCE, USE_FIXED, ROWS_STAY = Set("sampler", "confidence"), Set("blocks", "fixed"), Set("length", "fixed")
USE_NO_CACHE, USE_NO_POLICY = Set("cache", "none"), Set("eos", "none")
UNGUIDED, COLD, NO_BUDGET = (
    Set(f"sampling.{name}", value) for name, value in (("guidance", 0), ("temperature", 0), ("thinking_budget", None))
)
NEUTRAL_SAMPLING = {"temperature": 0, "top_p": None, "top_k": None, "eos_last": False}  # of ``Sampling``


def all_of(first: Set, *more: Set) -> Set:
    """One way out that takes all of these."""
    return reduce(and_, more, first)


def switched_off(*names: str) -> Callable[[Selection], Set]:
    """The way out that switches these fields of ``Sampling`` off, if they are on."""

    def way(c: Selection) -> Set:
        on = [name for name in names if getattr(c.sampling, name) != NEUTRAL_SAMPLING[name]] or names[:1]
        return all_of(*(Set(f"sampling.{name}", NEUTRAL_SAMPLING[name]) for name in on))

    return way
