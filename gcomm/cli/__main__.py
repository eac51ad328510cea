"""``python -m gcomm.cli`` is ``gcomm``."""

from gcomm.cli import main

main(prog_name="gcomm")
