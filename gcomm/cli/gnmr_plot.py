"""The timeline of a controller's log."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcomm.cli.plots import new_figure, save_figure
from gcomm.gnmr import Replay

_MOST = 24  # units that get a row of their own
_COLOURS = {"clip": "C1", "skip": "C3", "recover": "C0"}


def plot_timeline(own: Replay, other: Replay | None, path: str) -> None:
    """Norms of the units acted on, above; what was done to which unit when, below, one panel a replay."""
    panels = [("this run", own)] + ([("what if", other)] if other is not None else [])
    figure, axes = new_figure(1 + len(panels), 5.5 * (1 + len(panels)))
    units = _acted_on([replay for _, replay in panels])
    norms = axes[0]
    for unit in units or list(own.norms[0][1] if own.norms else [])[:_MOST]:
        points = [(step, seen[unit]) for step, seen in own.norms if unit in seen]
        norms.plot([p[0] for p in points], [p[1] for p in points], linewidth=0.9, label=unit)
    if norms.lines and any(np.any(np.asarray(line.get_ydata()) > 0) for line in norms.lines):
        norms.set_yscale("log")
    norms.set_xlabel("step")
    norms.set_ylabel("norm (gaps: not finite)")
    if 0 < len(units) <= 8:
        norms.legend(fontsize=8)
    for panel, (title, replay) in zip(axes[1:], panels, strict=True):
        _draw(panel, title, replay, units)
    save_figure(figure, path)


def _acted_on(replays: list[Replay]) -> list[str]:
    counts: dict[str, int] = {}
    for replay in replays:
        for _, actions in replay.actions:
            for unit in actions:
                counts[unit] = counts.get(unit, 0) + 1
    return sorted(counts, key=lambda unit: (-counts[unit], unit))[:_MOST]


def _draw(panel: Any, title: str, replay: Replay, units: list[str]) -> None:
    row = {unit: place for place, unit in enumerate(units)}
    for kind, colour in _COLOURS.items():
        points = [
            (step, row[unit])
            for step, actions in replay.actions
            for unit, action in actions.items()
            if action["kind"] == kind and unit in row
        ]
        panel.scatter(
            [p[0] for p in points], [p[1] for p in points], s=14, marker="s", color=colour, label=kind
        )
    panel.set_yticks(range(len(units)), units, fontsize=8)
    panel.set_xlabel("step")
    panel.set_title(f"{title}: tau {replay.config['tau']:g}, tau_delta {replay.config['tau_delta']:g}")
    panel.legend(loc="upper right", fontsize=8)
