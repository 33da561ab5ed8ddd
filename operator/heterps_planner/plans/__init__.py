"""Plans and their explanations: alternatives, limits, robustness."""
