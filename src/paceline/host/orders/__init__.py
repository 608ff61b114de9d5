"""How a host carries out orders: a module for each kind."""
