"""The files that a user writes, typed and checked: `params.yaml` and `papers/<paper>/paper.yaml`."""

from pipeline.schema.cell import RATE, Cell, Trial, Tuned, planned, printed
from pipeline.schema.checker import Count, Fraction, NonNegative, Positive, Share, Whole, check
from pipeline.schema.discovery import functions, load_module, method_names
from pipeline.schema.documents import ROOT, read_yaml, shorten, visible
from pipeline.schema.loader import find_scenario, folders, load_paper, load_params, papers
from pipeline.schema.paper import ACROSS, COMPUTED, LISTED, MINIATURE, MINIATURES, Figure, Paper, Table
from pipeline.schema.partitions import Domains, Pooled, Subset
from pipeline.schema.scenario import Data, Model, Optimiser, Public, Scenario, Training
