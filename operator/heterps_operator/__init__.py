"""The operator: reads manifests, reconciles jobs in one level-triggered loop, and acts through a substrate."""
