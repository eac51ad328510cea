"""Check that every room of native/ includes only the rooms below it, and the bindings only the C ABI."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# room -> rooms whose headers it may include (besides its own)
MAY_SEE = {
    "base": set[str](),
    "transform": {"base"},
    "codec": {"base", "transform"},
    "transport": {"base"},
    "collective": {"base", "codec", "transform", "transport"},
    "gift": {"base", "codec", "transform", "transport", "collective"},
    "mapl": {"base", "codec", "transform", "transport", "collective"},
    "comm": {"base", "codec", "transform", "transport", "collective", "gift", "mapl"},
    "gnmr": {"base"},
    "capi": {"base", "codec", "transform", "transport", "collective", "gift", "mapl", "comm", "gnmr", "gcomm"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([a-z_0-9]+)/')
SOURCES = {".h", ".hpp", ".cpp", ".inl", ".cu", ".cuh"}


def includes(path: Path) -> list[tuple[int, str]]:
    """Line numbers and first path components of the includes in a file."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            found.append((number, match.group(1)))
    return found


def main() -> int:
    """Print every wrong include; exit status 1 if there is one."""
    wrong = []
    for room, allowed in MAY_SEE.items():
        for path in sorted((ROOT / "native" / room).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            for line, target in includes(path):
                if target in MAY_SEE and target != room and target not in allowed:
                    wrong.append(
                        f"{path.relative_to(ROOT)}:{line}: {room} includes {target}, may see {sorted(allowed)}"
                    )
                if target == "gcomm" and room != "capi":
                    wrong.append(f"{path.relative_to(ROOT)}:{line}: only capi includes the C ABI")
    for path in sorted((ROOT / "bindings").rglob("*")):
        if path.suffix in SOURCES:
            wrong += [
                f"{path.relative_to(ROOT)}:{line}: bindings see gcomm/gcomm.h only, not {target}/"
                for line, target in includes(path)
                if target in MAY_SEE
            ]
    print("\n".join(wrong) if wrong else "layers: every include points downwards")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
