"""A training step with DistributedDataParallel and a hook: ``python -m benchmarks.ddp.step --json rows.json``.

25.2 million parameters in six matrices of 2048 x 2048 with biases, a small batch, SGD. The hooks take turns, a
step each; what a step takes is the slowest rank's time. "compute" is a step without any exchange. PowerSGD gets
a single bucket, as it hangs with several over gloo. Under ``tools/netlab.sh run`` the ranks are its namespaces,
otherwise two processes on the loopback interface.
"""

from __future__ import annotations

import time
from typing import Any

import click
import numpy as np
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gcomm.cli.launch import Emit, Message, Ranks, run_ranks
from gcomm.cli.present import write_json
from gcomm.cli.world import World, under_launcher
from gcomm.pytorch import DDPState, ddp_hook

WIDTH, LAYERS = 2048, 6
PLAIN, COMPUTE, FP16, POWERSGD = "plain", "compute", "fp16_compress_hook", "powerSGD_hook rank 1"
METHODS = (PLAIN, COMPUTE, FP16, POWERSGD, "nvfp4", "fp8_e4m3", "gift+nvfp4")


def model() -> nn.Module:
    """The network, equal on all ranks."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Trainee:
    """One copy of the network and how its gradients travel."""

    def __init__(self, method: str, batch: int, rank: int) -> None:
        self.method = method
        options: dict[str, Any] = {"bucket_cap_mb": 1000} if method == POWERSGD else {}
        options["gradient_as_bucket_view"] = True  # for all: one copy of the gradients less
        self.ddp = DistributedDataParallel(model(), **options)
        self.state: DDPState | None = None
        if method == FP16:
            self.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif method == POWERSGD:
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
            self.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif method not in (PLAIN, COMPUTE):
            self.state = DDPState(method, self.ddp)
            self.ddp.register_comm_hook(self.state, ddp_hook)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(rank)
        self.x, self.y = torch.randn(2, batch, WIDTH, generator=generator)

    def step(self) -> float:
        """Seconds of one step."""
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        if self.method == COMPUTE:
            with self.ddp.no_sync():
                nn.functional.mse_loss(self.ddp(self.x), self.y).backward()
        else:
            nn.functional.mse_loss(self.ddp(self.x), self.y).backward()
        self.optimizer.step()
        return time.perf_counter() - begin


def measure(world: World, config: Message, emit: Emit) -> None:
    """Emit a row for each method: milliseconds of a step, the median over turns of the slowest rank's."""
    trainees = [Trainee(method, config["batch"], world.rank) for method in config["methods"]]
    seconds = np.zeros((len(trainees), config["turns"]))
    for turn in range(-config["warmup"], config["turns"]):
        for number, trainee in enumerate(trainees):
            world.barrier()
            took = trainee.step()
            if turn >= 0:
                seconds[number, turn] = took
    slowest = 1e3 * world.gather(seconds).max(axis=0)
    for trainee, each in zip(trainees, slowest, strict=True):
        stats = trainee.state.stats if trainee.state is not None else {}
        emit(
            {
                "row": {
                    "method": trainee.method,
                    "step_ms": float(np.median(each)),
                    "step_ms_min": float(each.min()),
                    "step_ms_max": float(each.max()),
                    "turns": config["turns"],
                    "parameters": sum(p.numel() for p in trainee.ddp.parameters()),
                    "wire_bytes_per_step": stats["wire_bytes"] // stats["steps"] if stats else None,
                    "relative_error": stats.get("error"),
                }
            }
        )


@click.command()
@click.option("--turns", type=click.IntRange(min=1), default=12, show_default=True)
@click.option("--warmup", type=click.IntRange(min=0), default=4, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=4, show_default=True, help="Rows a rank.")
@click.option("--methods", default=",".join(METHODS), show_default=True, help="Hooks of torch's, or codecs.")
@click.option("--json", "json_file", required=True)
def main(turns: int, warmup: int, batch: int, methods: str, json_file: str) -> None:
    """Measure and write the rows."""
    rows: list[Message] = []
    run_ranks(
        "benchmarks.ddp.step:measure",
        {"turns": turns, "warmup": warmup, "batch": batch, "methods": methods.split(",")},
        Ranks("tcp", 0 if under_launcher() else 2, torch_group=True),
        lambda message: rows.append(message["row"]),
    )
    if rows:
        write_json(rows, json_file)
    for row in rows:
        sent = row["wire_bytes_per_step"]
        click.echo(
            f"{row['method']:22} {row['step_ms']:7.1f} ms "
            f"({row['step_ms_min']:.1f} to {row['step_ms_max']:.1f})   "
            f"{rows[0]['step_ms'] / row['step_ms']:.2f} x   {'' if sent is None else f'{sent / 2**20:.2f} MiB'}"
        )


if __name__ == "__main__":
    main()
