"""Other libraries' training loops under Paceline: one file each. Nothing else in the package imports them."""
