"""GNMR, the stability controller: norms in, bounded actions out. It knows nothing of arrays or codecs.

docs/gnmr.md says what is decided when; :func:`replay` and :func:`calibrate` work on the log of a run.
"""

from ._gnmr_controller import Action, Controller
from ._gnmr_replay import Calibration, Replay, calibrate, replay

__all__ = ["Action", "Calibration", "Controller", "Replay", "calibrate", "replay"]
