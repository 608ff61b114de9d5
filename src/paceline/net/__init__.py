"""How bytes move between processes: messages over sockets, tensors through shared memory. It knows no protocol."""
