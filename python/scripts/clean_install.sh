#!/usr/bin/env bash
# Installs the wheel into a fresh environment, and trains there with a copy of the example, as a user does:
#   pip install unisono torch
#   torchrun --nproc-per-node 4 train.py
#   python/scripts/clean_install.sh [WHEEL]     builds the wheel unless it is given
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(realpath -e "${1:-/dev/null}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ $# = 0 ]; then
    python3 -m venv "$folder/builder"
    "$folder/builder/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r ../.ci/pip/python.txt
    "$folder/builder/bin/maturin" build --release --quiet --out "$folder/wheel" -i "$folder/builder/bin/python"
    wheel=$(realpath "$folder"/wheel/unisono-*.whl)
fi
python3 -m venv "$folder/environment"
bin=$folder/environment/bin
# The package needs no other one, so no index is asked.
"$bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
"$bin/python" scripts/install_torch.py
cp examples/train.py "$folder/train.py"
cd "$folder"
output=$(env -i PATH="$bin:/usr/bin:/bin" HOME="$folder" OMP_NUM_THREADS=1 \
    torchrun --nproc-per-node 4 train.py 2>"$folder/errors") || { cat "$folder/errors"; exit 1; }
echo "$output"
[[ $output == *"step 0: loss "*" on 4 ranks"*"step 100: loss "*" on 4 ranks"* ]] || { echo "no training"; exit 1; }
