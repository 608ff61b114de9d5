"""Virtual time: the machines of real runs, on clusters that you don't have."""
