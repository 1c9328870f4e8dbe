"""Mean ranks of methods over data sets (Friedman, Iman and Davenport), and how far apart they must be
(Nemenyi), after Demsar (2006).

Blocks are scenarios, one column each, so that columns of one run do not count twice. Mean ranks depend on
which methods are in the table (Benavoli et al. 2016), so no claim is judged by them.
"""
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from pipeline.report.statistics import ALPHA

METHODS, BLOCKS = 3, 5                            # fewer: no bars are drawn
ADVISED = (5, 10)                                 # methods and blocks that Demsar asks for


@dataclass(frozen=True)
class Ranks:
    """Mean ranks (1 is the best) and the tests on them."""
    means: dict[str, float]                       # best first
    blocks: int
    chi2: float
    f: float                                      # Iman and Davenport's, which is the one that counts
    p: float
    distance: float                               # Nemenyi's critical difference

    @property
    def df(self) -> tuple[int, int]:
        return len(self.means) - 1, (len(self.means) - 1) * (self.blocks - 1)

    @property
    def groups(self) -> list[list[str]]:
        """Maximal groups of methods whose mean ranks differ by less than the critical difference."""
        names, ranks = list(self.means), list(self.means.values())
        ends = [max(j for j, other in enumerate(ranks) if other - rank < self.distance) for rank in ranks]
        return [names[i:end + 1] for i, end in enumerate(ends) if end > i and (i == 0 or ends[i - 1] < end)]

    @property
    def apart(self) -> list[tuple[str, str]]:
        """The pairs of methods that differ, the better one first."""
        return [(one, other) for one, other in combinations(self.means, 2)
                if self.means[other] - self.means[one] >= self.distance]

    @property
    def bars(self) -> bool:
        """Whether groups may be drawn: where the ranks differ at all, of enough methods over enough
        blocks."""
        return self.p < ALPHA and len(self.means) >= METHODS and self.blocks >= BLOCKS


def ranks(rows: Mapping[str, Sequence[float]], lower: bool | Sequence[bool] = False) -> Ranks:
    """rows: method -> a number per block, all of them there. lower: whether small numbers are the best (of
    every block)."""
    values = np.round(np.array([list(row) for row in rows.values()], float), 9)
    k, n = values.shape
    sign = np.where(np.broadcast_to(lower, n), 1.0, -1.0)
    places = stats.rankdata(values * sign, axis=0)
    ties = sum(int(t) ** 3 - int(t) for block in places.T for t in np.unique(block, return_counts=True)[1])
    spread = 12 * (places.sum(1) ** 2).sum() - 3 * n ** 2 * k * (k + 1) ** 2
    scale = n * k * (k + 1) - ties / (k - 1)
    chi2 = spread / scale if scale > 1e-9 else 0.0
    f, p = _iman_davenport(chi2, k, n)
    q = float(stats.studentized_range.ppf(1 - ALPHA, k, math.inf)) / math.sqrt(2)
    means = dict(sorted(zip(rows, places.mean(1).tolist()), key=lambda item: item[1]))
    distance = q * math.sqrt(k * (k + 1) / (6 * n))
    return Ranks(means, n, float(chi2), f, p, distance)


def _iman_davenport(chi2: float, k: int, n: int) -> tuple[float, float]:
    left = n * (k - 1) - chi2
    if left < 1e-9:                               # every block has the same order
        return math.inf, math.factorial(k) ** -(n - 1)
    f = (n - 1) * chi2 / left
    return float(f), float(stats.f.sf(f, k - 1, (k - 1) * (n - 1))) if chi2 > 0 else 1.0
