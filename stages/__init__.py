"""The scripts that `dvc.yaml` calls: `python -m stages.NAME`."""

from pipeline.source_code import install

install()
