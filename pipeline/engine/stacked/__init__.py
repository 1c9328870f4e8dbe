"""The executor that trains the clients of equal networks as one stack, and what it needs."""

from pipeline.engine.stacked.executor import Stacked

__all__ = ["Stacked"]
