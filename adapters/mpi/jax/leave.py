"""The last rank ends within a job, and the others report the error that they get: `leave.py IMPLEMENTATION FOLDER`."""

import os
import sys

import jax
import numpy as np
from jax import lax

from ranks import join

rank, size = join(sys.argv[1])
sums = jax.pmap(lambda x: lax.psum(x, "ranks"), axis_name="ranks")
value = np.ones((1, 8), np.float32)
sums(value).block_until_ready()
if rank == size - 1:
    os._exit(0)
try:
    sums(value).block_until_ready()
except Exception as error:
    print("caught", error, flush=True)
os._exit(0)
