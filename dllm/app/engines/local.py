"""``engine=local``: one cell after the other, in this process. The model stays loaded between them."""

from __future__ import annotations

from collections.abc import Iterator

from dllm.app.engines.base import Engine, progress_bar
from dllm.app.runs.cells import Cell
from dllm.app.runs.folder import RunFolder
from dllm.common.errors import TooLargeForRanks, Undecodable
from dllm.common.links import current_links
from dllm.record.folders import key_of


class Local(Engine):
    """The other engines must give the same scores."""

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        for cell in cells:
            with cell.open() as run_folder:
                try:
                    decode_missing(cell, run_folder)
                except Undecodable as error:
                    if current_links() is not None and not isinstance(error, TooLargeForRanks):
                        raise  # the other ranks hang in the turn that failed here
                    done_keys = {key_of(row) for row in cell.rows()}
                    self.failures.append(
                        (cell, [key for key in cell.evaluation.keys if key not in done_keys], str(error))
                    )
            yield cell


def decode_missing(cell: Cell, run_folder: RunFolder) -> None:
    """Decode the samples that the folder lacks, and write each as soon as it is finished."""
    evaluation = cell.evaluation
    missing = evaluation.missing(run_folder.done_keys)
    if not missing:
        return
    run_folder.stamp(evaluation.answers.environment())
    done_keys = run_folder.done_keys
    with progress_bar(len(evaluation.keys), len(done_keys), title=cell.place) as progress:
        for row, trace in evaluation.rows(missing):
            if key_of(row) not in done_keys:
                run_folder.write(row, trace)
                progress.update()
