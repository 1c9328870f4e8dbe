"""What a user writes, typed and checked: `params.yaml` and each `papers/<paper>/paper.yaml`."""

from pipeline.schema.cell import (
    RATE,
    Cell,
    Changes,
    ExtraSeeds,
    Published,
    Seeded,
    Trial,
    Tuned,
    planned,
    printed,
)
from pipeline.schema.checker import (
    CONTROL,
    Count,
    Finite,
    Fraction,
    Name,
    NonNegative,
    Positive,
    Range,
    Share,
    Spelling,
    Whole,
    check,
    check_keys,
)
from pipeline.schema.discovery import (
    CEILING,
    SPACES,
    functions,
    load_module,
    method_file,
    method_module,
    method_names,
    metric_names,
    network_names,
)
from pipeline.schema.documents import ROOT, check_files, check_links, read_yaml, shorten, visible
from pipeline.schema.loader import (
    check_name,
    folders,
    load_paper,
    load_params,
    overlay,
    papers,
)
from pipeline.schema.paper import (
    ACROSS,
    COMPUTED,
    DELTA,
    LISTED,
    MINIATURE,
    MINIATURES,
    PICTURE,
    PUBLISHED,
    Block,
    Figure,
    Grid,
    Miniature,
    Paper,
    Source,
    Table,
    Tuning,
)
from pipeline.schema.partitions import (
    Dirichlet,
    Domains,
    Iid,
    Partition,
    Pathological,
    Pooled,
    Shards,
    Subset,
)
from pipeline.schema.scenario import (
    DEMANDS,
    REQUIREMENTS,
    Attack,
    Data,
    Model,
    Optimiser,
    Public,
    Scenario,
    Training,
    setting,
)
