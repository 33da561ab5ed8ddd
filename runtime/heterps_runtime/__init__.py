"""The training runtime. This file imports nothing, so that the operator can import `contract` alone."""
