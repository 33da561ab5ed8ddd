"""The HeterPSJob and DevicePool APIs: manifests read, validated, given their defaults and typed."""
