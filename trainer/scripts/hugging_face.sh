#!/usr/bin/env bash
# Compares the trainer with Hugging Face's transformers and tokenizers: logits, losses and files.
# Packages are kept in the environment of the Python package, below target/.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
mkdir -p "$CARGO_TARGET_DIR"
environment=$CARGO_TARGET_DIR/python
python=$environment/bin/python
version=$(sed -n 's/^transformers==//p' .ci/pip/transformers.in)
command -v python3 >/dev/null || { echo "SKIPPED: the comparison with transformers needs python3"; exit 0; }
[ -x "$python" ] || python3 -m venv "$environment"
if ! "$python" -c "import transformers; assert transformers.__version__ == '$version'" 2>/dev/null \
    && ! "$python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        -r .ci/pip/transformers.txt; then
    echo "SKIPPED: nothing is compared with transformers, because $version cannot be installed from PyPI"
    exit 0
fi
"$python" -c 'import torch' 2>/dev/null || "$python" python/scripts/install_torch.py
# With the features of the whole workspace, as its tests are built, so that nothing is built again.
cargo build --workspace --release --quiet --bin unisono-train --example logits
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
"$python" trainer/scripts/hugging_face.py "$CARGO_TARGET_DIR/release"
