"""DistributedDataParallel, with nothing of gcomm's but the backend's name.

torchrun --nproc-per-node 2 examples/unmodified_ddp.py                   # codec from GCOMM_CODEC
torchrun --nproc-per-node 2 examples/unmodified_ddp.py --backend gloo    # plain
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from bytes_lm import BytesLM, batch, command_line, loss_of, text
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    options = command_line("Trains a small language model with DistributedDataParallel.").parse_args()
    dist.init_process_group(options.backend)
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = DistributedDataParallel(BytesLM())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    data, generator = text(), torch.Generator().manual_seed(1 + rank)
    for step in range(options.steps):
        loss = loss_of(model, *batch(data, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == options.steps - 1:
            mean = loss.detach()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step}: loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
