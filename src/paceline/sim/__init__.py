"""Virtual time: the machines of real runs, on clusters that aren't there."""
