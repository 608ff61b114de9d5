"""The script's optimizer: its step, its state and schedulers, and what moves parameters beside it."""
