"""Data sets: what exists (registry), where it comes from (sources), the one form on disk (store), who gets
what (partition)."""
