"""Cells: what one is, its data and what it found; tuning results, declarations and readings."""
