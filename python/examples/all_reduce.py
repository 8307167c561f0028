"""Sums arrays of four ranks, which are threads of this process.

    python examples/all_reduce.py
"""

import threading

import numpy

import unisono


def body(comm):
    gradients = numpy.full(1000, float(comm.rank))
    comm.all_reduce(gradients)
    work = comm.all_reduce(gradients.copy(), "avg", async_op=True)
    # ... compute something else ...
    print(f"rank {comm.rank} of {comm.size}: sum {gradients[0]}, then average {work.wait()[0]}")


threads = [threading.Thread(target=body, args=(comm,)) for comm in unisono.Communicator.local(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
