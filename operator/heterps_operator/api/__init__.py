"""The HeterPSJob and DevicePool APIs: parsing, validation, defaults and types."""
