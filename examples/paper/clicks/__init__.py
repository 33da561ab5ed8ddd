"""The models that HeterPS was published with, as ordinary PyTorch modules (docs/models.md).

    spec:
      model:
        entrypoint: clicks.ctrdnn:build
        arguments: {layers: 16, hidden: 256}

They read the columns that `prepare.py` writes and import nothing of HeterPS. Each named part is one layer to the
scheduler.
"""
