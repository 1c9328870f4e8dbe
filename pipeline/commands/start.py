"""`fedrepro run`: run stages, or train cells with seeds that the user names."""

from collections.abc import Sequence
from typing import Any

from pipeline.commands import run
from pipeline.errors import ParamError


def main(stages: Sequence[str], seeds: str = "", on: str = "local", **options: Any) -> int:
    """Run the command; returns the exit code.

    stages: what the user names
    seeds: `7,8`: train these cells with other seeds, outside of git; empty: run stages
    on: the executor
    options: the other arguments of `run.main`

    ParamError for seeds on a cluster.
    """
    if not seeds:
        return run.main(stages, on=on, **options)
    if on != "local":
        raise ParamError("--seeds: trains on this machine only")
    from pipeline.commands import variants  # with pandas: a second

    return variants.extra_seeds(stages, seeds, options["jobs"])
