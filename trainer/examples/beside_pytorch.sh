#!/usr/bin/env bash
# Compares training steps with PyTorch on this machine: `PYTHON=python-with-torch trainer/examples/beside_pytorch.sh [rounds layers... [--busy loops]]`.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 1 ] || set -- "${1:-9}" 2 4
cargo build --release --package unisono-trainer --example beside_pytorch
exec "${PYTHON:-python3}" trainer/examples/beside_pytorch.py "${CARGO_TARGET_DIR:-target}/release/examples/beside_pytorch" "$@"
