"""Final loss with compressed gradients against plain DistributedDataParallel's, paired by seed.

``python -m benchmarks.ddp.loss --json rows.json``: the demo's model (width 128, two blocks) under AdamW, two
ranks with four sequences of 128 bytes each a step; the learning rate falls to zero, so that the last loss is no
lottery.
"""

from __future__ import annotations

import math

import click
import numpy as np
import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gcomm.cli.demo_data import evaluation_batches, load_corpus, training_batch
from gcomm.cli.demo_model import VOCABULARY, ByteModel, Shape
from gcomm.cli.launch import Emit, Message, Ranks, run_ranks
from gcomm.cli.present import write_json
from gcomm.cli.world import World, under_launcher
from gcomm.pytorch import DDPState, ddp_hook

PLAIN = "plain"
EVALUATED = 256  # sequences


def _loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens[:, :-1]).reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def measure(world: World, config: Message, emit: Emit) -> None:
    """Emit a row for each seed and method: the loss on text that nobody trained on, in nats a byte."""
    corpus = load_corpus()
    shape = Shape(width=128, layers=2, hidden=384)
    length = shape.context + 1
    held_out = evaluation_batches(corpus, world.rank, world.size, total=EVALUATED, length=length, sequences=16)
    for seed in range(config["seeds"]):
        for method in config["methods"]:
            ddp = DistributedDataParallel(ByteModel(shape, seed))
            if method != PLAIN:
                ddp.register_comm_hook(DDPState(method, ddp), ddp_hook)
            optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.0, betas=(0.9, 0.95))
            for step in range(config["steps"]):
                ramp = min(1.0, (step + 1) / 20)
                rate = 3e-3 * ramp * 0.5 * (1 + math.cos(math.pi * step / config["steps"]))
                for group in optimizer.param_groups:
                    group["lr"] = rate
                tokens = training_batch(corpus, seed, step, world.rank, sequences=4, length=length)
                optimizer.zero_grad()
                _loss(ddp, tokens).backward()
                optimizer.step()
            with torch.no_grad():
                mine = sum(float(_loss(ddp.module, each)) * len(each) for each in held_out)
            total = float(world.gather(np.array([mine])).sum()) / EVALUATED
            emit({"row": {"seed": seed, "method": method, "loss": total, "steps": config["steps"]}})


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--methods", default=f"{PLAIN},nvfp4,gift+nvfp4", show_default=True)
@click.option("--json", "json_file", required=True)
def main(seeds: int, steps: int, methods: str, json_file: str) -> None:
    """Measure and write the rows."""
    rows: list[Message] = []

    def on_row(message: Message) -> None:
        rows.append(message["row"])
        click.echo("{seed}  {method:16} {loss:.4f}".format(**message["row"]))

    run_ranks(
        "benchmarks.ddp.loss:measure",
        {"seeds": seeds, "steps": steps, "methods": methods.split(",")},
        Ranks("tcp", 0 if under_launcher() else 2, torch_group=True),
        on_row,
    )
    if rows:
        write_json(rows, json_file)


if __name__ == "__main__":
    main()
