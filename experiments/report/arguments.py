"""What a report may be asked for, on a command line. Imports nothing heavy, so that its help comes at once."""

from __future__ import annotations

import argparse
from pathlib import Path

DOES = "Tables (CSV, LaTeX), pictures (PNG, PDF, SVG) and one page from the folders of sweeps, in FOLDER/report."


def parser(called: str = "python -m experiments.report") -> argparse.ArgumentParser:
    """The parser, whose usage says how it was ``called``."""
    made = argparse.ArgumentParser(prog=called, description=DOES)
    made.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders of sweeps or runs of a task")
    made.add_argument("--out", type=Path, help="where to write (default: report/ in the first folder)")
    made.add_argument("--machine", help="compare times with this one's floor: h200, h100, a100, l4, or this")
    made.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="show these alone, in this order")
    made.add_argument("--baseline", metavar="METHOD", help="compare with this one: METHOD or 'METHOD, SETTING'")
    made.add_argument("--highlight", metavar="METHOD", help="draw this method before others, and print it bold")
    return made
