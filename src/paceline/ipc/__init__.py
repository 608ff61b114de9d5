"""How bytes move between the processes of one host: messages over socket pairs, tensors through shared memory."""
