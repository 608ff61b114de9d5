"""What a Python program or a notebook calls: `run` and `compare`, and what they return."""
