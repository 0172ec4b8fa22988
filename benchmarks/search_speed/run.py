"""How fast a proven answer comes, over how many layouts, in how much memory; one core, a process for each case.

    python benchmarks/search_speed/run.py                       everything: table, results.csv, growth.png
    python benchmarks/search_speed/run.py gpt3-1024 two-pools   these cases; the rows of others stay in results.csv
    python benchmarks/search_speed/run.py --list
    python benchmarks/search_speed/run.py --quick               each search once, to see that all of it runs
    python benchmarks/search_speed/run.py --table               results.csv as the table of the report, and the figure

"Proven" is all from the question to the best layouts with their proof, solver included: the median of five in one
process. The first search of that process comes before them and has to build its schedules; it is in the table too.
"Decided" are the layouts of the certificate over the proven seconds: most are decided with many others at once, by one
bound. "Priced" are layouts written out and priced one by one (all coefficients of time and memory), nothing else.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
HERE = Path(__file__).parent
RESULTS, FIGURE = HERE / "results.csv", HERE / "growth.png"
TIME_LIMIT = 60.0
PEERS_PER_SECOND = 1000.0
"""Configurations that a planner which enumerates prices a second and core, with its logging off."""


def main() -> None:
    """Measure, print, save, draw."""
    asked = _arguments()
    if asked.child:
        _child(asked)
        return
    from cases import cases

    known = {case.name: case for case in cases()}
    if asked.list:
        for case in known.values():
            print(f"{case.name:24} {case.subject}")
        return
    if unknown := [name for name in asked.cases if name not in known]:
        raise SystemExit(f"no case is called {', '.join(unknown)}; --list names them")
    rows = _saved()
    if asked.table:
        from drawing import draw, markdown

        print(markdown(rows.values()))
        draw(rows.values(), FIGURE)
        return
    for name in asked.cases or known:
        row = _measured(name, asked)
        if row is None:
            continue
        print(_line(row), flush=True)
        rows[name] = row
        if not asked.quick:
            _save([rows[name] for name in known if name in rows])
    if not asked.quick:
        from drawing import draw

        draw(rows.values(), FIGURE)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", help="names of cases; default: all")
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--quick", action="store_true", help="each search once; writes nothing")
    parser.add_argument("--table", action="store_true", help="show what was measured; measures nothing")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT, help="seconds of one search")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _child(asked: argparse.Namespace) -> None:
    """Measure one case here and print its row."""
    from cases import cases
    from measuring import measure

    case = next(case for case in cases() if case.name == asked.cases[0])
    print(json.dumps(measure(case, asked.time_limit, quick=asked.quick)))


def _measured(name: str, asked: argparse.Namespace) -> dict[str, object] | None:
    """The row of a case, from a fresh process with one thread; nothing, and a word, where that fails."""
    flags = ["--child", name, "--time-limit", str(asked.time_limit), *(["--quick"] if asked.quick else [])]
    one_thread = os.environ | dict.fromkeys(THREADS, "1")
    done = subprocess.run(
        [sys.executable, __file__, *flags], env=one_thread, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{name}: failed\n{done.stderr}", file=sys.stderr)
        return None
    row: dict[str, object] = json.loads(done.stdout)
    return row


def _line(row: dict[str, object]) -> str:
    """A row of the printed table."""
    aim = f"aim {float(str(row['aim_seconds'])):g} s" if row["aim_seconds"] else ""
    decided = float(str(row["decided_per_second"]))
    priced = f"{int(str(row['priced_per_second'])):>9,}" if row["priced_per_second"] else " " * 9
    return (
        f"{row['case']:22} {int(str(row['layouts'])):>11,} layouts  solved {row['solved']:>4}"
        f"  undecided {int(str(row['undecided'])):>10,}  gap {100 * float(str(row['gap'])):5.2f} %"
        f"  proven {float(str(row['proven_seconds'])):7.2f} s (first {float(str(row['first_seconds'])):6.2f} s,"
        f" cpu {float(str(row['cpu_seconds'])):6.2f} s) {aim:10} {int(str(row['peak_rss_mib'])):>5} MiB"
        f"  decided/s {decided:>11,.0f} ({decided / PEERS_PER_SECOND:,.0f} x)  priced/s {priced}  {row['layout']}"
    )


def _saved() -> dict[str, dict[str, object]]:
    """The rows of earlier runs, by case."""
    if not RESULTS.is_file():
        return {}
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return {row["case"]: dict(row) for row in csv.DictReader(file)}


def _save(rows: list[dict[str, object]]) -> None:
    from cost_models.files.whole import write_whole
    from meshwright.terminal.output import as_csv

    write_whole(RESULTS, as_csv(rows))


if __name__ == "__main__":
    main()
