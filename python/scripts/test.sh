#!/usr/bin/env bash
# Builds the wheel, installs it beside torch below target/, and runs all tests of the package.
#   python/scripts/test.sh             everything
#   python/scripts/test.sh --no-suite  without the suite that ships inside torch
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../target}
mkdir -p "$CARGO_TARGET_DIR"
environment=$CARGO_TARGET_DIR/python
python=$environment/bin/python
command -v python3 >/dev/null || { echo "SKIPPED: needs python3"; exit 0; }
[ -x "$python" ] || python3 -m venv "$environment"
if ! "$python" -m pip install --quiet --disable-pip-version-check "maturin>=1.9,<2" pytest expecttest numpy ml_dtypes; then
    echo "SKIPPED: the Python package is not tested, because its needs cannot be installed from PyPI"
    exit 0
fi
"$python" scripts/install_torch.py
cargo fmt --check
cargo clippy --release --quiet -- -D warnings
rm -rf "$CARGO_TARGET_DIR/wheel"
"$environment/bin/maturin" build --release --quiet --out "$CARGO_TARGET_DIR/wheel" -i "$python"
"$python" -m pip install --quiet --force-reinstall --no-deps "$CARGO_TARGET_DIR"/wheel/unisono-*.whl
tests=$PWD/tests
cd "$CARGO_TARGET_DIR"    # where no folder is named as the package
"$python" -m pytest -q -p no:cacheprovider "$tests"
[ "${1-}" = --no-suite ] && exit 0
for mode in gloo-replaced unisono; do
    "$python" "$tests/torch_suite.py" "$mode" --expect "$tests/torch_suite_$mode.txt"
done
