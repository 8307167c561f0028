#!/usr/bin/env bash
# Builds the wheel, installs it beside torch below target/, and runs all tests of the package.
#   python/scripts/test.sh                    everything
#   python/scripts/test.sh --no-suite         without the suite that ships inside torch
#   python/scripts/test.sh --clean-install    also trains in a fresh environment, which takes a minute
#   python/scripts/test.sh --torch VERSION    the tests of the backend with another version of torch
set -euo pipefail
cd "$(dirname "$0")/.."
suite=yes clean= torch=
while [ $# -gt 0 ]; do
    case $1 in
        --no-suite) suite= ;;
        --clean-install) clean=yes ;;
        --torch) torch=$2 && shift ;;
        *) echo "unknown option $1" && exit 2 ;;
    esac
    shift
done
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../target}
mkdir -p "$CARGO_TARGET_DIR"
environment=$CARGO_TARGET_DIR/python${torch:+-torch-$torch}
python=$environment/bin/python
command -v python3 >/dev/null || { echo "SKIPPED: needs python3"; exit 0; }
[ -x "$python" ] || python3 -m venv "$environment"
if ! "$python" -m pip install --quiet --disable-pip-version-check --require-hashes -r ../.ci/pip/python.txt; then
    echo "SKIPPED: the Python package is not tested, because its needs cannot be installed from PyPI"
    exit 0
fi
"$python" scripts/install_torch.py $torch
[ -n "$torch" ] || "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    -r ../.ci/pip/torchft.txt
cargo fmt --check
cargo clippy --release --quiet -- -D warnings
rm -rf "$CARGO_TARGET_DIR/wheel"
"$environment/bin/maturin" build --release --quiet --out "$CARGO_TARGET_DIR/wheel" -i "$python"
wheel=$(realpath "$CARGO_TARGET_DIR"/wheel/unisono-*.whl)
"$python" scripts/check_wheel.py "$wheel"
"$python" -m pip install --quiet --force-reinstall --no-deps "$wheel"
[ -z "$clean" ] || scripts/clean_install.sh "$wheel"
tests=$PWD/tests
cd "$CARGO_TARGET_DIR"    # where no folder is named as the package
if [ -n "$torch" ]; then
    exec "$python" -m pytest -q -p no:cacheprovider "$tests/test_torch.py" "$tests/test_torch_faults.py"
fi
"$python" -m pytest -q -p no:cacheprovider --durations=10 "$tests"
[ -n "$suite" ] || exit 0
for mode in gloo-replaced unisono mpi-replaced; do
    "$python" "$tests/torch_suite.py" "$mode" --expect "$tests/torch_suite_$mode.txt"
done
