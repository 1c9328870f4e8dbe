"""Runs methods: clients' state, local epochs, aggregation, checkpoints."""
