"""Packages of an extra: asked for where they are first needed, so that all else works without them."""

from __future__ import annotations

from importlib.util import find_spec

from cost_models.errors import HostError


def require_installed(what: str, **requirements: str) -> None:
    """Raises HostError where a package that `what` needs is missing: `require_installed("`run`", torch="torch>=2")`.

    The hint has all of them, as packages of one extra come together.
    """
    missing = [package for package in requirements if find_spec(package) is None]
    if missing:
        raise HostError(
            f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint="pip install " + " ".join(f"'{one}'" for one in requirements.values()),
        )
