"""Machine code of the modules: ptxas makes one ELF image (a cubin) of a module for each architecture.

A cubin runs on GPUs of its own major compute capability from its minor one on. Drivers of the same CUDA major version
as its assembler load it, older ones too, so the assembler is the last one of CUDA 12: the oldest driver that the
library takes, of 12.0, loads the images for sm_80 and sm_90. GPUs of capability 10.0 have drivers of 12.8 or newer.
"""

import dataclasses
import pathlib
import re
import struct
import subprocess
import tempfile

KERNELS = pathlib.Path(__file__).resolve().parent
ASSEMBLER = "nvidia-cuda-nvcc-cu12==12.9.86"
PTXAS = "nvidia/cuda_nvcc/bin/ptxas"
ARCHITECTURES = (80, 90, 100)
# The architecture whose registers and bytes of code are limited.
BUDGETED = 90
BUDGET = KERNELS / "budget.tsv"
# Growth of a kernel's code or registers that needs no new budget.
TOLERANCE = 1.1


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What the machine code of a kernel takes."""

    registers: int
    # Of its code; an instruction has 16.
    bytes: int


def packed_file(architecture):
    """The file with the images for an architecture."""
    return KERNELS / f"cubin_sm_{architecture}.zst"


def kernel_names(ptx):
    """The kernels of a module, in order."""
    return re.findall(r"\.visible \.entry (\w+)\(", ptx)


def assembled(wanted):
    """Name, image and kernels of a module for an architecture, and faults of its code."""
    ptxas, architecture, name, ptx = wanted
    # Without folders in the names of files, the image says nothing about the place where it was made.
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "module.ptx").write_text(ptx)
        command = [ptxas, "-v", f"--gpu-name=sm_{architecture}", "module.ptx", "--output-file=module.cubin"]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"{name} for sm_{architecture}:\n{ended.stderr}")
        image = pathlib.Path(folder, "module.cubin").read_bytes()
    faults = [f"{name} for sm_{architecture}: {fault}" for fault in spills(ended.stderr)]
    return name, image, measured(image, ended.stderr), faults


def spills(log):
    """Kernels that keep variables in memory."""
    for kernel, properties in re.findall(r"Function properties for (\w+)\n(.*)", log):
        if not re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", properties):
            yield f"{kernel}: {properties.strip()}"


def measured(image, log):
    """The kernels of an image, by name."""
    code = {name[len(".text.") :]: size for name, size in sections(image) if name.startswith(".text.")}
    used = re.findall(r"Compiling entry function '(\w+)'(?:.*\n)*?.*Used (\d+) registers", log)
    return {name: Kernel(int(registers), code[name]) for name, registers in used}


def sections(image):
    """Name and bytes of each section of a 64-bit ELF image."""
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    entry, count, names = struct.unpack_from("<3H", image, 0x3A)
    # Name, type, flags, address, offset, size.
    headers = [struct.unpack_from("<IIQQQQ", image, offset + index * entry) for index in range(count)]
    for name, _, _, _, _, size in headers:
        start = headers[names][4] + name
        yield image[start : image.index(b"\0", start)].decode(), size


def pack(images):
    """The images of an architecture: for each a line with name, size and kernels, and then the image."""
    packed = b""
    for name, (image, kernels) in sorted(images.items()):
        head = f"{name} {len(image)} {' '.join(kernels)}"
        # Spaces let every image begin at a multiple of 16 bytes, as in a file that is read into memory.
        head += " " * (-(len(packed) + len(head) + 1) % 16)
        packed += f"{head}\n".encode() + image
    return packed


def budget():
    """The limits of all kernels, by name."""
    rows = [line.split("\t") for line in BUDGET.read_text().splitlines()[1:]] if BUDGET.exists() else []
    return {name: Kernel(int(registers), int(size)) for name, registers, size in rows}


def write_budget(kernels):
    """Makes what the kernels take their budget."""
    rows = [f"{name}\t{kernel.registers}\t{kernel.bytes}\n" for name, kernel in sorted(kernels.items())]
    BUDGET.write_text("kernel\tregisters\tbytes\n" + "".join(rows))


def excesses(kernels):
    """Kernels over their budget."""
    limits = budget()
    for name, kernel in sorted(kernels.items()):
        limit = limits.get(name)
        if limit is None:
            yield f"{name} has no budget: run compile --budget"
        elif kernel.bytes > limit.bytes * TOLERANCE or kernel.registers > limit.registers * TOLERANCE:
            yield f"{name} takes {kernel} for sm_{BUDGETED}, its budget is {limit}: make it smaller or run compile --budget"
    yield from (f"{name} has a budget and no code: run compile --budget" for name in limits if name not in kernels)
