"""What is done with runs: make one, make several, make one again."""
