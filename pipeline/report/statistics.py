"""Inference about methods that ran with a few seeds, by a randomised block design; with so few seeds a
bootstrap is not used.

A scenario is a table of one number per method (row) and block (column). A block is a seed with its partition:
runs of one block share initial weights, clients and order, and the model y_mb = mu + alpha_m + beta_b + e_mb
takes that out. All rows give one residual variance s^2 with (k - 1)(n - 1) degrees of freedom, by Student's
t; the paired t test of two rows alone has n - 1. Numbers are percent points, alpha is 0.05 on two sides.
Literature: Dunnett (1955) and Holm (1979) for several comparisons, Schuirmann (1987) for equivalence, Demsar
(2006) for ranks over data sets, Bouthillier et al. (2021) for what seeds stand for, Benavoli et al. (2017)
for practical equality.
"""
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy import optimize, stats

ALPHA = 0.05
ZERO = 1e-4                                       # numbers have four decimals: closer ones are the same
MOST = 100                                        # the largest number of seeds that is considered
POWER = 0.8
POINT = 1.0                                       # percent points that matter in practice
CLIP = 0.05  # percent: the logit is taken at least this far from 0 and 100
EDGE = 5.0  # percent: closer to 0 or 100 than this, the logit scale is checked too


# -- the block design ----------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Fit:
    """Least squares of method + block on the cells that there are."""
    theta: np.ndarray                             # (k + n,) effects, of which only contrasts mean anything
    inverse: np.ndarray                           # (k + n, k + n) generalised inverse of X'X
    normal: np.ndarray                            # X'X
    sse: float
    df: int

    @property
    def s(self) -> float:
        return math.sqrt(self.sse / self.df) if self.df > 0 else 0.0

    def contrast(self, c: np.ndarray) -> tuple[float, float] | None:
        """(estimate, standard error / s) of sum c_m alpha_m, c (k,); None where the cells do not connect the
        rows."""
        c = np.concatenate([c, np.zeros(len(self.theta) - len(c))])
        if np.abs(c - self.normal @ (self.inverse @ c)).max() > 1e-6:
            return None
        return float(c @ self.theta), math.sqrt(max(c @ self.inverse @ c, 0.0))


def fit(values: np.ndarray) -> Fit:
    """values (k methods, n blocks), NaN where nothing was run. Of complete data: SSE = sum (y_mb - y_m. -
    y_.b + y_..)^2."""
    method, block = np.nonzero(~np.isnan(values))
    k, n = values.shape
    design = np.zeros((len(method), k + n))
    at = np.arange(len(method))
    design[at, method] = design[at, k + block] = 1.0
    y = values[method, block]
    theta, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    normal = design.T @ design
    sse = float(((y - design @ theta) ** 2).sum())
    return Fit(theta, np.linalg.pinv(normal, rcond=1e-10, hermitian=True), normal, sse, len(y) - int(rank))


def spread_test(values: np.ndarray, row: int) -> tuple[float, float]:
    """(F, p) of the exact test that a row spreads more than the rest, of three rows or more: the SSE that it
    adds, over the rest's."""
    whole, rest = fit(values), fit(np.delete(values, row, axis=0))
    df = whole.df - rest.df
    if df < 1 or rest.df < 1:
        return 0.0, 1.0
    f = max(whole.sse - rest.sse, 0.0) / df / max(rest.sse / rest.df, ZERO ** 2)
    return f, float(stats.f.sf(f, df, rest.df))


