"""Constraints as languages over the tokens of one model, each compiled once."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import fields
from threading import Lock
from time import perf_counter
from weakref import WeakValueDictionary

from dllm.common.errors import Refusal
from dllm.constraints.automata import automaton_of
from dllm.constraints.kinds import Constraint
from dllm.constraints.languages.limits import CompileLimits, budget, within_limits
from dllm.constraints.sets import TokenLanguage
from dllm.constraints.store import Store, drop_oldest
from dllm.constraints.vocabulary import Vocabulary

STORE = Store()  # of the process: equal vocabularies share their automata


class Compiler:
    """What constraints mean for one vocabulary and its ends. It may be asked from several threads."""

    def __init__(self, vocabulary: Vocabulary, ends: Iterable[int] = (), store: Store = STORE) -> None:
        """ends: the ids at which an answer ends; none where every cell must be text."""
        self.vocabulary, self.ends, self.store = vocabulary, tuple(ends), store
        self._languages: OrderedDict[str, TokenLanguage] = OrderedDict()
        self._used: WeakValueDictionary[str, TokenLanguage] = WeakValueDictionary()
        self._lock = Lock()

    def language(self, constraint: Constraint) -> TokenLanguage:
        """The language of a constraint, which equal constraints share; at hand as long as somebody holds it. Raises
        UserError beyond the constraint's limits, and where the vocabulary can write no text of it."""
        key = language_key(constraint)
        old, began = self._known(key), perf_counter()
        with within_limits(CompileLimits(constraint.limit, constraint.seconds, getattr(constraint, "depth", None))):
            tokens = old.tokens if old else self.store.get(key, self.vocabulary, lambda: automaton_of(constraint))
            budget().states(tokens.states)  # an equal one may have been compiled with a higher limit
            budget().counts(tokens.places)
        language = old or TokenLanguage(tokens, self.ends, perf_counter() - began)
        if language.min_tokens is None:
            raise Refusal("{constraint} allows no text that this tokenizer can write.", [constraint.kind])
        return self._kept(key, language)

    def knows(self, constraint: Constraint) -> bool:
        """Whether ``language`` has it at hand: because somebody holds it, or as one of the last."""
        return self._known(language_key(constraint)) is not None

    def _known(self, key: str) -> TokenLanguage | None:
        with self._lock:
            return self._used.get(key)

    def _kept(self, key: str, language: TokenLanguage) -> TokenLanguage:
        with self._lock:
            language = self._languages[key] = self._used.setdefault(key, language)
            self._languages.move_to_end(key)
            drop_oldest(self._languages, lambda language: language.nbytes)
        return language


def language_key(constraint: Constraint) -> str:
    """What decides a constraint's language, as a text that is the same in every process."""
    common = {field.name for field in fields(Constraint)}
    own = {
        field.name: getattr(constraint, field.name)
        for field in fields(constraint)
        if field.compare and field.name not in common
    }
    return json.dumps({"kind": constraint.kind, **own}, sort_keys=True)
