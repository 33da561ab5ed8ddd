"""Between a worker and the parameter servers: `lookups` knows which rows a batch needs, `servers` pulls and pushes."""
