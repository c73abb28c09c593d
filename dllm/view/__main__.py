"""``python -m dllm.view TRACE.json [OTHER.json] [-o FILE]``: a page that re-runs one decode, or two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dllm.common.atomic_write import write_or_refuse
from dllm.common.errors import UserError
from dllm.common.terminal import VisibleParser, complain, say
from dllm.record.trace import read_trace
from dllm.view.page import Pane, parting_of, trace_page


def main(arguments: Sequence[str] | None = None) -> None:
    parser = VisibleParser("python -m dllm.view", description="Write a page that re-runs a decode.")
    parser.add_argument("trace", type=Path, help="a file of a run's traces folder (decode with trace=true)")
    parser.add_argument("other", type=Path, nargs="?", help="a second trace, to be shown beside the first")
    parser.add_argument("-o", "--output", type=Path, help="the page; default: beside the first trace")
    options = parser.parse_args(arguments)
    try:
        files = [options.trace] if options.other is None else [options.trace, options.other]
        panes = panes_of(files)
        say(write(files, options.output, panes))
        if (part := parting_of(panes)) is not None:
            say(f"They part in forward {part.forward}, at position {part.position} of the answer:")
            for file, state in zip(files, part.states, strict=True):
                say(f"  {file}: {state}")
    except UserError as error:
        complain("Error:", error)
        raise SystemExit(2) from None


def panes_of(traces: Sequence[Path]) -> list[Pane]:
    """What a page shows of trace files. Raises UserError for a file that is not a trace."""
    return [Pane.of(file.resolve().parent.parent.name, *read_trace(file)) for file in traces]


def write(traces: Sequence[Path], output: Path | None = None, panes: Sequence[Pane] | None = None) -> Path:
    """Write the page of trace files. Returns where it is. panes: those of the files (None: ``panes_of`` makes them).
    Raises UserError for a file that is not a trace, or a full disk."""
    panes = panes_of(traces) if panes is None else panes
    stems = "-".join(file.stem for file in traces)
    output = output or traces[0].with_name(f"{stems}.html")
    return write_or_refuse(output, trace_page(panes), "Name another place with -o FILE.")


if __name__ == "__main__":
    main()
