"""How many of a hundred faults, put into the code one at a time, the tests notice.

python tools/faults.py --check            whether every fault of `faults.yaml` can still be made; takes a second
python tools/faults.py [WORD ...]         make those with these words in name or file (all: an hour)
python tools/faults.py --not-run          make those that `faults.csv` has no result of

A fault is a text that stands once in one file, the wrong text in its place, and the tests that are to notice it. A
change of the code that moves the text moves the fault as well: it is written anew in `faults.yaml`, and stays as wrong
as it was. Each is made in a copy of the tracked files; its tests have a minute of a processor. `faults.csv` has the
last result of each: `caught`, `missed` or `too slow` (none failed within the minute), and the test that noticed.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
FAULTS, RESULTS = Path(__file__).with_name("faults.yaml"), Path(__file__).with_name("faults.csv")
SECONDS, WAITED = 60, 180
"""Of a processor, and in all where ranks wait for one another or the machine is busy."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A mistake in one place of the code."""

    name: str
    file: str
    before: str
    after: str
    tests: str
    """Files and folders, with a blank between two."""

    def problem(self, root: Path) -> str | None:
        """Why it cannot be made in a tree; None where it can."""
        path = root / self.file
        if not path.is_file():
            return f"there is no {self.file}"
        if (count := path.read_text("utf-8").count(self.before)) != 1:
            return f"{self.file} has {count or 'no'} places with {self.before!r}: write the fault anew"
        missing = [one for one in self.tests.split() if not (root / one.partition("::")[0]).exists()]
        return f"there are no tests {' '.join(missing)}" if missing else None

    @contextmanager
    def made(self, root: Path) -> Iterator[None]:
        """A tree with the fault."""
        path = root / self.file
        right = path.read_text("utf-8")
        path.write_text(right.replace(self.before, self.after), "utf-8")
        try:
            yield
        finally:
            path.write_text(right, "utf-8")


def read_faults() -> list[Fault]:
    """All of them."""
    return [Fault(**fields) for fields in yaml.safe_load(FAULTS.read_text("utf-8"))]


def read_results() -> dict[str, dict[str, str]]:
    """Name of a fault → its last result."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return {row["fault"]: row for row in csv.DictReader(file)}


def write_results(faults: list[Fault], results: dict[str, dict[str, str]]) -> None:
    """The table, a row for each fault in their order."""
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ("fault", "result", "seconds", "noticed by"), lineterminator="\n")
        table.writeheader()
        for fault in faults:
            table.writerow(results.get(fault.name) or {"fault": fault.name, "result": "not run"})


def copied(folder: Path) -> None:
    """The tracked files, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def tried(fault: Fault, root: Path) -> dict[str, str]:
    """Make a fault and run its tests: the row of the table. The test that fails has to pass without the fault."""
    began = time.monotonic()
    with fault.made(root):
        code, failed = tested(root, *fault.tests.split())
    result = "missed" if code == 0 else "too slow" if code < 0 else "caught"
    if result == "caught" and (not failed or tested(root, failed)[0] != 0):
        result = "not run"
    seconds = f"{time.monotonic() - began:.0f}"
    return {"fault": fault.name, "result": result, "seconds": seconds, "noticed by": failed}


def tested(root: Path, *tests: str) -> tuple[int, str]:
    """Exit code of pytest, below zero where it took too long, and the first test that failed."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONPYCACHEPREFIX": str(root / ".compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    with tempfile.TemporaryFile("w+") as printed:
        # a session of its own, so that ranks that tests have started end with them
        running = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1)),
        )
        with suppress(subprocess.TimeoutExpired):
            running.wait(WAITED)
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        code = running.wait()
        printed.seek(0)
        failed = _FAILED.search(printed.read())
    return code, failed[1] if failed and code > 0 else ""


def main() -> int:
    """Check, or make faults; exit code 1 where one cannot be made or is missed."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("words", nargs="*", metavar="WORD")
    options.add_argument("--check", action="store_true", help="only look whether every fault can be made")
    options.add_argument("--not-run", action="store_true", help="make those without a result")
    asked = options.parse_args()
    faults, results = read_faults(), read_results()
    names = Counter(fault.name for fault in faults)
    problems = [f"{name}: there are {count} of this name" for name, count in names.items() if count > 1]
    broken = {fault.name: why for fault in faults if (why := fault.problem(ROOT))}
    print(
        *problems,
        *(f"{name}: {why}" for name, why in broken.items()),
        sep="\n",
        end="\n" * bool(problems or broken),
    )
    print(f"{len(faults) - len(broken)} of {len(faults)} faults can be made")
    if asked.check or problems:
        return int(bool(problems or broken))
    some = [one for one in faults if all(word in f"{one.name} {one.file}" for word in asked.words)]
    some = [one for one in some if one.name not in broken]
    if asked.not_run:
        some = [one for one in some if results.get(one.name, {}).get("result", "not run") == "not run"]
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        root = Path(name).resolve()
        copied(root)
        for fault in some:
            row = tried(fault, root)
            print(f"{row['result']:8} {row['seconds']:>3} s  {fault.name}  {row['noticed by']}", flush=True)
            results = read_results() | {fault.name: row}  # another process may have written meanwhile
            write_results(faults, results)
    of_each = Counter(results.get(one.name, {}).get("result", "not run") for one in some)
    print(", ".join(f"{count} {result}" for result, count in of_each.most_common()))
    if ran := of_each["caught"] + of_each["missed"]:
        print(f"caught {of_each['caught'] / ran:.0%} of those that were made and ran to an end")
    return int(of_each["missed"] > 0 or bool(broken))


if __name__ == "__main__":
    sys.exit(main())
