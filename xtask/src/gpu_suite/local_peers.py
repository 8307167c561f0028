"""Copies and sums of other libraries on this GPU. Prints a JSON object for each measurement.

A library that is missing is a row that says so. Rates count bytes read plus bytes written.
"""

import json
import statistics
import sys

QUICK = "--quick" in sys.argv
MIB = 1 << 20
SIZES = [MIB // 4] if QUICK else [16 * MIB, 256 * MIB]
SOURCES = [1, 2, 4, 8]
SAMPLES = 3 if QUICK else 15


def emit(**fields):
    print(json.dumps(fields), flush=True)


def skip(peer, why):
    emit(skipped=peer, why=str(why).splitlines()[0][:200] if str(why) else type(why).__name__)


def report(peer, operation, sources, size, moved, microseconds):
    us = statistics.median(microseconds)
    emit(peer=peer, operation=operation, sources=sources, bytes=size, us=us, gbs=moved / us / 1e3)


def torch_times(torch, work):
    work()
    times = []
    for _ in range(SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return times


def with_torch():
    import torch

    if not torch.cuda.is_available():
        return skip("torch", "torch finds no GPU")
    for size in SIZES:
        target = torch.empty(size // 4, device="cuda")
        stack = torch.rand(max(SOURCES), size // 4, device="cuda")
        report("driver", "copy", 1, size, 2 * size, torch_times(torch, lambda: target.copy_(stack[0])))
        for sources in SOURCES[1:]:
            work = lambda: torch.sum(stack[:sources], 0, out=target)
            report("torch", "sum of a stack", sources, size, (sources + 1) * size, torch_times(torch, work))
        work = lambda: torch.add(stack[0], stack[1], out=target)
        report("torch", "add", 2, size, 3 * size, torch_times(torch, work))
        half = stack[:2].to(torch.bfloat16)
        out = torch.empty_like(half[0])
        work = lambda: torch.add(half[0], half[1], out=out)
        report("torch", "add of bfloat16", 2, size // 2, 3 * size // 2, torch_times(torch, work))


def with_cupy():
    import cupy

    for size in SIZES:
        for sources in SOURCES:
            names = [f"s{index}" for index in range(sources)]
            kernel = cupy.ElementwiseKernel(
                ", ".join(f"float32 {name}" for name in names), "float32 out", "out = " + " + ".join(names), "suite_sum"
            )
            arrays = [cupy.random.rand(size // 4, dtype=cupy.float32) for _ in names]
            out = cupy.empty(size // 4, dtype=cupy.float32)
            kernel(*arrays, out)
            times = []
            for _ in range(SAMPLES):
                begin, end = cupy.cuda.Event(), cupy.cuda.Event()
                begin.record()
                kernel(*arrays, out)
                end.record()
                end.synchronize()
                times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e3)
            report("CuPy", "sum", sources, size, (sources + 1) * size, times)


TRITON = """
import triton
import triton.language as tl


@triton.jit
def total(out, stack, count, SOURCES: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    result = tl.load(stack + at, mask=mask)
    for source in tl.static_range(1, SOURCES):
        result += tl.load(stack + source * count + at, mask=mask)
    tl.store(out + at, result, mask=mask)
"""


def with_triton():
    import importlib.util
    import os
    import tempfile

    import torch

    import triton

    # Triton compiles kernels from a file.
    path = os.path.join(tempfile.mkdtemp(), "suite_triton.py")
    with open(path, "w") as file:
        file.write(TRITON)
    spec = importlib.util.spec_from_file_location("suite_triton", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for size in SIZES:
        count = size // 4
        stack, out = torch.rand(max(SOURCES), count, device="cuda"), torch.empty(count, device="cuda")
        for sources in SOURCES:
            grid = (triton.cdiv(count, 4096),)
            work = lambda: module.total[grid](out, stack, count, SOURCES=sources, BLOCK=4096)
            report("Triton", "sum", sources, size, (sources + 1) * size, torch_times(torch, work))


for name, measure in [("torch", with_torch), ("CuPy", with_cupy), ("Triton", with_triton)]:
    try:
        measure()
    except Exception as error:
        skip(name, error)
