"""HiGHS through PuLP without output, since stdout carries answers that programs read."""

from __future__ import annotations

import highspy
import pulp


class SilentHiGHS(pulp.HiGHS):  # type: ignore[misc]
    """`pulp.HiGHS` without output, also while its model is made; takes PuLP's options, and HiGHS's own by name."""

    def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 -- PuLP's name
        """Make the model as PuLP does."""
        lp.solverModel = model = _SilentModel()  # type: ignore[no-untyped-call]
        if self.callbackTuple:
            model.setCallback(*self.callbackTuple)
        for kind in self.callbacksToActivate or ():
            model.startCallback(kind)
        options = {
            "output_flag": False,
            "mip_rel_gap": self.gapRel,
            "mip_abs_gap": self.gapAbs,
            "threads": self.threads,
            "time_limit": None if self.timeLimit is None else float(self.timeLimit),
            **self.optionsDict,
        }
        for name, value in options.items():
            if value is not None:
                model.setOptionValue(name, value)


class _SilentModel(highspy.Highs):
    """A model with output turned off before its callbacks are enabled: HiGHS 1.16 prints its name there."""

    def enableCallbacks(self) -> None:  # noqa: N802 -- HiGHS's name
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]
