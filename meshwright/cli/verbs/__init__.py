"""The verbs: each declares its flags, calls the API, and prints the answer; the work is imported when it is called."""

from __future__ import annotations

from meshwright.cli.verbs.advise import advise
from meshwright.cli.verbs.calibrate import calibrate
from meshwright.cli.verbs.catalog import catalog
from meshwright.cli.verbs.cluster import cluster
from meshwright.cli.verbs.compare import compare
from meshwright.cli.verbs.doctor import doctor
from meshwright.cli.verbs.emulate import emulate
from meshwright.cli.verbs.estimate import estimate
from meshwright.cli.verbs.explain import explain
from meshwright.cli.verbs.explore import explore
from meshwright.cli.verbs.export import export, import_
from meshwright.cli.verbs.forecast import forecast
from meshwright.cli.verbs.plan import plan
from meshwright.cli.verbs.plot import plot
from meshwright.cli.verbs.report import report
from meshwright.cli.verbs.run import run
from meshwright.cli.verbs.tokens import tokens
from meshwright.cli.verbs.validate import validate
from meshwright.cli.verbs.verify import verify

VERBS = (
    plan,
    estimate,
    compare,
    explain,
    advise,
    verify,
    forecast,
    plot,
    report,
    explore,
    cluster,
    doctor,
    run,
    emulate,
    export,
    import_,
    tokens,
    calibrate,
    validate,
    catalog,
)
"""In the order of `--help`."""
