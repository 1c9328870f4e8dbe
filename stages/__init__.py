"""What `dvc.yaml` calls: `python -m stages.NAME`."""
