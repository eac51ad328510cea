"""Predicts the time of all_reduce from a measurement: other sizes, codecs, links and world sizes.

``model.py`` says what a call costs, ``pipeline.py`` simulates the engine's schedule (compiled by numba),
``fit.py`` finds a machine's costs in rows of ``gcomm bench``. docs/plan.md has the formulas and how well they
predict.
"""

from gcomm.planner.fit import Fit, FitError, Measurements, fit, read_rows, sort_rows
from gcomm.planner.model import Codec, Costs, Layout, Prediction, predict

__all__ = [
    "Codec",
    "Costs",
    "Fit",
    "FitError",
    "Layout",
    "Measurements",
    "Prediction",
    "fit",
    "predict",
    "read_rows",
    "sort_rows",
]
