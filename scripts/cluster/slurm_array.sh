#!/usr/bin/env bash
# One output, written by the tasks of a Slurm array on a file system that they share:
#
#   sbatch --array=1-8 scripts/cluster/slurm_array.sh gguf-convert hf2gguf CHECKPOINT --type q4_k_m --into OUT.gguf
#   sbatch --array=1-8 scripts/cluster/slurm_array.sh gguf-quantize --type q4_k_m IN.gguf --into OUT.gguf
#   sbatch --array=1-8 scripts/cluster/slurm_array.sh gguf-quantize ladder SOURCE -o DIR --imatrix FILE
#   sbatch --array=1-8 scripts/cluster/slurm_array.sh gguf-verify MODEL --prompts FILE -o run-{part}.part
#   sbatch --array=1-8 scripts/cluster/slurm_array.sh gguf-verify imatrix MODEL --prompts FILE -o m-{part}.part
#
# `{part}` becomes the number of the task: parts of a verdict or an importance matrix are files of their own, which
# `gguf-verify combine` makes one of.
#
# The files of a ladder are put together by the same command with `--resume`, on one machine, when all tasks are through:
#   sbatch --dependency=afterok:JOB --wrap 'gguf-quantize ladder SOURCE -o DIR --imatrix FILE --resume'
#
# Each task writes its share (`--part I/N` is added here) and needs nothing of the others; the last gives OUT.gguf its name. A task
# that fails or is taken away is queued again, and one that is through already ends at once: resubmit the whole array after
# a failure.
#SBATCH --job-name=gguf
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,20s/^# \{0,1\}//p' "$0" >&2; exit 2; }
: "${SLURM_ARRAY_TASK_ID:?is not set: submit with sbatch --array=1-N}"
first=${SLURM_ARRAY_TASK_MIN:-1} last=${SLURM_ARRAY_TASK_MAX:-$SLURM_ARRAY_TASK_COUNT} step=${SLURM_ARRAY_TASK_STEP:-1}
if [ "$first" != 1 ] || [ "$step" != 1 ] || [ "$last" != "$SLURM_ARRAY_TASK_COUNT" ]; then
  echo "slurm_array.sh: an array from 1 to N expected (--array=1-8), found $first-$last:$step" >&2
  exit 2
fi
threads=${SLURM_CPUS_PER_TASK:+--threads $SLURM_CPUS_PER_TASK}
# shellcheck disable=SC2086  # one option and its value, or nothing
exec "${@//\{part\}/$SLURM_ARRAY_TASK_ID}" --part "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" $threads --quiet
