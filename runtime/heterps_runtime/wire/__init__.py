"""How the processes of a job talk to each other: messages, their codec, sockets, and the line to the coordinator."""
