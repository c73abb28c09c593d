"""A property that is computed once for each value, and that torch.compile follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

V = TypeVar("V")


class kept_property(Generic[V]):
    """``functools.cached_property`` without its lock, at which torch.compile breaks a graph before Python 3.12. Two
    threads may both compute the property; the values of a decode belong to one."""

    def __init__(self, compute: Callable[[Any], V]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, value: None, owner: type) -> kept_property[V]: ...

    @overload
    def __get__(self, value: object, owner: type) -> V: ...

    def __get__(self, value: object | None, owner: type) -> kept_property[V] | V:
        if value is None:
            return self
        values = value.__dict__  # read before this property, which sets nothing itself
        if self.name not in values:
            values[self.name] = self.compute(value)
        return values[self.name]  # type: ignore[no-any-return]
