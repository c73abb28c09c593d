"""Where the brackets of a value do not close."""

from __future__ import annotations

CLOSES = {"[": "]", "{": "}"}
SHOWN_AFTER = 24  # characters shown of what a bracket begins


def unclosed(value: str) -> str | None:
    """What is missing, and where: a bracket or quote that is not closed, or one that closes nothing. None: nothing."""
    opened: list[int] = []
    quote = None
    for at, sign in enumerate(value):
        if quote is not None:
            quote = None if sign == value[quote] and value[at - 1] != "\\" else quote
        elif sign in "'\"" and (at == 0 or value[at - 1] in "[{,: "):
            quote = at
        elif sign in CLOSES:
            opened.append(at)
        elif sign in CLOSES.values():
            if not opened:
                return f"the {sign} at its character {at + 1} closes nothing. Drop it, or open it before"
            begun = value[opened.pop()]
            if CLOSES[begun] != sign:
                shown = value[: at + 1][-SHOWN_AFTER:]
                return f"a {CLOSES[begun]} is missing before its {sign} at character {at + 1}, behind {shown[:-1]!r}"
    if quote is not None:
        return f"the quote that begins {value[quote : quote + SHOWN_AFTER]!r} is not closed. Close it, or drop it"
    if opened:
        sign, shown = value[opened[-1]], value[opened[-1] :][:SHOWN_AFTER]
        return f"a {CLOSES[sign]} is missing at its end, for the {sign} that begins {shown!r}"
    return None
