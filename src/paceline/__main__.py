"""`python -m paceline`."""

from paceline.cli.main import command

if __name__ == "__main__":
    command()
