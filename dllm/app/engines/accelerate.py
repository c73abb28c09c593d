"""``engine=accelerate``: the processes that ``accelerate launch run.py ...`` starts share the samples of each cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from dllm.app.engines.base import Engine, progress_bar
from dllm.app.runs.cells import Cell
from dllm.app.runs.folder import PART_RESULTS, RunFolder
from dllm.common.terminal import complain
from dllm.errors import UserError
from dllm.record.folders import key_of


class Accelerate(Engine):
    """Process p of P takes batches p, p + P, ... of those that are missing. Each process writes a file of its own; the
    first one owns the folder and moves finished lines into its results."""

    def check(self, config: Mapping[str, Any]) -> None:
        from accelerate import PartialState

        # A process may wait for another one's last batch far longer than the usual ten minutes.
        self.state = PartialState(cpu=config["model"]["device"] == "cpu", timeout=timedelta(days=7))
        self.leads = self.state.is_main_process
        if self.state.num_processes == 1:
            complain("engine=accelerate: one process decodes. For more: torchrun --nproc_per_node N.")
        if self.state.num_processes > 1 and config["name"] is None and config["resume"] is None:
            raise UserError("engine=accelerate with several processes needs name=NAME: they must agree on a folder.")

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        for cell in cells:
            if self.state.device.type != "cpu":
                cell.evaluation.device = str(self.state.device)
            if self.leads:
                with cell.open() as run_folder:
                    self._turn(cell)
                    run_folder.gather()
            else:
                self._turn(cell)
            self.state.wait_for_everyone()
            yield cell

    def _turn(self, cell: Cell) -> None:
        """Decode this process's share. All processes wait for each other before it and after it."""
        self.state.wait_for_everyone()
        evaluation, done = cell.evaluation, {key_of(row) for row in cell.rows()}
        mine = evaluation.missing(done)[self.state.process_index :: self.state.num_processes]
        if mine:
            with RunFolder.attach(cell.folder, PART_RESULTS.format(self.state.process_index)) as part:
                if self.leads:
                    part.stamp(evaluation.environment())
                with progress_bar(sum(len(batch.samples) for batch in mine), 0, self.leads) as progress:
                    for row, trace in evaluation.rows(mine):
                        if key_of(row) not in done:
                            part.write(row, trace)
                            progress.update()
        self.state.wait_for_everyone()
