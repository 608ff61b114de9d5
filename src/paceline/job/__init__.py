"""What the head and the other hosts of a run share: settings, folders that are sent, and checks of compatibility."""
