"""What is heard from workers, from the store process and from other hosts, and what follows from it."""
