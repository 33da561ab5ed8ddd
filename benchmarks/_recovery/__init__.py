"""Systems whose recovery `benchmarks.recovery` measures, and the programs that they run."""
