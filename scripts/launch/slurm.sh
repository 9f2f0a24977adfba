#!/usr/bin/env bash
# Made by scripts/launch/render.py. Start it with: mkdir -p %%{out} && sbatch THIS_FILE
# (Slurm fails a job, and says nothing, where the folder of its log is not there.)
#SBATCH --job-name=%%{name}
#SBATCH --nodes=%%{nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=%%{gpus}
#SBATCH --cpus-per-task=%%{cpus}
#SBATCH --time=%%{time}
#SBATCH --output=%%{out}/%%{name}.slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@%%{notice_s}
set -euo pipefail
trap 'jobs=$(jobs -p); [ -z "$jobs" ] || kill $jobs 2>/dev/null || true' EXIT

address=""
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  # Ray stays in the foreground of each step, so that Slurm ends it with the job. A step takes no --cpus-per-task of the
  # job by itself, and would have one core.
  export RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper=1
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  address="${hosts[0]}:%%{port}"
  on() { exec srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=%%{cpus} --gpus-per-node=%%{gpus} --nodelist="$1" "${@:2}"; }
  on "${hosts[0]}" ray start --head --block --port=%%{port} --num-gpus=%%{gpus} &
  for host in "${hosts[@]:1}"; do
    on "$host" ray start --block --address="$address" --num-gpus=%%{gpus} &
  done
%%{wait}
fi

%%{train} &
driver=$!
# The driver alone is told: Ray's processes would heed the signal too, and be gone before the checkpoint is written.
asked=false
trap 'asked=true; kill -TERM "$driver" 2>/dev/null || true' TERM
code=0
wait "$driver" || code=$?
while kill -0 "$driver" 2>/dev/null; do  # the signal broke off the wait, and the checkpoint is being written
  code=0
  wait "$driver" || code=$?
done
if "$asked" && [ "$code" -eq 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"  # to go on from that checkpoint
fi
exit "$code"
