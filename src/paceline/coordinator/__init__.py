"""Real processes: the launcher with its coordinator, the workers, the store's process."""
