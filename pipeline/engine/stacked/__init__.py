"""The executor that trains all clients with equal networks together, as one stack of tensors."""

from pipeline.engine.stacked.executor import Stacked

__all__ = ["Stacked"]
