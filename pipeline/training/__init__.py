"""Train a cell and score it: from its data and parameters to the files of its result."""
