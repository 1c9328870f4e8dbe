"""Statistical tests for methods with few seeds, by a randomised block design: differences, outliers, ranks.

A scenario is a table with one number for each method (row) and block (column). A block is a seed with its
partition: all runs of a block share initial weights, clients and the order of batches. Least squares removes
the effects of methods and blocks. What is left, the residual, gives one variance for all rows.

With k methods and n blocks this variance has (k - 1)(n - 1) degrees of freedom; the paired t test of two rows
has n - 1. The more degrees of freedom, the narrower an interval of few seeds. The price is an assumption,
that all rows spread alike; rows that do not are found (`outliers`) and compared by their own spread.

Literature: Holm (1979) for several comparisons, Rosner (1983) for outliers, Demsar (2006) for ranks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy import special

# Blocks from which on a row can be an outlier: with two, one degree of freedom says nothing about a spread.
FEWEST_BLOCKS = 3
# Level of significance; intervals are at 1 - ALPHA.
ALPHA = 0.05
# Numbers that are closer than this are the same, in their own unit: they are recorded with four decimals.
ZERO = 1e-4
# Singular values below this share of the largest one count as 0.
SINGULAR = 1e-15
# Weights of a sum below this count as 0: what is left of weights that cancel.
NO_WEIGHT = 1e-12
# A sum of weights below this counts as 0, so that the sum is a contrast.
NO_SUM = 1e-9
# A contrast can be estimated if its weights are this close to a weighted sum of the design's rows.
ESTIMABLE = 1e-6
# Decimals to which numbers are rounded before they are ranked, so that equal ones tie.
RANK_DECIMALS = 9


# -- distributions -------------------------------------------------------------------------------------------
# As in scipy.stats, which takes a second to import, by the functions that it calls.


def t_above(x: float, df: float) -> float:
    """Probability that Student's t is larger than x; NaN without a degree of freedom.

    x   any number
    df  degrees of freedom
    """
    return float(special.stdtr(df, -x)) if df > 0 else math.nan


def t_quantile(share: float, df: float) -> float:
    """The value below which Student's t lies with a given probability; NaN without a degree of freedom.

    share  the probability, 0 to 1
    df     degrees of freedom
    """
    return float(special.stdtrit(df, share)) if df > 0 else math.nan


def f_above(x: float, first: float, second: float) -> float:
    """Probability that F is larger than x.

    x       not negative
    first   degrees of freedom of the numerator
    second  degrees of freedom of the denominator
    """
    return float(special.fdtrc(first, second, x))


def noncentral_t_above(x: float, df: float, shift: float) -> float:
    """Probability that the noncentral t is larger than x.

    x      any number
    df     degrees of freedom
    shift  mean of its numerator (the noncentrality)
    """
    below = special.nctdtr(df, shift, x)
    if math.isnan(below):  # SciPy's quick function has no value far from the mean
        from scipy import stats  # a second

        return float(stats.nct.sf(x, df, shift))
    return float(1 - below)


# -- estimates -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A difference of methods, or the level of one method.

    d         the estimate
    se        its standard error
    df        degrees of freedom
    v         variance of the value of one block
    n         number of blocks; for several scenarios, that of the one with the fewest
    route     where the standard error is from: `pooled`, the residual of all rows; `unpooled`, the spread of
              the compared rows alone; `combined`, several scenarios; `identical`, the rows are copies
    rows      number of rows in a pooled residual; 0 for another route
    outliers  names of the rows left out of the residual because their spread differs
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
        """(lowest, highest) of an interval.

        level  share of the cases in which the interval misses, 0 to 1
        runs   infinite: the confidence interval of the estimate; a number: the prediction interval for the
               mean of so many further runs
        """
        half = t_quantile(1 - level / 2, self.df) * math.sqrt(self.se**2 + self.v / runs)
        return self.d - half, self.d + half

    def p(self, bound: float = 0.0) -> float:
        """Two-sided p value of a difference from `bound`; 0 if the difference is known exactly."""
        return 2 * t_above(abs(self.d - bound) / self.se, self.df) if self.se else 0.0

    def power(self, bound: float = 0.0, level: float = ALPHA) -> float:
        """Probability that a repetition differs significantly from `bound` on the estimate's side, if the
        estimate is true.

        bound  that the difference is tested against
        level  of significance
        """
        if not self.se or self.df < 1:
            return float(self.d != bound)
        critical = t_quantile(1 - level / 2, self.df)
        return noncentral_t_above(critical, self.df, abs(self.d - bound) / self.se)

    def grown(self, n: int) -> "Estimate":
        """The same difference and spread with another number of blocks.

        n  number of blocks, 2 or more
        """
        se = self.se * math.sqrt(self.n / n)
        return replace(self, se=se, df=self.df * (n - 1) / (self.n - 1), n=n)


def one_sample(values: np.ndarray, outliers: tuple[str, ...] = ()) -> Estimate:
    """The mean of one value for each block, by Student's t test; for differences this is the paired t test.

    values    (n blocks,); with one block the standard error is 0, with 0 degrees of freedom
    outliers  names of the rows whose spread differs from the others'
    """
    n = len(values)
    v = float(values.var(ddof=1)) if n > 1 else 0.0
    return Estimate(float(values.mean()), math.sqrt(v / n), n - 1, v, n, "unpooled", outliers=outliers)


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """The sum of estimates from several scenarios, treated as independent (Welch and Satterthwaite).

    estimates  one or more; identical ones add nothing
    """
    parts = [estimate for estimate in estimates if estimate.route != "identical"] or estimates[:1]
    if len(parts) < 2:
        return parts[0]
    variance = sum(part.se**2 for part in parts)
    squares = sum(part.se**4 / max(part.df, 1) for part in parts)
    return Estimate(
        d=sum(part.d for part in parts),
        se=math.sqrt(variance),
        df=variance**2 / (squares or 1.0),
        v=sum(part.v for part in parts),
        n=min(part.n for part in parts),
        route="combined",
        outliers=tuple(dict.fromkeys(name for part in parts for name in part.outliers)),
    )


@dataclass(frozen=True)
class Fit:
    """A least squares fit, as statsmodels' OLS computes it, bit for bit, whose import takes a second.

    design   (numbers, coefficients)
    inverse  pseudo-inverse of the design
    params   the coefficients
    squares  sum of squared residuals
    df       degrees of freedom of the residual
    """

    design: np.ndarray
    inverse: np.ndarray
    params: np.ndarray
    squares: float
    df: int

    @property
    def variance(self) -> float:
        """Of the residual; NaN without a degree of freedom."""
        return self.squares / self.df if self.df else math.nan

    def variance_of(self, weights: np.ndarray, variance: float) -> float:
        """Variance of a weighted sum of the coefficients.

        weights   (coefficients,)
        variance  of a number
        """
        covariance = self.inverse @ self.inverse.T * variance
        return float(weights @ (covariance @ weights))


def fit(values: np.ndarray) -> Fit:
    """Least squares fit of number = effect of the method + effect of the block.

    The first coefficients are those of the methods. The design need not be connected; whether a contrast can
    be estimated is checked for each one (`Design._pooled`).

    values  (k methods, n blocks), NaN where nothing was run
    """
    numbers, design = _model(values)

    # The pseudo-inverse of the design, by its singular values.
    u, singular, v = np.linalg.svd(design, full_matrices=False)
    reciprocal = np.zeros_like(singular)
    large = singular > SINGULAR * singular.max()
    reciprocal[large] = 1.0 / singular[large]
    inverse = v.T @ (reciprocal[:, None] * u.T)

    params = inverse @ numbers
    rest = numbers - design @ params
    rank = int(np.linalg.matrix_rank(np.diag(singular)))
    return Fit(design, inverse, params, float(rest @ rest), len(numbers) - rank)


def _model(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(numbers, (numbers, coefficients) their design): a column for each method, and for each block but the
    first."""
    values = values[:, ~np.isnan(values).all(0)]
    method, block = np.nonzero(~np.isnan(values))
    k, n = values.shape
    design = np.hstack([np.eye(k)[method], np.eye(n)[block][:, 1:]])
    return values[method, block], design


