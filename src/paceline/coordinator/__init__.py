"""The head of a run: one sequencer, and what it keeps of workers, data, versions and hosts."""
