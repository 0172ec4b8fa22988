"""The surface of the command line: each verb with its flags; the work is imported when the verb is called."""

from __future__ import annotations

from meshwright.cli.commands.evidence import calibrate, catalog, validate
from meshwright.cli.commands.planning import estimate, plan
from meshwright.cli.commands.reading import advise, compare, explain, plot, verify
from meshwright.cli.commands.training import emulate, run, tokens

VERBS = (
    plan,
    estimate,
    compare,
    explain,
    advise,
    verify,
    plot,
    run,
    emulate,
    tokens,
    calibrate,
    validate,
    catalog,
)
"""In the order of `--help`."""
