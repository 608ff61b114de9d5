"""The script's model: its structure, what it shows as its state, and how versions of it are evaluated."""
