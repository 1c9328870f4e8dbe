"""A cell's way from parameters to a result: loading, training, evaluation, records, provenance."""
