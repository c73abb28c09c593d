"""``engine=accelerate``: the processes that ``accelerate launch run.py ...`` starts share the samples of each cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from dllm.app.engines.base import Engine, bar
from dllm.app.jobs.cells import Cell
from dllm.app.jobs.store import RESULTS, Store, key_of
from dllm.errors import UserError

PART = RESULTS.replace(".", "-{}.")  # what one process writes; the first one gathers them


class Accelerate(Engine):
    """Batches are dealt out in turn, so every process decodes the same ones whenever the run is started again. Each
    writes a file of its own; the first process owns the folder and moves finished lines into its results."""

    def check(self, config: Mapping[str, Any]) -> None:
        from accelerate import PartialState

        # A process may wait for another one's last batch far longer than the usual ten minutes.
        self.state = PartialState(cpu=config["model"]["device"] == "cpu", timeout=timedelta(days=7))
        self.leads = self.state.is_main_process
        if self.state.num_processes > 1 and config["name"] is None and config["resume"] is None:
            raise UserError("engine=accelerate with several processes needs name=NAME: they must agree on a folder.")

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        for cell in cells:
            if self.state.device.type != "cpu":
                cell.evaluation.device = str(self.state.device)
            if self.leads:
                with cell.open() as store:
                    gather(store)
                    self._turn(cell)
                    gather(store)
            else:
                self._turn(cell)
            self.state.wait_for_everyone()
            yield cell

    def _turn(self, cell: Cell) -> None:
        """This process's share, between the moments at which all know what is there and at which all are done."""
        self.state.wait_for_everyone()
        evaluation, done = cell.evaluation, {key_of(row) for row in cell.rows()}
        mine = evaluation.missing(done)[self.state.process_index :: self.state.num_processes]
        if mine:
            with Store.attach(cell.folder, PART.format(self.state.process_index)) as part:
                if self.leads:
                    part.stamp(evaluation.environment())
                with bar(sum(len(batch.jobs) for batch in mine), 0, self.leads) as progress:
                    for row, trace in evaluation.rows(mine):
                        if key_of(row) not in done:
                            part.write(row, trace)
                            progress.update()
        self.state.wait_for_everyone()


def gather(store: Store) -> None:
    """Move finished lines into the results: each once, also when a killed run left them in both places."""
    for file in sorted(store.folder.glob(PART.format("*"))):
        with Store.attach(store.folder, file.name) as part:
            done = store.done
            for row in part.rows:
                if key_of(row) not in done:  # a file holds no sample twice
                    store.write(row)
        file.unlink()
