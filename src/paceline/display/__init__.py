"""What a run shows while it goes: on a terminal, as lines, and in trackers."""