class Residual(NamedTuple):
    """Sum of squared residuals of a fit, and their degrees of freedom."""

    squares: float
    df: int


def residual(values: np.ndarray) -> Residual:
    """The residual of `fit`, ten times as fast; a report tests the spread of hundreds of rows.

    values  (k methods, n blocks), NaN where nothing was run
    """
    numbers, design = _model(values)
    coefficients, _, rank, _ = np.linalg.lstsq(design, numbers, rcond=None)
    squares = float(((numbers - design @ coefficients) ** 2).sum())
    return Residual(squares, len(numbers) - int(rank))


def spread_test(values: np.ndarray, row: int, whole: Residual | None = None) -> tuple[float, float]:
    """(F, p) of the exact test whether a row spreads more than the rest.

    F compares the squares that the row adds to the residual with the squares of the rest, each for one degree
    of freedom. Without a degree of freedom in one of them F is 0 and p is 1.

    values  (3 methods or more, n blocks)
    row     index of the row
    whole   the residual of all values; None: it is computed
    """
    whole = whole or residual(values)
    rest = residual(np.delete(values, row, axis=0))
    df = whole.df - rest.df
    if df < 1 or rest.df < 1:
        return 0.0, 1.0
    f = max(whole.squares - rest.squares, 0.0) / df / max(rest.squares / rest.df, ZERO**2)
    return f, f_above(f, df, rest.df)


