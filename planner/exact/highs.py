"""HiGHS through PuLP without output, since stdout carries answers that programs read."""

from __future__ import annotations

import highspy
import pulp


class SilentHiGHS(pulp.HiGHS):  # type: ignore[misc]
    """`pulp.HiGHS` on one thread without output, also while its model is made; takes HiGHS's own options by name."""

    def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 -- PuLP's name
        """Make the model as PuLP does."""
        lp.solverModel = model = _SilentModel()  # type: ignore[no-untyped-call]
        model.setCallback(*self.callbackTuple)
        for kind in self.callbacksToActivate:
            model.startCallback(kind)
        for name, value in ({"output_flag": False, "threads": 1} | self.optionsDict).items():
            model.setOptionValue(name, value)


class _SilentModel(highspy.Highs):
    """A model with output turned off before its callbacks are enabled: HiGHS 1.16 prints its name there."""

    def enableCallbacks(self) -> None:  # noqa: N802 -- HiGHS's name
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]
