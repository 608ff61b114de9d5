#!/bin/bash
# Train on three nodes of a Ray cluster, as a job of that cluster: bash examples/clusters/ray.sh
#
# RAY_API_SERVER_ADDRESS names the cluster, such as http://10.0.0.1:8265. Without it, the job goes to this machine's.
# Here and on all nodes: pip install 'paceline[ray]' 'ray[default]'
# /shared/digits is a folder on a file system that all nodes see. It must not exist yet: the run makes it.

# Ray brings the working directory to each node that takes part, and may remove it after the job. The run's folder must
# stay, so it is elsewhere. The words after -- are executed on the cluster's head node, which has workers, too.
ray job submit --working-dir . -- paceline run --on ray --hosts 3 -n 4 -p ssp --out /shared/digits examples/digits.py --epochs 20

# A run that was stopped goes on from its newest snapshot as a job of its own:
# ray job submit --working-dir . -- paceline run --on ray --hosts 3 -n 4 --resume /shared/digits
