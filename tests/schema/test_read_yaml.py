"""Reading YAML: keys that it reads as something else."""

import pytest

from pipeline.errors import ParamError
from pipeline.schema import read_yaml


@pytest.mark.parametrize("key", ["on", "007", "12:30:00", "~", "1_0", "Off", "0x1F", "1e3"])
def test_a_key_that_yaml_reads_as_something_else_is_named(tmp_path, key):
    path = tmp_path / "paper.yaml"
    path.write_text(f"methods:\n  {key}: {{}}\n")
    with pytest.raises(ParamError, match="paper.yaml:2: "):
        read_yaml(path)
    path.write_text(f'methods:\n  "{key}": {{}}\n')
    assert read_yaml(path) == {"methods": {key: {}}}
