"""What HolisticTraceAnalysis says of traces, as JSON: run by run.py with a Python that has it.

    python hta_breakdown.py whole|default FILE... → {file: {idle, compute, non_compute, overlap} or {said}}

Its times are in microseconds from the first kernel to the last, `overlap` in percent of the time that communicates. By
default it rounds kernels inward to whole microseconds and leaves the last step out; `whole` does neither.
"""

import contextlib
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

from hta.trace_analysis import TraceAnalysis

logging.disable(logging.CRITICAL)
_COLUMNS = {"idle": "idle_time(us)", "compute": "compute_time(us)", "non_compute": "non_compute_time(us)"}


def breakdown(path: Path, *, whole: bool) -> dict:
    """Of one trace."""
    with tempfile.TemporaryDirectory() as folder:
        files = {0: str(path.resolve())}
        analysis = TraceAnalysis(trace_files=files, trace_dir=folder, include_last_profiler_step=whole)
        times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
        found = {name: float(times[column]) for name, column in _COLUMNS.items()}
        with contextlib.suppress(Exception):
            overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
            found["overlap"] = float(overlap["comp_comm_overlap_pctg"])
    return found


if __name__ == "__main__":
    answers, whole = {}, sys.argv[1] == "whole"
    os.environ["HTA_DISABLE_NS_ROUNDING"] = str(int(whole))
    with contextlib.redirect_stdout(sys.stderr):
        for name in sys.argv[2:]:
            try:
                answers[name] = breakdown(Path(name), whole=whole)
            except Exception as error:
                answers[name] = {"said": f"{type(error).__name__}: {error}"[:120]}
    print(json.dumps(answers))
