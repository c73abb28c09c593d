"""An argument in Python that does not exist: what to give instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dllm.common.hints import Meaning, as_listed, meaning
from dllm.errors import UserError, nearest

OptionsOf = Callable[[str], Mapping[str, Mapping[str, object]]]  # the options of each choice of a group


def unknown_argument(
    called: str, name: str, value: object, known: Iterable[str], chosen: Mapping[str, str] | None = None,
    options_of: OptionsOf | None = None,
) -> UserError:  # fmt: skip
    """The error for ``called(name=value)``. known: its arguments. chosen: the names of the parts chosen, by their
    groups, whose options people give to the whole (``Decoder(model, threshold=0.5)``)."""
    chosen, names = chosen or {}, list(known)
    there = {group: {} if options_of is None else options_of(group) for group in chosen}

    def has(key: str) -> bool:
        group, _, option = key.partition(".")
        return option in there.get(group, {}).get(chosen.get(group, ""), {})

    meant = next((Meaning(((f"{group}.{name}", value),)) for group in chosen if has(f"{group}.{name}")), None)
    meant = meant or meaning(name, value, has) or _owned(name, value, there)
    if meant is not None:
        return UserError(f"{called} has no argument {name!r}: {meant.python(chosen)}.")
    return UserError(f"{called} has no argument {name!r}; it has {', '.join(names)}.{nearest(as_listed(name), names)}")


def _owned(name: str, value: object, there: Mapping[str, Mapping[str, Mapping[str, object]]]) -> Meaning | None:
    """An option of a part that was not chosen."""
    for group, choices in there.items():
        for choice, options in choices.items():
            if name in options:
                return Meaning(((group, choice), (f"{group}.{name}", value)))
    return None
