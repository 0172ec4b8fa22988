"""What the pages show is what is printed: their commands are run."""

from __future__ import annotations

from pathlib import Path

import console_blocks
import pytest
from console_blocks import ROOT, Outcome, Step, complaints, play
from effort import THOROUGH

PAGES = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "concepts" / "search-and-proof.md",
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]
USUAL = ("README", "AGENTS", "calibrating-from-runs", "from-a-log", "other-trainers", "your-model")
"""Those that take a few seconds; the others are run in a thorough test: some calibrate, train or search for minutes."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page", PAGES if THOROUGH else [one for one in PAGES if one.stem in USUAL], ids=lambda page: page.stem
)
def test_the_page_shows_what_is_printed(page: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wrong = [complaint for step, found in play(page, tmp_path) for complaint in complaints(step, found)]
    assert not wrong, "\n\n".join(wrong)


def test_every_console_block_is_read() -> None:
    """No page has a command in a block that the reader of blocks passes over."""
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [line for line in text.splitlines() if line.startswith("$ ")]
        assert len(lines) == sum(not step.hidden for step in console_blocks.steps(text)), page


PAGE = """
<!-- file: job.yaml
kind: training
-->
<!-- first: meshwright catalog gpus -->
```console
$ meshwright plan a \\
    b
step 1.2 s
...
done
$ meshwright explain a
```

<!-- not run: it needs GPUs -->
```console
$ meshwright run a
```

```yaml
kind: cluster
name: box
```
"""


def test_a_page_is_read_as_a_session() -> None:
    first, plan, explain, run = console_blocks.steps(PAGE)
    assert (first.command, first.hidden) == ("meshwright catalog gpus", True)
    assert plan.command.split() == ["meshwright", "plan", "a", "b"]
    assert plan.shown == "step 1.2 s\n...\ndone\n"
    assert (explain.shown, explain.not_run, run.not_run) == ("", "", "it needs GPUs")
    assert console_blocks.files(PAGE) == {
        "job.yaml": "kind: training\n",
        "box.yaml": "kind: cluster\nname: box\n",
    }


def test_only_the_time_of_a_search_may_differ() -> None:
    for printed, same in [
        ("step 1.2 s\nwhat is left out\nproved in 9 ms\n", True),
        ("step\n  1.2 s\nproved\n  in 2.1 s\n", True),
        ("step 1.3 s\nproved in 1.2 s\n", False),
        ("stop 1.2 s\nproved in 1.2 s\n", False),
        ("step 1.2 s\nproved within 1.2 s\n", False),
    ]:
        step = Step(command="meshwright plan", shown="step 1.2 s\n...\nproved in 1.2 s\n")
        assert (complaints(step, Outcome(out=printed, both=printed)) == []) is same
