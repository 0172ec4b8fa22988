"""The notebooks run as they stand, are short, and keep their outputs.

Two of them run every time, all of them in a thorough run: some search, validate or train for a minute.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from effort import THOROUGH
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
QUICK = ("01_quickstart", "09_what_i_run_today")
MAX_CELLS = 12
MAX_DEFINITION_LINES = 5
CELL_SECONDS = 240


def read(path: Path) -> Any:
    """A notebook; nbformat has no types."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def test_short_and_with_outputs() -> None:
    assert len(NOTEBOOKS) == 9
    for path in NOTEBOOKS:
        notebook = read(path)
        nbformat.validate(notebook)
        assert len(notebook.cells) < MAX_CELLS
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            assert cell.outputs, cell.source
            assert not any(output.output_type in ("error", "stderr") for output in cell.outputs)
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    assert (node.end_lineno or 0) - node.lineno < MAX_DEFINITION_LINES


@pytest.mark.parametrize(
    "path", [one for one in NOTEBOOKS if THOROUGH or one.stem in QUICK], ids=lambda path: path.stem
)
@pytest.mark.timeout(4 * CELL_SECONDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq", "ignore::DeprecationWarning:jupyter_client")
def test_runs(path, tmp_path, monkeypatch) -> None:

    monkeypatch.setenv("PYTHONWARNINGS", "error::UserWarning:meshwright")
    notebook = read(path)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=resources).execute()
