"""Federated training of many clients; the names below are what methods are written with."""

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.phase import Client, LocalOptions, Logged, Objective
from pipeline.engine.public import PublicBatch
from pipeline.engine.state import Clients, Params, State
from pipeline.engine.trained import ClassMeans, Trained
from pipeline.engine.world import World
