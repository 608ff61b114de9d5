"""The command line: what was typed becomes settings, and what came of it becomes lines."""
