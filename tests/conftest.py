"""What holds for every process of the suite, before any of them has imported torch."""

from __future__ import annotations

import os

# By default OpenMP's threads spin while they wait for each other. Beside the other half of the suite that is most of
# what a run on two threads costs, and nothing is computed by it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
