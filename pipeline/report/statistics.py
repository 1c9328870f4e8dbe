"""Statistical tests for methods with few seeds, by a randomised block design: differences, outliers, ranks.

A scenario is a table of one number per method (row) and block (column). A block is a seed with its partition:
runs of one block share initial weights, clients and order. Least squares of method and block take that out,
and all rows give one residual variance with (k - 1)(n - 1) degrees of freedom; the paired t test of two rows
has n - 1. Literature: Holm (1979) for several comparisons, Demsar (2006) for ranks.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from statsmodels.regression.linear_model import OLS, RegressionResults

# With fewer blocks no row is told to have another spread.
FEWEST_BLOCKS = 3
ALPHA = 0.05
# numbers have four decimals: closer ones are the same
ZERO = 1e-4


@dataclass(frozen=True)
class Estimate:
    """A difference of methods, or one method's level.

    d, se, df: the estimate, its standard error and degrees of freedom; v: variance of one block's value
    n: blocks, of the scenario that has the fewest; rows: that gave a pooled residual
    route: pooled, unpooled (by the spread of the blocks' values), combined (of scenarios) or identical
    outliers: rows left out of the residual, as their spread differs
    """

    d: float
    se: float
    df: float
    v: float
    n: int
    route: str
    rows: int = 0
    outliers: tuple[str, ...] = ()

    def interval(self, level: float = ALPHA, runs: float = math.inf) -> tuple[float, float]:
        """At 1 - level; with `runs`, of where the mean of so many further runs would lie."""
        half = float(stats.t.ppf(1 - level / 2, self.df)) * math.sqrt(self.se**2 + self.v / runs)
        return self.d - half, self.d + half

    def p(self, bound: float = 0.0) -> float:
        """Two-sided, of a difference from `bound`; 0 where it is known exactly."""
        return float(2 * stats.t.sf(abs(self.d - bound) / self.se, self.df)) if self.se else 0.0

    def power(self, bound: float = 0.0, level: float = ALPHA) -> float:
        """The chance that a repetition differs from `bound` on this side, if the estimate is the truth."""
        if not self.se or self.df < 1:
            return float(self.d != bound)
        critical = float(stats.t.ppf(1 - level / 2, self.df))
        return float(stats.nct.sf(critical, self.df, abs(self.d - bound) / self.se))

    def grown(self, n: int) -> "Estimate":
        """The same difference and spread from n blocks."""
        se = self.se * math.sqrt(self.n / n)
        return replace(self, se=se, df=self.df * (n - 1) / (self.n - 1), n=n)


def one_sample(values: np.ndarray, outliers: tuple[str, ...] = ()) -> Estimate:
    """Mean of one value per block by Student's t; of differences, the paired t test."""
    n, v = len(values), float(values.var(ddof=1)) if len(values) > 1 else 0.0
    return Estimate(float(values.mean()), math.sqrt(v / n), n - 1, v, n, "unpooled", outliers=outliers)


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """The sum of estimates from several scenarios, which count as independent (Welch and Satterthwaite)."""
    parts = [one for one in estimates if one.route != "identical"] or estimates[:1]
    if len(parts) < 2:
        return parts[0]
    total, squares = sum(one.se**2 for one in parts), sum(one.se**4 / max(one.df, 1) for one in parts)
    names = tuple(dict.fromkeys(name for one in parts for name in one.outliers))
    d, v, n = sum(one.d for one in parts), sum(one.v for one in parts), min(one.n for one in parts)
    return Estimate(d, math.sqrt(total), total**2 / (squares or 1.0), v, n, "combined", outliers=names)


def fit(values: np.ndarray) -> RegressionResults:
    """Least squares of method (the first coefficients) and block; values: (k methods, n blocks), NaN where
    nothing was run."""
    numbers, design = _model(values)
    with warnings.catch_warnings():
        # Of a design that is not connected; what cannot be estimated is checked for each contrast.
        warnings.simplefilter("ignore")
        return OLS(numbers, design).fit()


def _model(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(numbers, their design) of `fit`."""
    values = values[:, ~np.isnan(values).all(0)]
    method, block = np.nonzero(~np.isnan(values))
    k, n = values.shape
    return values[method, block], np.hstack([np.eye(k)[method], np.eye(n)[block][:, 1:]])


class Residual(NamedTuple):
    """Sum of squares of a fit's residuals, and their degrees of freedom."""

    squares: float
    df: int


def residual(values: np.ndarray) -> Residual:
    """Of `fit`, which takes ten times as long; a report tests hundreds of rows for their spread."""
    numbers, design = _model(values)
    coefficients, _, rank, _ = np.linalg.lstsq(design, numbers, rcond=None)
    return Residual(float(((numbers - design @ coefficients) ** 2).sum()), len(numbers) - int(rank))


def spread_test(values: np.ndarray, row: int, whole: Residual | None = None) -> tuple[float, float]:
    """(F, p) of the exact test that a row spreads more than the rest: the squares that it adds, over theirs;
    values: (3 methods or more, n blocks). whole: their fit, where it is known."""
    whole, rest = whole or residual(values), residual(np.delete(values, row, axis=0))
    df = whole.df - rest.df
    if df < 1 or rest.df < 1:
        return 0.0, 1.0
    f = max(whole.squares - rest.squares, 0.0) / df / max(rest.squares / rest.df, ZERO**2)
    return f, float(stats.f.sf(f, df, rest.df))


def outliers(values: np.ndarray) -> list[int]:
    """Rows that spread more than the others, at most a third. As in the generalised ESD test, the row with
    the smallest p is removed step by step, so that two do not mask each other; all up to the last significant
    step are outliers. None of two blocks: one degree of freedom a row says nothing of its spread, and a row
    left out would make all intervals narrower."""
    if values.shape[1] < FEWEST_BLOCKS:
        return []
    left, taken, last = list(range(len(values))), [], 0
    for step in range(1, len(values) // 3 + 1):
        whole = residual(values[left])
        tests = [spread_test(values[left], at, whole) for at in range(len(left))]
        p, _, row = min((p, -f, row) for (f, p), row in zip(tests, left))
        last = step if p < ALPHA / len(left) else last
        taken.append(row)
        left.remove(row)
    return taken[:last]


class Design:
    """One measure of one scenario: which rows give the residual, and the estimates that follow.

    rows: name -> {block: number}; pool: the names that the paper prints; further rows are compared by the
    pool's residual and add nothing to it. Not in the pool either: rows with one block, copies of another row,
    rows that never change while others do, outliers.
    """

    def __init__(self, rows: Mapping[str, Mapping[Any, float]], pool: Iterable[str]):
        pool = [name for name in dict.fromkeys(pool) if name in rows]
        self.names = [*pool, *(name for name in rows if name not in pool)]
        blocks = sorted({block for row in rows.values() for block in row})
        self.values = np.array([[rows[name].get(at, np.nan) for at in blocks] for name in self.names], float)
        # For each row the first row with the same numbers; itself, if it is no copy.
        gaps = np.isclose(self.values[:, None], self.values, rtol=0, atol=ZERO, equal_nan=True)
        self.first = gaps.all(2).argmax(1).tolist()
        self.count = (~np.isnan(self.values)).sum(1)
        spans = {i: np.nanmax(row) - np.nanmin(row) for i, row in enumerate(self.values) if self.count[i] > 1}
        candidates = [i for i in spans if i < len(pool) and self.first[i] == i]
        moving = any(spans[i] > ZERO for i in candidates)
        constant = {i for i in spans if moving and spans[i] <= ZERO}
        varying = [i for i in candidates if i not in constant]
        self.left_out = constant | {varying[i] for i in outliers(self.values[varying])}
        self.pool = [i for i in varying if i not in self.left_out]
        self.fit: Any = fit(self.values[self.pool]) if self.pool else None
        self.df = int(self.fit.df_resid) if self.fit is not None else 0
        # With fewer printed rows, a comparison uses the spread of its rows alone.
        self.pooled = len(pool) > 2 and self.df > 0

    @property
    def outliers(self) -> tuple[str, ...]:
        return tuple(self.names[i] for i in sorted(self.left_out))

    @property
    def s(self) -> float:
        """Residual standard deviation."""
        return math.sqrt(self.fit.mse_resid) if self.df else 0.0

    def estimate(self, weights: Mapping[str, float]) -> Estimate | None:
        """Of a weighted sum of rows; None where they share no block. Where the weights do not cancel, the
        blocks' effects stay in it."""
        c = np.zeros(len(self.names))
        for name, weight in weights.items():
            c[self.first[self.names.index(name)]] += weight
        used = [int(i) for i in np.flatnonzero(np.abs(c) > 1e-12)]
        if not used:
            n = int(min(self.count[self.names.index(name)] for name in weights))
            return Estimate(0.0, 0.0, n - 1, 0.0, n, "identical")
        return self._pooled(c, used) or self._unpooled(c, used)

    def _pooled(self, c: np.ndarray, used: list[int]) -> Estimate | None:
        outside = any(i in self.left_out or self.count[i] < 2 for i in used)
        if not self.pooled or outside or abs(c.sum()) > 1e-9:
            return None
        rows = [*self.pool, *(i for i in used if i not in self.pool)]
        theirs = self.fit if rows == self.pool else fit(self.values[rows])
        x = theirs.model.exog
        wanted = np.concatenate([c[rows], np.zeros(x.shape[1] - len(rows))])
        if np.abs(wanted - wanted @ theirs.model.pinv_wexog @ x).max() > 1e-6:
            return None
        d = float(wanted @ theirs.params)
        se = math.sqrt(max(theirs.cov_params(r_matrix=wanted, scale=self.s**2), 0.0))
        v, n = self.s**2 * float((c**2).sum()), int(min(self.count[used]))
        return Estimate(d, se, self.df, v, n, "pooled", len(self.pool), self.outliers)

    def _unpooled(self, c: np.ndarray, used: list[int]) -> Estimate | None:
        sums = c[used] @ self.values[used]
        sums = sums[~np.isnan(sums)]
        names = tuple(self.names[i] for i in used if i in self.left_out)
        return one_sample(sums, names) if len(sums) else None


def of_common_blocks(
    rows: Mapping[str, Mapping[Any, float]], compared: Iterable[str], pool: Iterable[str]
) -> Design | None:
    """The design of the blocks that all the rows to be compared have, so that a difference is that of their
    means over common seeds; None where they share none.

    rows      name -> {block: number}
    compared  names that a comparison is about
    pool      names that give the residual
    """
    own = [{*rows.get(name, {})} for name in compared]
    shared = set.intersection(*own) if own else set()
    cut = {name: {at: number for at, number in row.items() if at in shared} for name, row in rows.items()}
    return Design({name: row for name, row in cut.items() if row}, pool) if shared else None


def holm(p: Sequence[float]) -> tuple[list[float], list[float]]:
    """(adjusted p values, the level that each comparison is tested at) of the step-down procedure, in the
    order given. The levels, which statsmodels.stats.multitest lacks, give intervals that agree with p."""
    order, steps = np.argsort(p, kind="stable"), np.arange(len(p), 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(np.asarray(p)[order] * steps), 1.0)
    # From the first that is not rejected all have its level.
    divisors = np.maximum(steps, max(int((adjusted >= ALPHA).sum()), 1))
    place = np.argsort(order)
    return adjusted[place].tolist(), (ALPHA / divisors)[place].tolist()


class Family:
    """Comparisons that one statement joins, each against the same bound, corrected by Holm's steps; tie: 1
    where a difference of exactly `bound` counts as above it, else -1."""

    def __init__(self, estimates: Mapping[Any, Estimate], bound: float = 0.0, tie: int = -1):
        self.estimates, self.bound, self.tie = estimates, bound, tie
        p, level = holm([one.p(bound) for one in estimates.values()])
        self.p, self.level = dict(zip(estimates, p)), dict(zip(estimates, level))

    def evidence(self, name: Any) -> tuple[float, float]:
        """(how surely a difference lies above the bound, the difference), to sort by."""
        d = self.estimates[name].d
        return math.copysign(1 - self.p[name], d - self.bound or self.tie), d

    def side(self, name: Any) -> int:
        """1 above the bound, -1 below it, 0 undecided."""
        sure = self.evidence(name)[0]
        return int(math.copysign(1, sure)) if 1 - abs(sure) < ALPHA else 0


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over blocks, best first, p of Friedman's test in the form of Iman and Davenport, and the
    distance by which two mean ranks differ (Nemenyi, 5 %)."""

    means: dict[str, float]
    p: float
    distance: float

    @property
    def different(self) -> list[bool]:
        """Of every pair whether it differs."""
        return [abs(one - other) >= self.distance for one, other in combinations(self.means.values(), 2)]


def ranks(rows: Mapping[str, Sequence[float]], lower: bool | Sequence[bool] = False) -> Ranks:
    """rows: three methods or more -> a number per block; lower: whether small numbers are the best, of all
    blocks or of each."""
    values = np.round(np.array([*rows.values()], float), 9)
    k, n = values.shape
    places = stats.rankdata(values * np.where(np.broadcast_to(lower, n), 1.0, -1.0), axis=0)
    chi2 = float(stats.friedmanchisquare(*places).statistic) if np.ptp(places) else 0.0
    # Infinite where every block has the same order.
    f = (n - 1) * chi2 / (n * (k - 1) - chi2) if chi2 < n * (k - 1) - 1e-9 else math.inf
    p = float(stats.f.sf(f, k - 1, (k - 1) * (n - 1))) if f < math.inf else math.factorial(k) ** -(n - 1)
    q = float(stats.studentized_range.ppf(1 - ALPHA, k, math.inf)) / math.sqrt(2)
    means = dict(sorted(zip(rows, places.mean(1).tolist()), key=lambda item: item[1]))
    return Ranks(means, p, q * math.sqrt(k * (k + 1) / (6 * n)))
