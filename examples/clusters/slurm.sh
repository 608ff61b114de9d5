#!/bin/bash
# Train on two nodes of a Slurm cluster: sbatch examples/clusters/slurm.sh
#
# Once, before the first job: paceline token --out ~/paceline-token
# The working directory and the token have to be on a file system that all nodes see.

#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
# A node that fails, or a job of more importance, puts this one into the queue again, under its own number:
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before its time is over, the job writes a snapshot:
#SBATCH --signal=TERM@120

export PACELINE_TOKEN_FILE=~/paceline-token

# One paceline run a node: it starts the workers itself. Once one of them has ended, the others have a minute for that.
srun --wait=60 paceline run -n 4 -p ssp examples/digits.py --epochs 20
code=$?

# What was interrupted goes into the queue again, and goes on from its snapshot.
if [ "$code" = 130 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
