"""What a user writes, typed and checked: `params.yaml` and each `papers/<paper>/paper.yaml`."""
from pipeline.schema.cell import Cell, planned
from pipeline.schema.checker import (
                                   Count,
                                   Fraction,
                                   NonNegative,
                                   Positive,
                                   Range,
                                   Share,
                                   Whole,
                                   check,
                                   check_keys,
)
from pipeline.schema.loader import (
                                                                  ROOT,
                                   DataChoice,
                                   Params,
    check_name,
    folders,
                                   load_paper,
                                   load_params,
    papers,
                                   read_yaml,
                                   shorten,
)
from pipeline.schema.methods import method_file, method_module, method_names
from pipeline.schema.paper import (
                                   ACROSS,
                                   DELTA,
                                   MINIATURE,
                                   Block,
                                   Choice,
                                   Communication,
                                   Figure,
                                   Grid,
                                   Miniature,
                                   Paper,
                                   Source,
                                   Sources,
                                   Table,
)
from pipeline.schema.scenario import (
                                   NEEDS,
                                   Attack,
                                   Data,
                                   Dirichlet,
                                   Domains,
                                   Evaluation,
                                   Model,
                                   Optimiser,
                                   Partition,
                                   Pathological,
                                   Public,
                                   Scenario,
                                   Subset,
                                   Training,
                                   setting,
)
