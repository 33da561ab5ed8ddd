"""The units of DevicePools: what pods occupy, what jobs hold and wait for, limits and prices."""
