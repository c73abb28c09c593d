"""Replay scores that the benchmark's own metric functions gave: ``python tests/scoring.py FILE...``.

A file holds {"rows": [{metric, ground_truth, prediction, score, score_strict, ...}]}. Every number of a row whose name
tells of a score must be what we give. Exit code: 0 all rows equal, 1 some differ, 2 a file cannot be read.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dllm.parts import METRICS, Judges, metric_scores

Row = Mapping[str, Any]


def given(row: Row) -> dict[str, Any]:
    """The reference's numbers of a row."""
    return {key: value for key, value in row.items() if key == "score" or "_score" in key or key.startswith("score_")}


def ours(row: Row) -> dict[str, Any]:
    """Our numbers. A grammar verdict that the reference was told is told to us too."""
    verdict = row.get("grammar_verdict_assumed")
    judges = Judges(None if verdict is None else lambda text: float(verdict))
    return dict(metric_scores(row["metric"], row["prediction"], row["ground_truth"], judges))


def differs(row: Row) -> bool:
    """Whether a number of the row is another one, or is not given at all, or there is none to compare."""
    wanted = given(row)
    if row["metric"] not in METRICS or not wanted:
        return True
    found = ours(row)
    return any(found.get(key) != value for key, value in wanted.items())


def rows_of(file: Path) -> list[Row]:
    """Raises OSError, ValueError, KeyError or TypeError for what is no such file."""
    rows = json.loads(file.read_text())["rows"]
    for row in rows:
        row["metric"], row["prediction"], row["ground_truth"]
    return list(rows)


def replay(file: Path) -> int:
    """Prints how many rows of each metric are equal; returns how many differ."""
    rows = rows_of(file)
    wrong = [row for row in rows if differs(row)]
    total, bad = (Counter(row["metric"] for row in some) for some in (rows, wrong))
    for metric in sorted(total):
        print(f"{file}: {metric}: {total[metric] - bad[metric]} of {total[metric]} equal")
    for row in wrong[:10]:
        print(f"  differs: {row['metric']}, case {row.get('case')!r}: {row['prediction']!r}")
    print(f"{file}: {len(rows) - len(wrong)} of {len(rows)} rows equal")
    return len(wrong)


def main(files: Sequence[str]) -> int:
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        return int(sum(replay(Path(file)) for file in files) > 0)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"Error: no file of scores: {error!r}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
