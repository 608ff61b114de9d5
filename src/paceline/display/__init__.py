"""Progress of a run: on a terminal, as lines, and for TensorBoard."""
