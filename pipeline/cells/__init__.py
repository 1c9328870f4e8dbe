"""Cells: what a cell is, its data and its results; results of tunings, declared experiments and readings."""
