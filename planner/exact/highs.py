"""HiGHS through PuLP without output, since stdout carries answers that programs read."""

from __future__ import annotations

import highspy
import pulp


class SilentHiGHS(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS solver for PuLP on one thread that prints nothing; takes HiGHS's options by name."""

    def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 -- PuLP's name
        """Create the HiGHS model of `lp` with callbacks and options, like the PuLP method that it overrides,
        but without output."""
        lp.solverModel = model = _SilentModel()  # type: ignore[no-untyped-call]
        model.setCallback(*self.callbackTuple)
        for kind in self.callbacksToActivate:
            model.startCallback(kind)
        for name, value in ({"output_flag": False, "threads": 1} | self.optionsDict).items():
            model.setOptionValue(name, value)


class _SilentModel(highspy.Highs):
    """HiGHS model with output turned off before callbacks are enabled, when HiGHS 1.16 prints a banner."""

    def enableCallbacks(self) -> None:  # noqa: N802 -- HiGHS's name
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]
