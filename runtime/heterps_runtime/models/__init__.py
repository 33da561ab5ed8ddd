"""The models that HeterPS was published with, as ordinary PyTorch modules (docs/models.md).

    spec:
      model:
        entrypoint: heterps_runtime.models.ctrdnn:build
        arguments: {layers: 16, hidden: 256}

They read the columns that `python -m heterps_runtime.data.synthetic` writes, and import nothing of HeterPS but each
other. Every one of their named parts is one layer to the scheduler.
"""
