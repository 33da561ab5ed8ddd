"""The controller: manifests in, one level-based loop, actions out through a substrate."""
