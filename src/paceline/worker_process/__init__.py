"""A worker's process, and what of a user's script is replaced in it."""
