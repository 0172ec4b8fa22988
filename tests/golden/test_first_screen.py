"""The first screen of `plan` is its answer: at most 20 lines of 80 columns, in one order for every kind of question."""

from __future__ import annotations

from pathlib import Path

from meshwright.render.words import lines_of

FROZEN = Path(__file__).parent / "frozen" / "plan"
NO_PLAN = {"largest", "serve"}
"""Answers of `plan --largest` and `plan --serve`, which are tables."""
ANSWERS = {
    path.stem: path.read_text("utf-8")
    for path in sorted(FROZEN.glob("*.txt"))
    if path.stem not in NO_PLAN and not path.with_suffix(".json").exists()
}
ORDER = ["train on", "train with", "shard with", "step", "speed", "memory", "proof", "runner-up"]


def _screen(told: str) -> list[str]:
    """What stdout shows below the command, the ranking of `--top` aside; the frozen text joins lines with times."""
    command, *rest = told.partition("\n--- ")[0].splitlines()
    below = rest[: rest.index("", rest.index("") + 1)] if "--top" in command and rest.count("") > 1 else rest
    return [line for one in below for line in _folded(one)]


def _folded(line: str) -> list[str]:
    """A line that was joined, folded again below its name."""
    if len(line) <= 80:
        return [line]
    first, *rest = lines_of(line[13:], 67)
    return [line[:13] + first, *(" " * 13 + more for more in rest)]


def test_an_answer_fits_a_screen_and_says_what_to_do_first() -> None:
    for name, told in ANSWERS.items():
        screen = _screen(told)
        if not screen or "\n--- stderr\nerror:" in told:  # --quiet, or a refusal
            continue
        assert len(screen) <= 20, name
        assert max(map(len, screen)) <= 80, name
        facts = [line.split("  ")[0] for line in screen[screen.index("") + 1 :] if line[:1].strip()]
        said = [fact for fact in facts if fact in ORDER]
        assert said[0] in ("train on", "train with", "shard with"), name
        assert said == [fact for fact in ORDER if fact in said], name
        assert {"step", "memory", "proof"} <= set(said), name
