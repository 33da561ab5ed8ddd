"""Communication between the processes of a job: messages, their codec, sockets, and the line to the coordinator."""
