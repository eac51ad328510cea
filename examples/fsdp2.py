"""FSDP2 (fully_shard), with nothing of gcomm's but the backend's name, or a line if --codec is given.

torchrun --nproc-per-node 2 examples/fsdp2.py                    # the backend; codec from GCOMM_CODEC
torchrun --nproc-per-node 2 examples/fsdp2.py --backend gloo --codec gift+nvfp4:geometry=factored
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from bytes_lm import BytesLM, batch, command_line, loss_of, text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = command_line("Trains a small language model with FSDP2.")
    parser.add_argument("--codec", help="reduce gradients in this codec, over any backend")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = BytesLM()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if options.codec:
        import gcomm.pytorch

        gcomm.pytorch.compress_fsdp(model, options.codec)
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
