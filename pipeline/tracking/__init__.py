"""MLflow: runs, their database, the registry of models, and the metrics of the machine."""
