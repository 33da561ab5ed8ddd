"""How samples are divided among steps and workers."""
