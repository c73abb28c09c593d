"""``engine=accelerate``: the processes that ``accelerate launch run.py ...`` starts share the samples of each cell."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from dllm.app.engines.base import progress_bar
from dllm.app.engines.local import Local
from dllm.app.engines.peers import peers_of
from dllm.app.runs.cells import Cell
from dllm.app.runs.folder import RunFolder
from dllm.common.errors import TooLarge, TooLargeForRanks, UserError, first_line
from dllm.common.links import follows
from dllm.common.terminal import complain
from dllm.record.folders import PART_RESULTS, key_of


class Accelerate(Local):
    """Group g of G takes batches g, g + G, ... of those that are missing: a process by itself, or the ``model.tp``
    ranks that hold a model together. The first rank of each group writes a file of its own; the first process owns the
    folder and moves finished lines into its results."""

    def check(self, config: Mapping[str, Any]) -> None:
        from accelerate import PartialState
        from torch.distributed import DistError

        try:
            self.state = PartialState(cpu=config["model"]["device"] == "cpu")
        except DistError as error:
            missed = f"its processes did not find each other ({first_line(error)})"
            raise UserError(f"engine=accelerate: {missed}. Start all of them at once, on a free port.") from None
        self.leads, self.size = self.state.is_main_process, int(config["model"]["tp"])
        self.group, self.groups = self.state.process_index // self.size, self.state.num_processes // self.size
        if self.state.num_processes == 1:
            complain("engine=accelerate: one process decodes. For more: torchrun --nproc_per_node N.")
        elif config["name"] is None and config["resume"] is None:
            raise UserError("engine=accelerate with several processes needs name=NAME: they must agree on a folder.")
        else:
            self.peers = peers_of(self.state.process_index, self.state.num_processes)

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        if self.state.num_processes == 1:
            yield from super().run(cells)
            return
        for cell in cells:
            if self.state.device.type != "cpu":
                cell.evaluation.answers.place = str(self.state.device)
            with self.peers.telling():
                self._share(cell)
            yield cell

    def _share(self, cell: Cell) -> None:
        too_large = f"too large/{self.peers.meetings}"
        if self.group == 0:  # with its followers, who learn what the folder has
            with cell.open() as run_folder:
                self._turn(cell, too_large)
                run_folder.gather()
        else:
            self._turn(cell, too_large)
        self.peers.meet()
        if sentence := self.peers.message(too_large):
            done_keys = {key_of(row) for row in cell.rows()}
            self.failures.append((cell, [key for key in cell.evaluation.keys if key not in done_keys], sentence))

    def _turn(self, cell: Cell, too_large: str) -> None:
        """Decode this process's share. All processes wait for each other before it and after it. too_large: where to
        say what does not fit into memory; the others finish their shares."""
        self.peers.meet()
        try:
            self._decode_share(cell)
        except TooLarge as error:
            if self.size > 1 and not isinstance(error, TooLargeForRanks):
                raise  # the other ranks hang in the turn that failed here
            if not follows():
                self.peers.say(too_large, str(error))
        self.peers.meet()

    def _decode_share(self, cell: Cell) -> None:
        evaluation, done_keys = cell.evaluation, {key_of(row) for row in cell.rows()}
        missing = evaluation.missing(done_keys)
        mine = missing[self.group :: self.groups]
        if self.size > 1 and missing:
            _ = evaluation.answers.device  # ranks find each other while it loads, all groups at once
        if follows():
            deque(evaluation.rows(mine), 0)
        if follows() or not mine:
            return
        with RunFolder.attach(cell.folder, PART_RESULTS.format(self.group)) as part:
            if self.leads:
                part.stamp(evaluation.answers.environment())
            with progress_bar(sum(len(batch.samples) for batch in mine), 0, self.leads) as progress:
                for row, trace in evaluation.rows(mine):
                    if key_of(row) not in done_keys:
                        part.write(row, trace)
                        progress.update()
