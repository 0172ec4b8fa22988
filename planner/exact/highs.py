"""HiGHS through PuLP without output, since stdout carries answers that programs read."""

from __future__ import annotations

import highspy
import pulp


class SilentHiGHS(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS solver for PuLP on one thread without output, even while the model is made; takes HiGHS's own
    options by name."""

    def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 -- PuLP's name
        """Create the HiGHS model with callbacks and options, as PuLP's method does, but without output."""
        lp.solverModel = model = _SilentModel()  # type: ignore[no-untyped-call]
        model.setCallback(*self.callbackTuple)
        for kind in self.callbacksToActivate:
            model.startCallback(kind)
        for name, value in ({"output_flag": False, "threads": 1} | self.optionsDict).items():
            model.setOptionValue(name, value)


class _SilentModel(highspy.Highs):
    """HiGHS model with output turned off before callbacks are enabled, as HiGHS 1.16 prints its name there."""

    def enableCallbacks(self) -> None:  # noqa: N802 -- HiGHS's name
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]
