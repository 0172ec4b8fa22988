"""What is packed: every data file of the four packages and no test; and it works where it is installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from effort import THOROUGH

ROOT = Path(__file__).parents[3]
PACKAGES = ("cost_models", "planner", "executor", "meshwright")
PYTHONS = ("3.11", "3.12", "3.13")

_BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # which building changes
build_meta.build_wheel(out)
build_meta.build_sdist(out)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with wheel and sdist, built from a copy so that the tree stays as it is."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    subprocess.run([sys.executable, "-c", _BUILD, str(out)], cwd=source, check=True, capture_output=True)
    return out


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(built) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        told = wheel.read(metadata).decode("utf-8")
    there = {
        file.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert packed == there
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed
    needed = [
        line for line in told.splitlines() if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    assert needed
    assert not [line for line in needed if "torch" in line]


@pytest.mark.skipif(not THOROUGH, reason="installs the dependencies into empty environments (THOROUGH)")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
@pytest.mark.parametrize("version", PYTHONS)
def test_it_installs_without_torch_and_plans(built, tmp_path, version: str, kind: str) -> None:
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True).returncode != 0:
        pytest.skip(f"no Python {version} on this machine")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    its_own = tmp_path / "venv" / "bin" / "python"
    subprocess.run([its_own, "-m", "pip", "install", "-q", next(built.glob(kind))], check=True)
    done = subprocess.run(
        [its_own, Path(__file__).with_name("smoke.py"), tmp_path],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_release_notes_are_the_changelogs_section() -> None:
    spec = importlib.util.spec_from_file_location("release_notes", ROOT / "tools" / "release_notes.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    changelog = "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.2.0 - 2026-11-22\n\n- Old.\n"
    assert tool.release_notes("0.2.0", changelog) == "# Meshwright 0.2.0 - 2026-11-22\n\n- Old.\n"
    assert tool.release_notes("Unreleased", changelog) == "# Meshwright Unreleased\n\n- New.\n"
    with pytest.raises(KeyError, match=r"it has Unreleased, 0\.2\.0"):
        tool.release_notes("9", changelog)
    assert tool.release_notes("0.2.0", tool.CHANGELOG.read_text("utf-8")).count("\n- ") > 1
