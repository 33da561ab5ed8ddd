"""What a job does about deaths, hangs, drained nodes and pods that find no room. Pure."""
