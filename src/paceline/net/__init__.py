"""How hosts talk to each other: TCP, TLS from the token alone, and messages that outlive a connection."""
