"""``gcomm demo``: a small language model, trained data-parallel, once exact and once a codec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

import gcomm
from gcomm.cli import plots, present
from gcomm.cli.bench import (
    codec_names,
    failures_end_the_command,
    number_of_ranks,
    rank_options,
    require_transport,
)
from gcomm.cli.launch import Message, Ranks, run_ranks
from gcomm.cli.sizes import format_bytes
from gcomm.cli.world import have

DEFAULT_CODECS = "fp8_e4m3,nvfp4,gift+nvfp4,hadamard+int4"
SHAPE = {"width": 192, "layers": 3, "heads": 4, "hidden": 512, "context": 128}
QUICK_SHAPE = {"width": 96, "layers": 2, "heads": 4, "hidden": 256, "context": 64}
QUICK_STEPS = 12


@click.command()
@click.option(
    "--codecs",
    default=DEFAULT_CODECS,
    show_default=True,
    metavar="A,B,...",
    help="Codecs to compare with fp32.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Steps of training.  [default: 240]")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and batches."
)
@click.option(
    "--output",
    type=click.Path(file_okay=False),
    default="demo_output",
    show_default=True,
    help="Folder of loss.png and demo.json.",
)
@click.option("--quick", is_flag=True, help=f"A tiny model and {QUICK_STEPS} steps: does it work at all?")
@rank_options
def demo(**options: Any) -> None:
    """Train a byte-level LLaMA-style model on the source of Python's standard library.

    Two ranks train the same model side by side with exact gradients and with each codec, from the same weights
    and on the same batches. Then: losses, bytes on the wire, time a step, and whether all ranks hold the same
    bits.
    """
    if not have("torch"):
        raise click.UsageError("the demo needs torch, which is not installed: pip install 'gcomm[torch]'")
    plots.require_matplotlib()
    require_transport(options["transport"])
    ranks = number_of_ranks(options["nproc"], options["transport"])
    names = [name for name in codec_names(options["codecs"]) if name not in ("none", "fp32")]
    plan = _plan(names, options["steps"], options["seed"], quick=options["quick"])
    rows = _train(plan, ranks, options["transport"])
    if rows:
        _report(rows, Path(options["output"]))


def _plan(names: list[str], steps: int | None, seed: int, *, quick: bool) -> Message:
    return {
        "codecs": names,
        "steps": steps or (QUICK_STEPS if quick else 240),
        "sequences": 4 if quick else 8,
        "evaluations": 2 if quick else 8,
        "evaluation_sequences": 16 if quick else 128,
        "seed": seed,
        "shape": QUICK_SHAPE if quick else SHAPE,
    }


def _train(plan: Message, ranks: int, transport: str) -> list[Message]:
    rows: list[Message] = []
    with present.progress(total=plan["steps"]) as status:

        def on_message(message: Message) -> None:
            if "result" in message:
                rows.extend(message["result"])
                return
            if message["step"] == 1:
                status.note(
                    f"training {len(message['losses'])} models side by side, {plan['steps']} steps each; the "
                    "results follow at the end"
                )
            losses = "  ".join(f"{name} {loss:.3f}" for name, loss in message["losses"].items())
            status.say(f"step {message['step']}, loss: {losses}")
            status.step()

        with failures_end_the_command():
            run_ranks("gcomm.cli.demo_rank:train", plan, Ranks(transport, ranks), on_message)
    return rows


def _report(rows: list[Message], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = rows[0]
    table = Table(
        title=f"gcomm {gcomm.__version__} demo: {first['parameters'] / 1e6:.2f} M parameters, "
        f"{first['world_size']} ranks, {first['steps']} steps",
        caption="losses in nats a byte; bytes are what one rank sends; the time at 1 Gbit/s follows from them",
    )
    table.add_column("gradients")
    headings = (
        "train loss",
        "eval loss",
        "gap to fp32",
        "bytes a step",
        "fewer",
        "at 1 Gbit/s",
        "exchange",
        "step",
    )
    for heading in (*headings, "ranks agree"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["codec"],
            f"{row['train_loss']:.4f}",
            f"{row['eval_loss']:.4f}",
            f"{row['gap_percent']:+.2f} %" if row is not first else "-",
            format_bytes(row["wire_bytes_per_step"]),
            f"{first['wire_bytes_per_step'] / row['wire_bytes_per_step']:.2f} x"
            if row["wire_bytes_per_step"]
            else "-",
            f"{row['wire_bytes_per_step'] * 8e-6:.1f} ms",
            f"{row['exchange_ms']:.1f} ms",
            f"{row['step_ms']:.0f} ms",
            "bit for bit" if row["ranks_identical"] else "NO",
        )
    present.table_console().print(table)
    present.write_json(rows, str(folder / "demo.json"))
    _plot(rows, folder / "loss.png")
    click.echo(f"plot: {folder / 'loss.png'}   numbers: {folder / 'demo.json'}")
    different = [row["codec"] for row in rows if not row["ranks_identical"]]
    if different:
        click.echo(f"gcomm: the ranks' parameters differ after training with {', '.join(different)}", err=True)
        raise SystemExit(1)


def _plot(rows: list[Message], path: Path) -> None:
    figure, (left, right) = plots.new_figure(2, 11.0)
    for number, row in enumerate(rows):
        exact = number == 0
        style: dict[str, Any] = {
            "color": "0.2" if exact else f"C{number - 1}",
            "linestyle": "--" if exact else "-",
        }
        curve = np.array(row["train_curve"])
        window = max(1, curve.size // 20)
        smooth = np.convolve(curve, np.ones(window) / window, mode="valid")
        left.plot(np.arange(window, curve.size + 1), smooth, label=row["codec"], alpha=0.85, **style)
        steps, values = zip(*row["eval_curve"], strict=True)
        ratio = rows[0]["wire_bytes_per_step"] / max(1, row["wire_bytes_per_step"])
        label = row["codec"] if exact else f"{row['codec']} ({ratio:.1f}x fewer bytes)"
        right.plot(steps, values, marker="o", markersize=4, label=label, **style)
    left.set_title(f"training loss, mean of {window} steps")
    right.set_title("evaluation loss")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.set_ylabel("nats a byte")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    plots.save_figure(figure, str(path))
