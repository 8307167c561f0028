"""Installs the CPU part of a torch wheel from PyPI into this Python, without the CUDA libraries.

The wheels on PyPI for Linux are CUDA builds. They link some 5 GB of NVIDIA's libraries, which a
machine without a GPU never calls. This script installs the wheel alone, and writes a small shared
library in place of each missing one. Its functions return 100, "no device" in CUDA's numbers.

    python scripts/install_torch.py [VERSION]
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

DEFAULT_VERSION = "2.15.0"
ROOT = Path(__file__).resolve().parents[2]
# Other packages that torch needs.
NEEDS = ROOT / ".ci" / "pip" / "torch.txt"
CACHE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "wheels"


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True)


def install_wheel(version):
    """Downloads the wheel once into the cache and installs it without its dependencies."""
    CACHE.mkdir(parents=True, exist_ok=True)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    # A wheel that was built again has the number of its build after the version.
    found = lambda: sorted(CACHE.glob(f"torch-{version}-{python}-*.whl")) or sorted(
        CACHE.glob(f"torch-{version}-[0-9]*-{python}-*.whl")
    )
    if not found():
        pip("download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", str(CACHE), f"torch=={version}")
    pip("install", "--quiet", "--no-deps", "--no-compile", str(found()[-1]))
    pip("install", "--quiet", "--no-compile", "--no-warn-conflicts", "--require-hashes", "-r", str(NEEDS))


def readelf(option, library):
    return subprocess.run(["readelf", "-W", option, str(library)], check=True, capture_output=True, text=True).stdout


def missing_libraries(libraries):
    """Returns the names of needed libraries that neither torch nor the system has."""
    needed = set()
    for library in libraries:
        needed.update(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library)))
    present = {library.name for library in libraries[0].parent.iterdir()}
    system = re.compile(r"(ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp)[.-])")
    return sorted(name for name in needed - present if not system.match(name))


def undefined_symbols(libraries, missing):
    """Returns the symbols of each (library, version) that is missing; unversioned ones go to the first library."""
    symbols, plain, defined = defaultdict(set), set(), set()
    for library in libraries:
        files = {}
        for part in readelf("-V", library).split("File: ")[1:]:
            for version in re.findall(r"Name: (\S+)", part):
                files[version] = part.split()[0]
        for line in readelf("--dyn-syms", library).splitlines():
            fields = line.split()
            if len(fields) < 8 or fields[4] not in ("GLOBAL", "WEAK"):
                continue
            name, _, version = fields[7].partition("@")
            if fields[6] != "UND":
                defined.add(name)
            elif files.get(version) in missing:
                symbols[files[version], version].add(name)
            elif not version and not name.startswith("_Z"):
                plain.add(name)
    symbols[missing[0], ""] |= plain - defined
    return symbols


def write_stub(folder, name, versions):
    """Compiles a library whose symbols are one function that returns 100."""
    lines, script = ['.text', 'stub: movl $100, %eax', 'ret', '.section .note.GNU-stack,"",@progbits'], []
    for number, (version, symbols) in enumerate(sorted(versions.items())):
        for symbol in sorted(symbols):
            local = f"stub_{number}_{symbol}"
            at = f".symver {local},{symbol}@@{version}" if version else ""
            label = local if version else symbol
            lines.append(f".globl {label}\n.type {label},@function\n.set {label}, stub\n{at}")
        if version:
            script.append(f"{version} {{ }};")
    source, version_script = folder / f"{name}.s", folder / f"{name}.map"
    source.write_text("\n".join(lines) + "\n")
    version_script.write_text("\n".join(script) or "{ };")
    options = [f"-Wl,--version-script={version_script}"] if script else []
    subprocess.run(
        ["cc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", *options, "-o", str(folder / name), str(source)],
        check=True,
    )
    source.unlink(), version_script.unlink()


def main():
    version = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_VERSION
    if version.count(".") != 2:
        sys.exit(f"the version {version} needs all three numbers, such as {DEFAULT_VERSION}")
    install_wheel(version)
    folder = Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
    libraries = sorted(folder.glob("*.so"))
    libraries += sorted(folder.parent.glob("_C*.so"))
    libraries = [library for library in libraries]
    missing = missing_libraries(libraries)
    symbols = undefined_symbols(libraries, missing) if missing else {}
    for name in missing:
        write_stub(folder, name, {version: found for (file, version), found in symbols.items() if file == name})
    subprocess.run([sys.executable, "-c", "import torch; print('torch', torch.__version__)"], check=True)


if __name__ == "__main__":
    main()
