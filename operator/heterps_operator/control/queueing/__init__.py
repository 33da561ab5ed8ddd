"""Who gets quota and units, and in which order jobs wait for them. Pure."""
