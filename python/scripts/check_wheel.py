"""Checks that a wheel has all files of the package, one ABI for all versions, and sound metadata.

    python scripts/check_wheel.py WHEEL

The programs twine, check-wheel-contents and abi3audit must be installed in this Python.
"""

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "unisono"
EXTENSION = "unisono/_native.abi3.so"


def check_files(names):
    """Fails unless the wheel has what the source tree has, the extension and the licenses, and nothing else."""
    sources = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.suffix != ".pyc"}
    expected = {name for name in sources if (PACKAGE.parent / name).is_file()} | {EXTENSION}
    found = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert found == expected, f"missing {sorted(expected - found)}, too much {sorted(found - expected)}"
    assert {"unisono/py.typed", "unisono/_native.pyi", "unisono/communicator.pyi"} <= found, "types are missing"
    licenses = {Path(name).name for name in names if "/licenses/" in name}
    assert licenses == {"LICENSE-APACHE", "LICENSE-MIT"}, f"the licenses are {licenses}"


def check_metadata(wheel):
    read = lambda name: wheel.read(next(one for one in wheel.namelist() if one.endswith(f".dist-info/{name}"))).decode()
    facts = Parser().parsestr(read("METADATA"))
    assert facts["Name"] == "unisono" and facts["Requires-Python"] == ">=3.10", facts.items()
    needs = [need for need in facts.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert needs == [], f"the package needs {needs}"
    assert "](../" not in facts.get_payload(), "the description has a link that is relative to the source tree"
    assert "unisono=unisono.torch:register" in read("entry_points.txt").replace(" ", ""), "no entry point for torch"
    tags = Parser().parsestr(read("WHEEL")).get_all("Tag")
    assert all(tag.startswith("cp310-abi3-manylinux") for tag in tags), f"the tags are {tags}"


def main():
    path = sys.argv[1]
    with zipfile.ZipFile(path) as wheel:
        check_files(wheel.namelist())
        check_metadata(wheel)
    for check in (["twine", "check", "--strict"], ["check_wheel_contents"], ["abi3audit", "--strict"]):
        subprocess.run([sys.executable, "-m", *check, path], check=True)


if __name__ == "__main__":
    main()
