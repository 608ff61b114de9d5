"""What a run's machines are like: scenarios, their files, and the model of the network."""