def set_apart(values: np.ndarray) -> list[int]:
    """Rows that spread more than the others, at most a third. As in the generalised ESD test, the row with
    the smallest p is removed step by step, significant or not, so that two outlying rows do not mask each
    other; all rows up to the last significant step are set apart."""
    left, taken, last = list(range(len(values))), [], 0
    for step in range(1, len(values) // 3 + 1):
        tests = [spread_test(values[left], at) for at in range(len(left))]
        p, _, row = min((p, -f, row) for (f, p), row in zip(tests, left))
        last = step if p < ALPHA / len(left) else last
        taken.append(row)
        left.remove(row)
    return taken[:last]


# -- estimates -----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Part:
    """What one scenario adds to an estimate."""
    s: float                                      # residual standard deviation, or that of the blocks' values
    v: float                                      # variance of one block's value
    slope: int                                    # df = slope * (n - 1): k - 1 of a pooled residual, 1 alone
    n: int                                        # blocks
    df: float
    variance: float                               # of the estimate: v / n where no cell is missing


@dataclass(frozen=True)
class Estimate:
    """A difference of methods, or one method's level: estimate, standard error, degrees of freedom, and how
    they came about."""
    d: float
    parts: tuple[Part, ...]
    route: str                                    # pooled, paired, level, combined (of scenarios), identical
    k: int = 0                                    # rows that gave a pooled residual
    apart: tuple[str, ...] = ()                   # rows that were set apart, or never change
    balanced: bool = False                        # pooled, of rows that have every block and no copy

    @property
    def se(self) -> float:
        return math.sqrt(sum(part.variance for part in self.parts))

    @property
    def df(self) -> float:
        return welch([part.variance for part in self.parts], [part.df for part in self.parts])

    @property
    def v(self) -> float:
        """Variance of one block's value."""
        return sum(part.v for part in self.parts)

    @property
    def n(self) -> int:
        """Blocks, of the scenario that has the fewest."""
        return min(part.n for part in self.parts)

    @property
    def still(self) -> bool:
        """Whether nothing varies over the blocks although the rows differ: perhaps the seed is not used."""
        return self.route != "identical" and any(part.s <= ZERO for part in self.parts)

    def error(self, runs: float = math.inf) -> float:
        """Standard error of the difference from the mean of so many further runs (the paper's, for one)."""
        return math.sqrt(self.se ** 2 + self.v / runs)

    def grown(self, n: int) -> "Estimate":
        """The same difference and spread from n blocks."""
        parts = tuple(replace(part, n=n, df=part.slope * (n - 1), variance=part.v / n) for part in self.parts)
        return replace(self, parts=parts)


def welch(variances: Sequence[float], dfs: Sequence[float]) -> float:
    """Degrees of freedom of a sum of independent estimates (Welch and Satterthwaite)."""
    if len(dfs) == 1 or not sum(variances):
        return float(min(dfs))
    return sum(variances) ** 2 / sum(variance ** 2 / df for variance, df in zip(variances, dfs) if df)


def alone(values: np.ndarray, route: str, apart: tuple[str, ...] = ()) -> Estimate:
    """Mean of one value per block by Student's t with n - 1 degrees of freedom; of differences, the paired t
    test."""
    n = len(values)
    v = float(values.var(ddof=1)) if n > 1 else 0.0
    return Estimate(float(values.mean()), (Part(math.sqrt(v), v, 1, n, n - 1, v / n),), route, apart=apart)


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """The sum of estimates from several scenarios, which count as independent."""
    moving = [estimate for estimate in estimates if estimate.route != "identical"]
    if len(moving) < 2:                               # one that is 0 in every block adds nothing
        return (moving or estimates)[0]
    estimates = moving
    parts = tuple(part for estimate in estimates for part in estimate.parts)
    names = dict.fromkeys(name for estimate in estimates for name in estimate.apart)
    return Estimate(sum(estimate.d for estimate in estimates), parts, "combined", apart=tuple(names))


class Design:
    """One measure of one scenario: which rows give the residual, and the estimates that follow.

    rows: name -> {block: number}. pool: the names that the paper prints; further rows are compared by the
    pool's residual and add nothing to it. Out of the pool: rows with one block, copies of another row, rows
    that never change while others do, rows set apart.
    """

    def __init__(self, rows: dict[str, dict], pool: Iterable[str]):
        pool = [name for name in dict.fromkeys(pool) if name in rows]
        self.names = [*pool, *(name for name in rows if name not in pool)]
        blocks = sorted({block for row in rows.values() for block in row})
        self.values = np.array([[rows[name].get(at, np.nan) for at in blocks] for name in self.names], float)
        # For each row the first row with exactly the same numbers; itself, if it is no copy.
        self.first = [[_copies(other, row) for other in self.values].index(True) for row in self.values]
        several = [i for i in range(len(self.names)) if self._count(i) > 1]
        spans = {i: np.nanmax(self.values[i]) - np.nanmin(self.values[i]) for i in several}
        own = [i for i in several if i < len(pool) and self.first[i] == i]
        moving = any(spans[i] > ZERO for i in own)
        self.constant = {i for i in several if moving and spans[i] <= ZERO}
        kept = [i for i in own if i not in self.constant]
        self.wild = {kept[i] for i in set_apart(self.values[kept])}
        self.pool = [i for i in kept if i not in self.wild]
        self.enough = len(pool) > 2  # with fewer printed rows, a comparison uses its own spread alone
        self.fit = fit(self._cut(self.pool)) if self.pool else None

    @property
    def apart(self) -> tuple[str, ...]:
        return tuple(self.names[i] for i in sorted(self.wild | self.constant))

    @property
    def s(self) -> float:
        """Residual standard deviation."""
        return self.fit.s if self.fit else 0.0

    @property
    def df(self) -> int:
        return self.fit.df if self.fit else 0

    def contrast(self, coefficients: dict[str, float]) -> Estimate | None:
        """sum c_m y_m of rows, with sum c = 0; None where they share no block."""
        c = np.zeros(len(self.names))
        for name, coefficient in coefficients.items():
            c[self.first[self.names.index(name)]] += coefficient
        used = [int(i) for i in np.flatnonzero(np.abs(c) > 1e-12)]
        if not used:
            n = min(self._count(self.names.index(name)) for name in coefficients)
            return Estimate(0.0, (Part(0.0, 0.0, 1, n, n - 1, 0.0),), "identical")
        return self._pooled(c, used) or self._paired(c, used)

    def level(self, coefficients: dict[str, float]) -> Estimate | None:
        """sum c_m y_m of rows whose coefficients do not cancel: block effects stay in it."""
        values = self.values[[self.names.index(name) for name in coefficients]]
        found = (np.array([*coefficients.values()]) @ values)[~np.isnan(values).any(0)]
        return alone(found, "level") if len(found) else None

    def _pooled(self, c: np.ndarray, used: list[int]) -> Estimate | None:
        outside = any(i in self.wild | self.constant or self._count(i) < 2 for i in used)
        if not self.enough or self.df < 1 or outside:
            return None
        rows = [*self.pool, *(i for i in used if i not in self.pool)]
        theirs = self.fit if self.fit and len(rows) == len(self.pool) else fit(self._cut(rows))
        found = theirs.contrast(c[rows])
        if found is None:
            return None
        d, scale = found
        n = min(map(self._count, used))
        v = self.s ** 2 * float((c ** 2).sum())
        part = Part(self.s, v, len(self.pool) - 1, n, self.df, (self.s * scale) ** 2)
        balanced = all(self.first.count(i) == 1 and not np.isnan(self.values[i]).any() for i in used)
        return Estimate(d, (part,), "pooled", len(self.pool), self.apart, balanced)

    def _paired(self, c: np.ndarray, used: list[int]) -> Estimate | None:
        values = self.values[used]
        found = (c[used] @ values)[~np.isnan(values).any(0)]
        apart = tuple(name for name in self.apart if self.names.index(name) in used)
        return alone(found, "paired", apart) if len(found) else None

    def _cut(self, rows: list[int]) -> np.ndarray:
        """The values of some rows, without the blocks that none of them has."""
        values = self.values[rows]
        return values[:, ~np.isnan(values).all(0)]

    def _count(self, row: int) -> int:
        return int((~np.isnan(self.values[row])).sum())


def _copies(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.allclose(one, other, rtol=0, atol=ZERO, equal_nan=True))


# -- several comparisons in one statement --------------------------------------------------------------------

@lru_cache
def _nodes() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return *np.polynomial.hermite_e.hermegauss(80), *np.polynomial.legendre.leggauss(120)


def dunnett(c: float, m: int, df: float) -> float:
    """P(max |T_j| <= c) of m comparisons with one method, correlated by 1/2, on one residual with df degrees
    of freedom."""
    z, weight, x, step = _nodes()
    low, high = np.sqrt(stats.chi2.ppf([1e-13, 1 - 1e-13], df) / df)
    s = (low + high) / 2 + (high - low) / 2 * x
    density = 2 * df * s * stats.chi2.pdf(df * s ** 2, df) * step * (high - low) / 2
    a = math.sqrt(2) * c * s[:, None]
    inside = ((stats.norm.cdf(a + z) - stats.norm.cdf(z - a)) ** m) @ weight / math.sqrt(2 * math.pi)
    return float(density @ inside)


@lru_cache(maxsize=4096)
def critical(m: int, df: float, alpha: float = ALPHA) -> float:
    """Dunnett's c(m, df); Student's t quantile for one comparison."""
    low, high = (float(stats.t.ppf(1 - alpha / 2 / share, df)) for share in (1, m))
    if m == 1:
        return low
    return float(optimize.brentq(lambda c: dunnett(c, m, df) - 1 + alpha, low, high + 1e-6, xtol=1e-9))


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values of the step-down procedure, in the order given."""
    found, worst = [0.0] * len(p), 0.0
    for i, at in enumerate(sorted(range(len(p)), key=lambda at: p[at])):
        worst = max(worst, min(1.0, (len(p) - i) * p[at]))
        found[at] = worst
    return found


def holm_levels(p: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """The level that each comparison is tested at: alpha / (m - i), and from the first that is not rejected
    on its own."""
    levels, level, open_ = [0.0] * len(p), 0.0, False
    for i, at in enumerate(sorted(range(len(p)), key=lambda at: p[at])):
        level = level if open_ else alpha / (len(p) - i)
        open_ = open_ or p[at] >= level
        levels[at] = level
    return levels


@dataclass(frozen=True)
class Family:
    """Estimates that one statement joins, each against the same bound: adjusted p values, and intervals that
    by Dunnett hold simultaneously, by Holm's levels only for the side of the bound on which they lie."""
    estimates: tuple[Estimate, ...]
    way: str = "Holm"                             # or Dunnett
    bound: float = 0.0

    @property
    def raw(self) -> list[float]:
        """Two-sided p of every estimate on its own."""
        return [two_sided(estimate, self.bound) for estimate in self.estimates]

    @property
    def p(self) -> list[float]:
        """Adjusted p values."""
        if self.way == "Dunnett":
            m = len(self.estimates)
            return [max(1 - dunnett(abs(e.d - self.bound) / e.se, m, e.df), 0.0) for e in self.estimates]
        return holm(self.raw)

    def ends(self, alpha: float = ALPHA, runs: float = math.inf) -> list[tuple[float, float]]:
        """Intervals at 1 - alpha; with `runs`, of where the mean of so many further runs would lie."""
        levels = holm_levels(self.raw, alpha)
        return [_around(e, self._factor(e, level, alpha) * e.error(runs))
                for e, level in zip(self.estimates, levels)]

    def grown(self, n: int) -> list[tuple[float, float]]:
        """Intervals from n blocks, if differences and spread stayed; Holm's steps at their most cautious
        level."""
        return [_around(e, self.factor(e, n) * e.grown(n).se) for e in self.estimates]

    def factor(self, estimate: Estimate, n: int) -> float:
        """The factor of a standard error in an interval from n blocks."""
        return self._factor(estimate.grown(n), ALPHA / len(self.estimates), ALPHA)

    def _factor(self, estimate: Estimate, level: float, alpha: float) -> float:
        if self.way == "Dunnett":
            return critical(len(self.estimates), estimate.df, alpha)
        return float(stats.t.ppf(1 - level / 2, estimate.df))


def _around(estimate: Estimate, half: float) -> tuple[float, float]:
    return estimate.d - half, estimate.d + half


def two_sided(estimate: Estimate, bound: float = 0.0, runs: float = math.inf) -> float:
    """p of a difference from `bound`; with `runs`, from the mean of so many further runs that was seen to be
    `bound`."""
    apart, error = abs(estimate.d - bound), estimate.error(runs)
    if not error:
        return 1.0 if apart <= ZERO else 0.0
    return float(2 * stats.t.sf(apart / error, estimate.df))


def tost(estimate: Estimate, margin: float, bound: float = 0.0) -> float:
    """p of two one-sided tests that the difference is nearer to `bound` than the margin; below 0.05 where the
    90 % interval is."""
    apart = abs(estimate.d - bound)
    if not estimate.se:
        return 0.0 if apart < margin else 1.0
    return float(stats.t.sf((margin - apart) / estimate.se, estimate.df))


def rank_ends(ends: Sequence[tuple[float, float]], low: bool = False) -> tuple[int, int]:
    """(first, last) place that one row can have, from simultaneous intervals of its differences to all the
    others."""
    below, above = sum(high < 0 for _, high in ends), sum(low_ > 0 for low_, _ in ends)
    below, above = (above, below) if low else (below, above)
    return 1 + below, len(ends) + 1 - above


# -- what more blocks would tell -----------------------------------------------------------------------------

def first_of(decided: Callable[[int], bool], n: int) -> int | None:
    """The first number of blocks, from n to MOST, that decides; None beyond. More blocks never undo it."""
    found = bisect_left(range(n, MOST + 1), True, key=decided)
    return n + found if n + found <= MOST else None


def power(family: Family, estimate: Estimate, n: int) -> float:
    """Probability that n blocks find one difference of a family, if it is as large as measured."""
    grown = estimate.grown(n)
    if not grown.se:
        return 1.0
    away = abs(estimate.d - family.bound) / grown.se
    found = float(stats.nct.sf(family.factor(estimate, n), grown.df, away))
    return 1.0 if math.isnan(found) else found    # so far in the tail that the distribution is not computed


def above(estimate: Estimate, bound: float, runs: float = math.inf) -> float:
    """Share of the posterior (flat prior) above a bound; with runs=1, the chance that the next block's value
    is."""
    error, lead = estimate.error(runs), estimate.d - bound
    return float(stats.t.cdf(lead / error, estimate.df)) if error else float(lead > 0)


def again(estimate: Estimate, bound: float = 0.0) -> float:
    """Chance that a repetition with as many blocks has the same sign."""
    lead = abs(estimate.d - bound)
    return float(stats.t.cdf(lead / (math.sqrt(2) * estimate.se), estimate.df)) if estimate.se else 1.0


# -- other scales --------------------------------------------------------------------------------------------

def logit(percent: float) -> float:
    """ln p/(1 - p) of a percentage, which is kept a little away from 0 and 100."""
    p = min(max(percent, CLIP), 100 - CLIP) / 100
    return math.log(p / (1 - p))


# -- replicates ----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Replicates:
    """How far runs of one cell and seed lie apart that differ in nothing but the machine's arithmetic."""
    s: float                                      # standard deviation of one run, pooled over the cells
    df: int


def replicates(cells: Iterable[Sequence[float]]) -> Replicates | None:
    """Pooled over cells, each with its runs; None where no cell was run twice. Replicates are nested in a
    block: they are no further seeds."""
    arrays = [np.asarray(runs, float) for runs in cells]
    df = sum(len(runs) - 1 for runs in arrays)
    if not df:
        return None
    sse = sum(float(((runs - runs.mean()) ** 2).sum()) for runs in arrays)
    return Replicates(math.sqrt(sse / df), df)
