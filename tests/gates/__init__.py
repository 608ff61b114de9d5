"""What must stay the same while the code is rebuilt. `python -m gates` compares the code with what is recorded here.

Each gate is a module of this package with a function `check(record)`. It returns the differences, one line each, or an
empty list if all is as recorded. With `record` true it records what it finds instead. See README.md.
"""
