"""Data-parallel training in JAX: gradients are averaged in 4 bits inside the compiled step.

torchrun --nproc-per-node 2 examples/jax_data_parallel.py     (any launcher that sets RANK and WORLD_SIZE)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gcomm
import gcomm.jax

comm = gcomm.Communicator.from_env()
random = np.random.default_rng(0)
params = {  # the same on all ranks
    "hidden": jnp.asarray(random.standard_normal((64, 256), np.float32) / 8),
    "output": jnp.asarray(random.standard_normal((256, 1), np.float32) / 16),
}
teacher = jnp.asarray(random.standard_normal((64, 1), np.float32))


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ params["hidden"]) @ params["output"] - y) ** 2)


@jax.jit
def step(params: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    # A key each: the codec remembers what it rounded away and adds it to the next gradient of that name.
    gradients = {
        name: gcomm.jax.all_reduce(g, "avg", comm=comm, codec="nvfp4:ef=1:min_bytes=0", key=name)
        for name, g in gradients.items()
    }
    value = gcomm.jax.all_reduce(value, "avg", comm=comm, codec=None)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, gradients), value


data = np.random.default_rng(comm.rank + 1)  # each rank has its own
for i in range(301):
    x = jnp.asarray(data.standard_normal((128, 64), np.float32))
    params, value = step(params, x, jnp.tanh(x @ teacher / 8))
    if comm.rank == 0 and i % 100 == 0:
        print(f"step {i}: loss {float(value):.4f}")
jax.effects_barrier()  # the last step may still be under way
if comm.rank == 0:
    stats = comm.stats
    print(f"sent {stats['wire_bytes'] / stats['raw_bytes']:.2f} of the uncompressed bytes")
comm.close()
