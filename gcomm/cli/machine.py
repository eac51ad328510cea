"""Facts about the machine and the software, for reports."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import gcomm

PACKAGES = ("numpy", "torch", "matplotlib")


def versions() -> dict[str, str]:
    """Versions of gcomm, Python and what they work with."""
    found = {"gcomm": gcomm.__version__, "python": platform.python_version()}
    return {**found, **{package: installed(package) or "not installed" for package in PACKAGES}}


def installed(package: str) -> str | None:
    """The version of a package, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Facts that figures depend on; none of them names the machine."""
    return {
        "processor": _processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
    }


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
