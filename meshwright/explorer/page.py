"""The explorer's page: its controls as the address has them; answers come later, from its script."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.explorer.asking import choices, sought
from meshwright.explorer.controls import GROUPS, LONGEST, Control
from meshwright.explorer.starting import Start
from meshwright.pages.html import templates

SLOTS = ("error", "answer", "ends", "why", "step", "layouts", "memory", "ranking", "changes", "plan")
"""Places of the parts, in their order on the page."""


def page_of(start: Start, said: Mapping[str, str]) -> str:
    """The explorer's page, its controls set from the address; the rest of the address is left to the answer."""
    shown = {**sought(start, {}).shown, **start.names}
    return (
        templates("meshwright.explorer")
        .get_template("page.html.j2")
        .render(
            title="Meshwright explorer",
            about=f"{start.model.name} on {start.cluster.name}",
            groups=GROUPS,
            said=said,
            shown=shown,
            longest=LONGEST,
            slots=SLOTS,
            choices={control.name: _choices(start, control, said) for control in _listed()},
        )
    )


def _listed() -> list[Control]:
    return [one for group in GROUPS.values() for one in group if one.catalogue not in ("", "choice")]


def _choices(start: Start, control: Control, said: Mapping[str, str]) -> list[str]:
    """What there is to choose from, and what the address names beside it, which its answer refuses."""
    known = choices(start, control.catalogue)
    return list(dict.fromkeys([*known, *filter(None, [said.get(control.name, "")[:LONGEST]])]))
