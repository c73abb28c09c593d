"""``dllm report FOLDER ...``: tables and pictures of sweeps. Imports nothing heavy, so that its help comes at once."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from dllm.app.command_line.program import command
from dllm.common.installing import not_installed
from dllm.common.terminal import VisibleParser, say

DOES = "Tables (CSV, LaTeX), pictures (PNG, PDF, SVG) and one page from the folders of sweeps, in FOLDER/report."


def _parser() -> VisibleParser:
    parser = VisibleParser(command("report"), description=DOES)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders of sweeps or runs of a task")
    parser.add_argument("--out", type=Path, help="where to write (default: report/ in the first folder)")
    parser.add_argument("--machine", help="compare times with this one's floor: h200, h100, a100, l4, or this")
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="show these alone, in this order")
    base = "compare with this one: METHOD, 'METHOD, SETTING', or a setting that it alone has, as sampler=static"
    parser.add_argument("--baseline", metavar="METHOD", help=base)
    parser.add_argument(
        "--columns", nargs="+", metavar="COLUMN", help="print one table with these columns, and write nothing"
    )
    parser.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="SETTING",
        help="with --columns: what is beside a line, as cache=none",
    )
    parser.add_argument("--highlight", metavar="METHOD", help="draw this method before others, and print it bold")
    return parser


def run_report(arguments: Sequence[str]) -> None:
    """Write the report. Raises UserError as ``write_report`` does."""
    values = _parser().parse_args(arguments)  # ends here for --help
    for library in ("pandas", "matplotlib"):
        if find_spec(library) is None:
            raise not_installed("a report", library, "report")
    if values.columns is not None:
        say(tables_of(values.folders, values.columns, values.against, values.methods))
        return
    from dllm.view.report.sections import ReportOptions, write_report

    options = ReportOptions(values.machine, values.methods, values.baseline, values.highlight)
    page = write_report(values.folders, values.out or values.folders[0] / "report", options)
    say(f"Report: {page}\nBeside it: tables (CSV, LaTeX) and pictures (PNG, PDF, SVG)")


def tables_of(
    folders: Sequence[Path], columns: Sequence[str], against: Sequence[str] = (), methods: Sequence[str] = ()
) -> str:
    """The Markdown tables of ``--columns``. Raises UserError as ``column_tables`` does."""
    from dllm.view.report.methods import chosen_settings
    from dllm.view.report.pooling import read_cells
    from dllm.view.report.setting_columns import column_tables
    from dllm.view.report.setting_names import named_settings

    cells, _ = read_cells(*folders)
    return column_tables(chosen_settings(named_settings(cells), methods), columns, against)