def outliers(values: np.ndarray) -> list[int]:
    """Indices of the rows that spread more than the others, at most a third of them.

    As in the generalised ESD test (Rosner 1983), the row with the smallest p is removed step by step, so that
    two rows do not hide each other. All rows up to the last significant step are outliers. With fewer than
    FEWEST_BLOCKS blocks there are none: leaving a row out would make all intervals narrower.

    values  (k methods, n blocks)
    """
    if values.shape[1] < FEWEST_BLOCKS:
        return []
    left = list(range(len(values)))
    removed: list[int] = []
    significant = 0
    for step in range(1, len(values) // 3 + 1):
        whole = residual(values[left])
        tests = [spread_test(values[left], place, whole) for place in range(len(left))]
        # The smallest p; of equal ones the largest F.
        p, _, row = min((p, -f, row) for (f, p), row in zip(tests, left))
        if p < ALPHA / len(left):
            significant = step
        removed.append(row)
        left.remove(row)
    return removed[:significant]


class Design:
    """One measure of one scenario: which rows give the residual, and the estimates that follow.

    The rows that the paper prints give the residual, without those that have one block, are copies of another
    row, never change while others do, or are outliers. Further rows are compared by this residual, but do not
    change it, so that a verdict stays when further methods are run.

    rows  name -> {block: number}
    pool  names of the rows that the paper prints
    """

    def __init__(self, rows: Mapping[str, Mapping[Any, float]], pool: Iterable[str]):
        pool = [name for name in dict.fromkeys(pool) if name in rows]
        self.names = [*pool, *(name for name in rows if name not in pool)]
        blocks = sorted(set[Any]().union(*rows.values()))
        # (rows, blocks), NaN where nothing was run
        self.values = np.full((len(self.names), len(blocks)), np.nan)
        for i, name in enumerate(self.names):
            for j, block in enumerate(blocks):
                self.values[i, j] = rows[name].get(block, np.nan)

        # For each row the index of the first row with the same numbers; its own, if it is no copy.
        same = np.isclose(self.values[:, None], self.values, rtol=0, atol=ZERO, equal_nan=True)
        self.first = same.all(2).argmax(1).tolist()
        # Number of blocks of each row.
        self.count = (~np.isnan(self.values)).sum(1)

        # Row with two blocks or more -> its largest number minus its smallest.
        spans = {i: np.nanmax(row) - np.nanmin(row) for i, row in enumerate(self.values) if self.count[i] > 1}
        candidates = [i for i in spans if i < len(pool) and self.first[i] == i]
        moving = any(spans[i] > ZERO for i in candidates)
        constant = {i for i in spans if moving and spans[i] <= ZERO}
        varying = [i for i in candidates if i not in constant]
        self.left_out = constant | {varying[i] for i in outliers(self.values[varying])}
        self.pool = [i for i in varying if i not in self.left_out]

        self.fit = fit(self.values[self.pool]) if self.pool else None
        self.df = self.fit.df if self.fit is not None else 0
        # With fewer printed rows, a comparison uses the spread of its rows alone.
        self.pooled = len(pool) > 2 and self.df > 0

    @property
    def outliers(self) -> tuple[str, ...]:
        """Names of the rows that are left out of the residual because of their spread."""
        return tuple(self.names[i] for i in sorted(self.left_out))

    @property
    def s(self) -> float:
        """Residual standard deviation; 0 without a residual."""
        return math.sqrt(self.fit.variance) if self.fit is not None and self.df else 0.0

    def estimate(self, weights: Mapping[str, float]) -> Estimate | None:
        """The estimate of a weighted sum of rows; None if they have no block in common.

        weights  name -> weight; unless they sum to zero, the estimate includes the effects of the blocks
        """
        c = np.zeros(len(self.names))
        for name, weight in weights.items():
            c[self.first[self.names.index(name)]] += weight
        used = [int(i) for i in np.flatnonzero(np.abs(c) > NO_WEIGHT)]
        if not used:
            n = int(min(self.count[self.names.index(name)] for name in weights))
            return Estimate(0.0, 0.0, n - 1, 0.0, n, "identical")
        return self._pooled(c, used) or self._unpooled(c, used)

    def _pooled(self, c: np.ndarray, used: list[int]) -> Estimate | None:
        """The estimate by the residual of the pool; None if that does not apply.

        c     (rows,) weights
        used  indices of the rows whose weight is not 0
        """
        outside = any(i in self.left_out or self.count[i] < 2 for i in used)
        if not self.pooled or outside or abs(c.sum()) > NO_SUM:
            return None

        rows = [*self.pool, *(i for i in used if i not in self.pool)]
        fitted = self.fit if self.fit is not None and rows == self.pool else fit(self.values[rows])
        x = fitted.design
        wanted = np.concatenate([c[rows], np.zeros(x.shape[1] - len(rows))])
        # A contrast that the design cannot estimate: `wanted` is no weighted sum of rows of x.
        if np.abs(wanted - wanted @ fitted.inverse @ x).max() > ESTIMABLE:
            return None

        return Estimate(
            d=float(wanted @ fitted.params),
            se=math.sqrt(max(fitted.variance_of(wanted, self.s**2), 0.0)),
            df=self.df,
            v=self.s**2 * float((c**2).sum()),
            n=int(min(self.count[used])),
            route="pooled",
            rows=len(self.pool),
            outliers=self.outliers,
        )

    def _unpooled(self, c: np.ndarray, used: list[int]) -> Estimate | None:
        """The estimate by the spread of the compared rows alone; None if they share no block.

        c     (rows,) weights
        used  indices of the rows whose weight is not 0
        """
        sums = c[used] @ self.values[used]
        sums = sums[~np.isnan(sums)]
        names = tuple(self.names[i] for i in used if i in self.left_out)
        return one_sample(sums, names) if len(sums) else None


def of_common_blocks(
    rows: Mapping[str, Mapping[Any, float]], compared: Iterable[str], pool: Iterable[str]
) -> Design | None:
    """The design of the blocks that all compared rows have, so that means are over common seeds; None if they
    have none in common.

    rows      name -> {block: number}
    compared  names of the rows that the comparison is about
    pool      names of the rows that give the residual
    """
    blocks = [{*rows.get(name, {})} for name in compared]
    shared = set.intersection(*blocks) if blocks else set()
    if not shared:
        return None
    kept = {}
    for name, row in rows.items():
        common = {block: number for block, number in row.items() if block in shared}
        if common:
            kept[name] = common
    return Design(kept, pool)


def holm(p: Sequence[float]) -> tuple[list[float], list[float]]:
    """Correct p values for the number of comparisons, by Holm's step-down procedure (1979).

    p  of each comparison

    Returns (adjusted p values, significance level of each comparison), in the order of `p`. The levels, which
    statsmodels.stats.multitest does not return, give intervals that agree with the adjusted p values.
    """
    order = np.argsort(p, kind="stable")
    # The smallest p is multiplied by the number of comparisons, the next one by one less, and so on.
    steps = np.arange(len(p), 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(np.asarray(p)[order] * steps), 1.0)
    # All comparisons from the first one that is not significant have its level.
    divisors = np.maximum(steps, max(int((adjusted >= ALPHA).sum()), 1))
    place = np.argsort(order)
    return adjusted[place].tolist(), (ALPHA / divisors)[place].tolist()


class Family:
    """Comparisons that belong to one statement, corrected for their number by Holm's procedure.

    estimates  name -> a difference
    bound      that each difference is tested against
    tie        1 if a difference of exactly `bound` counts as above it, otherwise -1
    p          name -> adjusted p
    level      name -> significance level at which it is tested
    """

    def __init__(self, estimates: Mapping[Any, Estimate], bound: float = 0.0, tie: int = -1):
        self.estimates = estimates
        self.bound = bound
        self.tie = tie
        p, level = holm([estimate.p(bound) for estimate in estimates.values()])
        self.p = dict(zip(estimates, p))
        self.level = dict(zip(estimates, level))

    def evidence(self, name: Any) -> tuple[float, float]:
        """A key to sort by: how surely a difference is above the bound, then the difference.

        The first number is 1 - p above the bound and p - 1 below it.
        """
        d = self.estimates[name].d
        return math.copysign(1 - self.p[name], d - self.bound or self.tie), d

    def side(self, name: Any) -> int:
        """1 if a difference is significantly above the bound, -1 if it is below it, 0 if it is undecided."""
        sure = self.evidence(name)[0]
        return int(math.copysign(1, sure)) if 1 - abs(sure) < ALPHA else 0


@dataclass(frozen=True)
class Ranks:
    """Ranks of methods, after Demsar (2006).

    means     name -> mean rank over the blocks, the best first
    p         of Friedman's test in the form of Iman and Davenport
    distance  by which two mean ranks must differ to be significantly different (Nemenyi, 5 %)
    """

    means: dict[str, float]
    p: float
    distance: float

    @property
    def different(self) -> list[bool]:
        """Whether two methods differ, for all pairs in the order of `itertools.combinations`."""
        pairs = combinations(self.means.values(), 2)
        return [abs(first - second) >= self.distance for first, second in pairs]


def ranks(rows: Mapping[str, Sequence[float]], lower: bool | Sequence[bool] = False) -> Ranks:
    """Rank the methods in every block.

    rows   three methods or more -> a number for each block
    lower  whether small numbers are best: one value for all blocks, or one for each
    """
    from scipy import stats

    values = np.round(np.array([*rows.values()], float), RANK_DECIMALS)
    k, n = values.shape
    # Rank 1 is the best: numbers of which the largest is best change their sign.
    sign = np.where(np.broadcast_to(lower, n), 1.0, -1.0)
    places = stats.rankdata(values * sign, axis=0)
    chi2 = float(stats.friedmanchisquare(*places).statistic) if np.ptp(places) else 0.0
    if chi2 < n * (k - 1) - 1e-9:
        f = (n - 1) * chi2 / (n * (k - 1) - chi2)
        p = f_above(f, k - 1, (k - 1) * (n - 1))
    else:
        # All blocks have one order, so that F is infinite: p is the probability that n - 1 blocks repeat the
        # order of the first one.
        p = math.factorial(k) ** -(n - 1)

    # Nemenyi's critical difference.
    q = float(stats.studentized_range.ppf(1 - ALPHA, k, math.inf)) / math.sqrt(2)
    means = dict(sorted(zip(rows, places.mean(1).tolist()), key=lambda item: item[1]))
    return Ranks(means, p, q * math.sqrt(k * (k + 1) / (6 * n)))
