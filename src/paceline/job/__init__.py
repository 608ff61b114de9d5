"""What the head and the other hosts of a run share: settings, folders that are sent, and whether all fit together."""
