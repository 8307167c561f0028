# Two and four processes on one GPU under MPS. $0 is unisono, $1 the sizes. The daemon has folders of
# its own and ends with this script.
folder=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log
mkdir "$folder/pipe" "$folder/log"
if ! nvidia-cuda-mps-control -d; then
    echo '{"skipped": "MPS", "why": "its daemon does not start"}'
    exit 0
fi
echo '{"mps": "started"}'
for ranks in 2 4; do
    "$0" perf all_reduce -N $ranks --sizes "$1" -n 10 -w 2 --device cuda --jsonl --timeout-ms 5000
done
echo quit | nvidia-cuda-mps-control
