"""``dllm report FOLDER ...``: tables and pictures of sweeps. Imports nothing heavy, so that its help comes at once."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from dllm.app.command_line.program import command
from dllm.common.errors import not_installed
from dllm.common.terminal import VisibleParser, say

DOES = "Tables (CSV, LaTeX), pictures (PNG, PDF, SVG) and one page from the folders of sweeps, in FOLDER/report."


def _parser() -> VisibleParser:
    made = VisibleParser(command("report"), description=DOES)
    made.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders of sweeps or runs of a task")
    made.add_argument("--out", type=Path, help="where to write (default: report/ in the first folder)")
    made.add_argument("--machine", help="compare times with this one's floor: h200, h100, a100, l4, or this")
    made.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="show these alone, in this order")
    base = "compare with this one: METHOD, 'METHOD, SETTING', or a setting that it alone has, as sampler=static"
    made.add_argument("--baseline", metavar="METHOD", help=base)
    made.add_argument(
        "--columns", nargs="+", metavar="COLUMN", help="print one table with these columns, and write nothing"
    )
    made.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="SETTING",
        help="with --columns: what is beside a line, as cache=none",
    )
    made.add_argument("--highlight", metavar="METHOD", help="draw this method before others, and print it bold")
    return made


def run_report(arguments: Sequence[str]) -> None:
    """Write the report. Raises UserError as ``write_report`` does."""
    given = _parser().parse_args(arguments)  # ends here for --help
    for library in ("pandas", "matplotlib"):
        if find_spec(library) is None:
            raise not_installed("a report", library, "report")
    if given.columns is not None:
        say(tables_of(given.folders, given.columns, given.against, given.methods))
        return
    from dllm.view.report.sections import ReportOptions, write_report

    options = ReportOptions(given.machine, given.methods, given.baseline, given.highlight)
    page = write_report(given.folders, given.out or given.folders[0] / "report", options)
    say(f"Report: {page}\nBeside it: tables (CSV, LaTeX) and pictures (PNG, PDF, SVG)")


def tables_of(
    folders: Sequence[Path], columns: Sequence[str], against: Sequence[str] = (), chosen: Sequence[str] = ()
) -> str:
    """The Markdown tables of ``--columns``. Raises UserError as ``column_tables`` does."""
    from dllm.view.report.methods import chosen_settings
    from dllm.view.report.pooling import read_cells
    from dllm.view.report.setting_columns import column_tables
    from dllm.view.report.setting_names import named_settings

    cells, _ = read_cells(*folders)
    return column_tables(chosen_settings(named_settings(cells), chosen), columns, against)
