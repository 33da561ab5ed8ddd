"""Pure planning: profiles, cost model, provisioning, exact optimum, batch balancing. No I/O is done here."""
