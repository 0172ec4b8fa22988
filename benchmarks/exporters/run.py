"""Random layouts exported to every trainer, and read back by its own parser: a table for the guide.

    python -m benchmarks.exporters.run [COUNT] > table.md

Layouts that are legal for the trainer are drawn until COUNT could be written. `equal`: the parser read the degrees,
batch, ZeRO stage, recompute and stages of the plan. `not expressible`: drawn beside them, and the trainer has no words
for some of it. `refused`: of COUNT others that are legal for the stack, those that the trainer's rules refuse.
"""

from __future__ import annotations

import sys
from collections import Counter

from benchmarks.exporters import compare, peers
from benchmarks.exporters.draw import draw
from benchmarks.exporters.targets import TARGETS, Read
from planner.formats.exporter import Job, settings_of
from planner.formats.trainers import refusals

_SEED = 18
_MOST = 4
"""Times as many are drawn at most."""


def verdicts(name: str, one: Read, count: int) -> Counter[str]:
    """What became of layouts drawn until so many could be written, and of so many more of which some are refused."""
    found: Counter[str] = Counter()
    cases, wanted, broken = [], [], []
    for question, layout in draw(one.stack, _MOST * count, _SEED, name, one.models):
        asked = Job(question, layout)
        fields = one.target.field_exports(asked)
        if any(field.verdict == "lacking" for field in fields):
            found["not expressible"] += 1
            continue
        cases.append(one.case(asked, settings_of(fields)))
        wanted.append((question, compare.planned(question, layout)))
        if len(cases) == count:
            break
    for question, layout in draw(one.stack, count, _SEED + 1, None, one.models):
        if refusals(name, question, layout):
            found["refused"] += 1
            fields = one.target.field_exports(Job(question, layout))
            if not any(field.verdict == "lacking" for field in fields):
                broken.append(one.case(Job(question, layout), settings_of(fields)))
    answers = peers.read_back(one.peer, cases + broken)
    for (question, plan), answer in zip(wanted, answers, strict=False):
        read = one.read(answer["values"], question) if "values" in answer else None
        same = read == {key: value for key, value in plan.items() if key not in one.unread}
        found["equal" if same else "different"] += 1
    found["parser refuses too"] = sum("refused" in answer for answer in answers[len(cases) :])
    found["written all the same"] = len(broken)
    return found


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print("| target | equal | different | not expressible | refused | parser refuses too | read by |")
    print("| --- | --: | --: | --: | --: | --: | --- |")
    for name, one in TARGETS.items():
        if why := peers.lacking(one.peer):
            print(f"{name}: {why}", file=sys.stderr)
            continue
        found = verdicts(name, one, count)
        cells = [found[what] for what in ("equal", "different", "not expressible")]
        both = f"{found['parser refuses too']} of {found['written all the same']}"
        row = [name, *cells, f"{found['refused']} of {count}", both, one.read_by]
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
