"""Settings that all runtime tests share."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests run beside each other on few cores, and sums must not depend on the number of threads."""
    torch.set_num_threads(1)
