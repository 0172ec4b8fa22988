"""What is wrong with tables, or what is asked of them, is told at once, with place and hint, or what would fit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from command_line import SHOP

ASKED = ("dgx-h100", "--gpus", "2", "--global-batch", "8K")
SERVED = ("dgx-h100", "--gpus", "2", "--serve", "--cache", "1GiB")


@pytest.mark.parametrize("more", [(), ("--together", "user,item")])
def test_an_unknown_recommender_is_all_that_is_said(meshwright, more: tuple[str, ...]) -> None:
    told = meshwright("plan", "dlrm-dcnv3", *ASKED, *more)
    assert told.code == 2
    assert told.err.splitlines()[0] == "error: unknown model `dlrm-dcnv3`"
    assert "--" not in told.err


def written(folder: Path, *changes: tuple[str, str]) -> str:
    text = SHOP
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "shop.yaml").write_text(text)
    return str(folder / "shop.yaml")


WRONG = [
    ("rows: 4000000 -> rows: 0", "shop.yaml:8  tables[0].rows: must be above zero"),
    ("pooling: 8.0 -> pooling: 0", "shop.yaml:9  tables[1].pooling:"),
    ("count: 2 -> count: 0", "shop.yaml:10  tables[2].count:"),
    ("pooling: 2.0 -> pooling: 2000000", "tables[0].pooling: must be at most 1e+06"),
    ("name: item -> name: user", "shop.yaml:9  tables[1].name: two tables are called `user`; the other is"),
    ("name: item -> name: shelf.1", "tables[2].name: two tables are called `shelf.1`"),
    ("name: item -> name: shelf", "tables[2].name: two tables are called `shelf`"),
    ("pooling: 2.0 -> combiner: max", "shop.yaml:8  tables[0].combiner: `max` is not one of"),
    ("pooling: 8.0 -> combiner: meen", "is not one of `sum`, `mean`, `concat`; did you mean `mean`?"),
    ("pooling: 2.0 -> histogram: [[9, 1.0]]", "`histogram` counts 9 rows, the table has 4000000"),
    ("pooling: 8.0 -> histogram: nowhere.csv", "shop.yaml:9  tables[1].histogram: cannot read"),
    ("width: 64, count: 2 -> width: 64, histogram: short.npy", "counts 3 rows, the table has 20,000"),
    ("- {name: user -> - &user {name: user", ""),
    ("- {name: item -> - *user\n- {name: item", "tables[1].name: two tables are called `user`; the other is"),
]
TOGETHER = (WRONG[:3], *([one] for one in WRONG[3:-2]), WRONG[-2:])


@pytest.mark.parametrize("words", [ASKED, SERVED], ids=["train", "serve"])
@pytest.mark.parametrize("wrong", TOGETHER)
def test_every_wrong_table_is_named_with_its_line(meshwright, tmp_path, words, wrong) -> None:
    np.save(tmp_path / "short.npy", np.ones(3))
    changes = [tuple(change.split(" -> ")) for change, _ in wrong]
    told = meshwright.refusal("plan", written(tmp_path, *changes), *words)
    assert [said for _, said in wrong if " ".join(said.split()) not in told] == []


def test_a_width_that_nothing_divides_says_so(meshwright, tmp_path) -> None:
    model = written(tmp_path, ("width: 64, pooling: 2.0", "width: 7, pooling: 2.0"))
    told = meshwright.refusal("plan", model, *ASKED, "--fix", "table:0=column2")
    assert "7 columns, which 2 slices do not divide; no number of slices up to 2 does" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), ["`column2` needs 4.7 TiB of a GPU's", "9.3 TiB of each node's host memory"]),
        (("--fix", "table:0=row"), ["does not fit, held as `row`", "4.7 TiB a GPU would do"]),
        (("--host-memory", "5TiB"), ["9.3 TiB of a host's 5.0 TiB", "4.7 TiB a GPU would do"]),
        (("--gpus", "16"), ["4.7 TiB of each node's host memory would do"]),
    ],
)
def test_a_table_that_fits_nowhere_says_what_would_hold_it(meshwright, tmp_path, words, said) -> None:
    """Two slices in one node fill that node's host with the whole table, however they are cut."""
    answer = meshwright("plan", written(tmp_path, ("rows: 4000000", "rows: 40000000000")), *ASKED, *words)
    assert answer.code == 1
    for one in ("table 0 (`user`), 9.3 TiB, does not fit", *said):
        assert one in " ".join(answer.err.split())


def test_tables_that_do_not_fit_together_say_so_of_both_memories(meshwright, tmp_path) -> None:
    model = written(tmp_path, ("rows: 20000, width: 64, count: 2", "rows: 20000000, width: 64, count: 2000"))
    told = " ".join(meshwright("plan", model, *ASKED).err.split())
    assert "needs: 9.3 TiB or more; GPUs have 147.7 GiB, and hosts 2.0 TiB" in told


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system has no such names")
@pytest.mark.parametrize(
    "words", [("plan", *ASKED), ("plan", *SERVED), ("estimate", *ASKED, "--layout", "table:0-3=copy")]
)
def test_a_model_from_a_pipe_is_read_once(meshwright, words: tuple[str, ...]) -> None:
    """`meshwright plan <(make-model) ...`, as of a transformer."""
    reading, writing = os.pipe()
    os.write(writing, SHOP.encode())
    os.close(writing)
    answer = meshwright(words[0], f"/dev/fd/{reading}", *words[1:])
    os.close(reading)
    assert answer.code == 0, answer.err
    assert "shop" in answer.out
