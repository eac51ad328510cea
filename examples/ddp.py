"""DistributedDataParallel on CPUs: a small byte-level language model on the source of Python's library.

    torchrun --nproc-per-node 2 examples/ddp.py                    # plain
    torchrun --nproc-per-node 2 examples/ddp.py --codec nvfp4      # gradients in 4 bits

The script is an ordinary one; the line marked below is all that gcomm adds.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import gcomm.pytorch
from gcomm.cli.demo_data import evaluation_batches, load_corpus, training_batch
from gcomm.cli.demo_model import VOCABULARY, ByteModel, Shape


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of tokens (batch, context + 1), in nats a byte."""
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codec", help="as in docs/codecs.md; without it the script is plain")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sequences", type=int, default=4, help="a rank and step")
    parser.add_argument("--width", type=int, default=128)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    corpus = load_corpus()
    shape = Shape(width=arguments.width, layers=2, hidden=3 * arguments.width)
    ddp = DistributedDataParallel(ByteModel(shape, seed=0))
    if arguments.codec:
        state = gcomm.pytorch.DDPState(arguments.codec, ddp)
        ddp.register_comm_hook(state, gcomm.pytorch.ddp_hook)  # <- the line
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)

    length = shape.context + 1
    for step in range(1, arguments.steps + 1):
        tokens = training_batch(corpus, 0, step, rank, sequences=arguments.sequences, length=length)
        optimizer.zero_grad()
        loss = loss_of(ddp, tokens)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)

    with torch.no_grad():
        batches = evaluation_batches(corpus, rank, size, total=64, length=length, sequences=8)
        total = torch.stack([loss_of(ddp.module, each) * len(each) for each in batches]).sum()
    dist.all_reduce(total)
    if rank == 0:
        print(f"evaluation loss {total.item() / 64:.4f}")
        if arguments.codec:
            print(gcomm.pytorch.summary(state, limit=8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
