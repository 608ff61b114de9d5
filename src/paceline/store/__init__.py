"""The parameter store: it makes the versions of a run, in a process of its own."""
