"""How hosts speak with each other: TCP, TLS from the token alone, and messages that outlive a connection."""
