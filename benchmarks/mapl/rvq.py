"""Speed of MAPL's vector quantiser, one thread: ``python -m benchmarks.mapl.rvq --json rows.json``.

The rows are those of benchmarks/native/rvq_speed.cpp, whose program the native build leaves among its tests.
"""

from __future__ import annotations

import json
import subprocess

import click

from gcomm.cli.present import write_json


@click.command()
@click.option("--program", default="build/dev/tests/native/rvq_speed", show_default=True)
@click.option("--repeats", default=15, show_default=True)
@click.option("--json", "json_file", default="-", show_default=True, help="Where the rows go.")
def main(program: str, repeats: int, json_file: str) -> None:
    """Run the program and keep its rows."""
    lines = subprocess.run(
        [program, "--repeats", str(repeats)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    write_json([json.loads(line) for line in lines], json_file)


if __name__ == "__main__":
    main()
