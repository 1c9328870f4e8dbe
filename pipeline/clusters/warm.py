"""Follows the code of one cell as soon as it is imported, in the process that cells are forked from.

Each of them records digests of all definitions behind it, most of which are those of every other cell: a
second and a half of following them, which a fork inherits. They are so those of the code that this process
has imported, even where a file is edited before the fork.
"""

import contextlib
import gc

from pipeline.cells.experiment import Experiment
from pipeline.errors import DAMAGED, FedReproError
from pipeline.provenance import identity
from pipeline.schema import load_paper, load_params, papers, planned


def follow() -> None:
    """Follow the code of the first cell of a miniature; a fork reports what is wrong with its own."""
    with contextlib.suppress(*DAMAGED, FedReproError):
        for paper in papers():
            if load_paper(paper).miniature:
                experiment = Experiment.of(planned(paper)[0])
                identity.digest_of(experiment)
                identity.parts_of(experiment)
                break
    # The files of these may change until a fork reads them.
    for cached in (load_paper, load_params, identity.noted):
        cached.cache_clear()
    gc.freeze()  # what a fork's collector does not touch is not copied


follow()
