#!/usr/bin/env bash
# Measures torch over unisono and over Gloo, and writes the figures into a folder.
#   run.sh PYTHON [FOLDER [NOTE]]    PYTHON has torch and unisono
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
benches=$here/../../../python/benches
python=$1 out=${2:-$here} note=${3:-}
"$python" "$benches/clients.py" --ranks 2 4 --rounds 9 --steps 8 --out "$out" --note "$note"
"$python" "$benches/clients.py" --ranks 2 --rounds 9 --steps 8 --busy 2 --out "$out" --note "$note"
"$python" "$benches/collectives.py" --ranks 2 4 --rounds 9 --out "$out" --note "$note"
"$python" "$benches/collectives.py" --ranks 2 4 --rounds 9 --busy 2 --out "$out" --note "$note"
