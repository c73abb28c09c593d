"""What is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def version_of(name: str) -> str | None:
    """The installed version of a package; None where it is not installed, as in a bare checkout."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, int]:
    """Major and minor number: (3, 10) of 3.10.0+git."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
