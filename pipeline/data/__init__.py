"""Data sets: which exist (registry), where they come from (sources), how they are stored (store), and who
gets which image (partition)."""
