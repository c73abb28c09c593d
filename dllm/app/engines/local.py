"""``engine=local``: one cell after the other, in this process. The model stays loaded between them."""

from __future__ import annotations

from collections.abc import Iterator

from dllm.app.engines.base import Engine, bar
from dllm.app.jobs.cells import Cell
from dllm.app.jobs.store import Store, key_of
from dllm.errors import UserError


class Local(Engine):
    """The reference for all engines."""

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        for cell in cells:
            with cell.open() as store:
                fill(cell, store)
            yield cell


def fill(cell: Cell, store: Store) -> None:
    """Decode what the folder lacks, a line as soon as a sample is finished."""
    evaluation = cell.evaluation
    missing = evaluation.missing(store.done)
    if not missing:
        return
    try:
        store.stamp(evaluation.environment())
    except UserError:
        store.discard()
        raise
    done = store.done
    with bar(len(evaluation.keys), len(done), title=cell.place) as progress:
        for row, trace in evaluation.rows(missing):
            if key_of(row) not in done:
                store.write(row, trace)
                progress.update()
