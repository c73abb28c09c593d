"""Tables of pandas, which is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dllm.errors import not_installed

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(what: str, rows: Sequence[Any], columns: Sequence[str]) -> DataFrame:
    """A table of ``rows``, each a mapping from columns or a tuple in their order.

    what: whatever asks for it, for the message. Raises UserError where pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise not_installed(what, "pandas", "frame") from None
    return pandas.DataFrame(rows, columns=list(columns))
