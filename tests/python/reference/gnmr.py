"""The controller in plain Python floats, written from docs/gnmr.md: it shares nothing with the library."""

from __future__ import annotations

import math
from typing import Any


class History:
    def __init__(self) -> None:
        self.mean = 0.0
        self.count = 0
        self.ratios: list[float] = []  # by place in the ring
        self.place = 0
        self.level = 0
        self.until = -1
        self.seen = -1
        self.last = (1.0, 0.0)
        self.why = "none"


class Reference:
    def __init__(self, *, tau, tau_delta, window, warmup, max_ops, lock, levels=4):
        self.tau, self.tau_delta, self.window, self.warmup = tau, tau_delta, window, warmup
        self.max_ops, self.lock, self.levels = max_ops, lock, levels
        self.units: dict[str, History] = {}
        self.step = -1
        self.refused: list[tuple[str, dict[str, Any]]] = []

    def recent(self, unit: History) -> float:
        values = unit.ratios
        if not values:
            return 1.0
        # Places 0, 4, 8... are added up, then 1, 5, 9..., and so on.
        parts = [0.0] * 4
        for place, value in enumerate(values):
            parts[place % 4] += value
        return ((parts[0] + parts[1]) + (parts[2] + parts[3])) / len(values)

    def observe(self, norms: dict[str, float], step: int | None = None) -> dict[str, dict[str, Any]]:
        step = self.step + 1 if step is None else step
        self.step = step
        actions: dict[str, dict[str, Any]] = {}
        candidates = []
        for name, norm in norms.items():
            unit = self.units.setdefault(name, History())
            unit.seen = step
            locked = step <= unit.until
            if not math.isfinite(norm):
                rho = delta = math.inf
                why = "nonfinite"
            else:
                if unit.count and unit.mean == 0 and norm > 0:
                    unit.count, unit.ratios, unit.place = 0, [], 0
                if unit.count == 0 or unit.mean == norm == 0:
                    rho = 1.0
                else:
                    rho = norm / unit.mean if unit.mean else math.inf
                delta = rho - self.recent(unit)
                why = "none"
                if unit.count >= max(self.warmup, 1):
                    why = "rho" if rho > self.tau else "delta" if delta > self.tau_delta else "none"
            unit.last = (rho, delta)
            warm = unit.count >= max(self.warmup, 1)
            act = {"level": 0, "scale": 1.0, "until": step, "reason": why, "rho": rho, "delta": delta}
            if why == "nonfinite":
                act |= {"kind": "skip", "scale": 0.0}
                if locked:
                    act |= {"level": unit.level, "until": unit.until}
                actions[name] = act
            elif why != "none":
                act |= {"kind": "clip" if rho > self.tau else "recover"}
                if rho > self.tau:
                    act |= {"scale": self.tau * unit.mean / norm}
            if why != "none" and warm and not locked:
                candidates.append((name, act))
            if math.isfinite(norm):
                value = min(norm, self.tau * unit.mean) if warm else norm
                ratio = min(rho, self.tau, 1e150)
                if len(unit.ratios) < self.window:
                    unit.ratios.append(ratio)
                else:
                    unit.ratios[unit.place] = ratio
                unit.place = (unit.place + 1) % self.window
                unit.count += 1
                unit.mean += (value - unit.mean) / min(unit.count, self.window)
        room = self.max_ops - sum(step <= unit.until for unit in self.units.values())
        candidates.sort(key=lambda each: (-each[1]["rho"], each[0].encode()))
        self.refused = []
        for name, act in candidates:
            unit = self.units[name]
            if room <= 0:
                self.refused.append((name, act))
                continue
            room -= 1
            again = unit.until >= 0 and step - unit.until <= self.lock
            unit.level = min((unit.level if again else 0) + 1, self.levels - 1)
            unit.until = step + self.lock
            unit.why = act["reason"]
            act |= {"level": unit.level, "until": unit.until}
            actions[name] = act
        for name, unit in self.units.items():
            if step <= unit.until and name not in actions:
                rho, delta = unit.last
                actions[name] = {
                    "kind": "recover",
                    "level": unit.level,
                    "scale": 1.0,
                    "until": unit.until,
                    "reason": unit.why,
                    "rho": rho,
                    "delta": delta,
                }
        return actions

    def level(self, name: str) -> int:
        unit = self.units[name]
        return unit.level if unit.until > self.step else 0
