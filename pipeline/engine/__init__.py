"""Federated training of many clients. Methods are written with the names below."""

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.phase import Client, LocalOptions, Logged, Objective
from pipeline.engine.public import PublicBatch
from pipeline.engine.state import Clients, Params, State
from pipeline.engine.trained import ClassMeans, Trained
from pipeline.engine.world import World
