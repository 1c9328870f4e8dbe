"""Cells: load, train, evaluate and record one, and what its result depends on."""
