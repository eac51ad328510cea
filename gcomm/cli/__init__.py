"""The ``gcomm`` command: bench, plan, doctor, demo and gnmr."""

from __future__ import annotations

import click

import gcomm
from gcomm.cli.bench import bench
from gcomm.cli.bench_codec import codec
from gcomm.cli.bench_link import link
from gcomm.cli.bench_suite import suite
from gcomm.cli.demo import demo
from gcomm.cli.doctor import doctor
from gcomm.cli.gnmr import gnmr
from gcomm.cli.plan import plan


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(gcomm.__version__, prog_name="gcomm")
def main() -> None:
    """Compressed collectives: measure them, look at what this machine offers, see a model train with them."""


bench.add_command(codec)
bench.add_command(link)
bench.add_command(suite)
for _command in (bench, plan, doctor, demo, gnmr):
    main.add_command(_command)
