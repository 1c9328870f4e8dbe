"""Block design, several comparisons, ranks: worked numbers of five designs, and identities that any data must
keep."""
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from pipeline.report.ranks import ranks
from pipeline.report.standings import shared
from pipeline.report.statistics import (
    ALPHA,
    Design,
    Family,
    above,
    again,
    alone,
    combined,
    critical,
    dunnett,
    first_of,
    fit,
    holm,
    holm_levels,
    logit,
    power,
    rank_ends,
    replicates,
    set_apart,
    spread_test,
    tost,
    two_sided,
)

FOUR = {"P": [70, 73, 71], "Q": [68, 72, 68], "R": [64, 66, 65], "S": [67.5, 70.5, 69]}
WILD = {
    "P": [70, 71, 72],
    "Q": [69.1, 69.9, 71.2],
    "R": [68.2, 69.5, 70.1],
    "S": [69.5, 70.3, 71.1],
    "M": [31, 50, 38],
}
EQUAL = {"P": [70, 71, 72, 70.4], "Q": [69.8, 71.1, 71.7, 70.5], "R": [68.2, 69.5, 70.1, 68.6]}
SIX = {
    "P": [81, 74, 90, 66, 70, 85],
    "Q": [79, 75, 86, 64, 68, 84],
    "R": [78, 70, 87, 65, 66, 80],
    "S": [74, 69, 85, 60, 67, 79],
}
# FedLSA's Table 2, Office-Caltech, averages of seeds 0 to 2 as measured.
OFFICE = {
    "fedavg": [46.1700, 47.6770, 53.0862],
    "fedga": [50.4845, 48.1996, 52.8159],
    "fedlsa": [51.3885, 50.1784, 57.3946],
    "fedproto": [45.7308, 46.2945, 52.0672],
    "fedprox": [50.4303, 49.7680, 54.4163],
    "fedsr": [52.6537, 53.5145, 49.3616],
    "fedtgp": [47.2239, 47.7514, 52.8892],
    "fpl": [50.7562, 52.5496, 53.6953],
    "moon": [34.0279, 23.6159, 33.6210],
}
# The same with cropped and flipped images.
AUGMENTED = {
    "fedavg": [47.2756, 49.9463, 51.9425],
    "fedga": [52.8805, 56.0863, 60.1298],
    "fedlsa": [54.6366, 57.4498, 57.7523],
    "fedproto": [47.1515, 48.2538, 51.8211],
    "fedprox": [46.1606, 47.6451, 53.1285],
    "fedsr": [50.9542, 54.5908, 50.6027],
    "fedtgp": [49.4617, 51.4081, 54.1979],
    "fpl": [56.3445, 54.0638, 61.0769],
    "moon": [28.3665, 23.7572, 10.5023],
}


def design(rows, pool=None):
    return Design({name: dict(enumerate(values)) for name, values in rows.items()}, pool or rows)


def against(made, one, others, way="Holm"):
    return Family(tuple(made.contrast({one: 1, other: -1}) for other in others), way)


def drawn(seed, k=6, n=3, sd=1.0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, sd, (k, n)) + rng.normal(0, 3, (1, n)) + 60


# -- worked numbers ------------------------------------------------------------------------------------------

def test_one_method_against_three():
    made = design(FOUR)
    assert (made.s, made.df) == (pytest.approx(0.6821, abs=1e-4), 6)
    pair = against(made, "P", "Q")
    assert (
        pair.estimates[0].d == pytest.approx(2)
        and pair.ends()[0] == pytest.approx((0.64, 3.36), abs=0.005)
        and pair.p == pytest.approx([0.0115], abs=1e-4)
    )
    best = against(made, "P", "QRS", "Dunnett")
    assert min(low for low, _ in best.ends()) == pytest.approx(0.27, abs=0.005) and min(
        high for _, high in best.ends()
    ) == pytest.approx(3.73, abs=0.005)
    assert best.p == pytest.approx([0.028, 0.00007, 0.014], rel=0.02)


def test_a_method_with_a_spread_of_its_own_is_set_apart():
    made = design(WILD)
    assert spread_test(made.values, 4)[0] == pytest.approx(2162, abs=0.5)
    assert made.apart == ("M",) and (made.s, made.df) == (pytest.approx(0.1787, abs=1e-4), 6)
    assert fit(made.values).s == pytest.approx(4.16, abs=0.005) and fit(made.values).df == 8
    pair, wild = against(made, "P", "Q"), against(made, "P", "M")
    assert pair.estimates[0].d == pytest.approx(0.933, abs=1e-3) and pair.ends()[0] == pytest.approx(
        (0.58, 1.29), abs=0.005
    )
    assert (
        wild.estimates[0].route == "paired"
        and wild.estimates[0].df == 2
        and wild.ends()[0] == pytest.approx((8.25, 54.41), abs=0.005)
    )
    best = against(made, "P", "QRSM")
    assert (min(low for low, _ in best.ends()), min(high for _, high in best.ends())) == pytest.approx(
        (0.27, 1.13), abs=0.005
    )
    assert best.p == pytest.approx([0.0021, 0.0001, 0.0060, 0.0281], abs=6e-5)


def test_equal_within_a_point_by_two_one_sided_tests():
    made = design(EQUAL)
    pair = against(made, "P", "Q")
    assert (made.s, made.df, pair.estimates[0].d) == (
        pytest.approx(0.1258, abs=1e-4),
        6,
        pytest.approx(0.075),
    )
    assert pair.ends(2 * ALPHA)[0] == pytest.approx((-0.098, 0.248), abs=5e-4) and tost(
        pair.estimates[0], 1
    ) == pytest.approx(2.3e-5, rel=0.02)


def test_mean_ranks_over_six_blocks():
    found = ranks(SIX)
    assert list(found.means.values()) == pytest.approx([1.17, 2.17, 2.83, 3.83], abs=0.005)
    assert found.chi2 == pytest.approx(13.6, abs=5e-5) and (found.f, found.p) == (
        pytest.approx(15.45, abs=0.005),
        pytest.approx(7.4e-5, abs=5e-7),
    )
    assert (
        found.df == (3, 15)
        and found.distance == pytest.approx(1.915, abs=5e-4)
        and found.groups == [["P", "Q", "R"], ["Q", "R", "S"]]
        and found.bars
    )
    assert found.chi2 == pytest.approx(stats.friedmanchisquare(*SIX.values()).statistic)


def test_nine_methods_of_which_two_are_set_apart():
    made = design(OFFICE)
    assert set(made.apart) == {"moon", "fedsr"} and (made.s, made.df) == (pytest.approx(1.2142, abs=5e-5), 12)
    others = [name for name in OFFICE if name != "fedlsa"]
    best = against(made, "fedlsa", others)
    fpl, moon = others.index("fpl"), others.index("moon")
    assert (
        best.estimates[fpl].d == pytest.approx(0.65, abs=0.005)
        and best.p[fpl] == 1
        and rank_ends(best.ends()) == (1, 6)
    )
    assert best.raw[moon] == pytest.approx(0.014, abs=5e-4) and best.p[moon] > ALPHA
    assert first_of(lambda n: min(low for low, _ in best.grown(n)) > 0, 3) is None
    assert first_of(lambda n: power(best, best.estimates[fpl], n) >= 0.8, 3) == 89
    assert (above(best.estimates[fpl], 0, runs=1), again(best.estimates[fpl])) == pytest.approx(
        (0.63, 0.68), abs=0.005
    )
    three = against(made, "fedlsa", ("fedproto", "fpl", "fedtgp"), "Dunnett")
    assert (min(low for low, _ in three.ends()), min(high for _, high in three.ends())) == pytest.approx(
        (-2.01, 3.31), abs=0.005
    )
    assert three.p == pytest.approx([0.0008, 0.85, 0.0076], abs=0.002)
    assert (
        first_of(lambda n: min(low for low, _ in three.grown(n)) > 0, 3) == 39
        and first_of(lambda n: power(three, three.estimates[1], n) >= 0.8, 3) == 71
    )


@pytest.mark.parametrize("one, other, d, ends, p, needed, powered, next_one, repeated", [
    ("fedproto", "fedavg", -0.95, (-3.11, 1.21), 0.36, 14, 27, 0.32, 0.74),
    ("fedlsa", "fedavg", 4.01, (1.85, 6.17), 0.0016, 3, 3, 0.97, 0.99)])
def test_two_of_the_nine(one, other, d, ends, p, needed, powered, next_one, repeated):
    pair = against(design(OFFICE), one, [other])
    [estimate] = pair.estimates
    assert (
        estimate.d == pytest.approx(d, abs=0.005)
        and pair.ends()[0] == pytest.approx(ends, abs=0.005)
        and pair.p == pytest.approx([p], rel=0.02)
    )
    assert first_of(lambda n: pair.grown(n)[0][0] > 0 or pair.grown(n)[0][1] < 0, 3) == needed
    assert first_of(lambda n: power(pair, estimate, n) >= 0.8, 3) == powered
    assert (above(estimate, 0, runs=1), again(estimate)) == pytest.approx((next_one, repeated), abs=0.005)
    if other == "fedavg" and one == "fedlsa":
        assert pair.ends(2 * ALPHA)[0] == pytest.approx((2.24, 5.78), abs=0.005) and pair.ends(runs=1)[
            0
        ] == pytest.approx((-0.31, 8.33), abs=0.005)


def test_nine_methods_with_augmented_images():
    made = design(AUGMENTED)
    assert made.apart == ("moon",) and (made.s, made.df) == (pytest.approx(1.849, abs=5e-4), 14)
    assert spread_test(made.values, list(AUGMENTED).index("moon"))[0] == pytest.approx(34.4, abs=0.05)
    families = [
        against(made, "fedlsa", [name for name in AUGMENTED if name != "fedlsa"]),
        against(made, "fedlsa", ("fedproto", "fpl", "fedtgp"), "Dunnett"),
        against(made, "fedproto", ["fedavg"]),
        against(made, "fedlsa", ["fedavg"]),
    ]
    found = [
        (min(e.d for e in family.estimates), *(min(ends) for ends in zip(*family.ends())))
        for family in families
    ]
    assert found == [
        pytest.approx(row, abs=0.006)
        for row in ((-0.55, -11.24, 3.55), (-0.55, -4.52, 3.42), (-0.65, -3.88, 2.59), (6.89, 3.65, 10.13))
    ]
    assert families[3].ends(2 * ALPHA)[0] == pytest.approx((4.23, 9.55), abs=0.006)


def test_rows_of_ours_add_nothing_to_the_residual():
    ours = {"ours": [50.0, 80.0, 20.0], "mine": [60.0, 40.0, 90.0]}
    made, plain = design({**OFFICE, **ours}, pool=OFFICE), design(OFFICE)
    assert (made.s, made.df, made.apart) == (plain.s, plain.df, plain.apart)
    assert made.contrast({"fedlsa": 1, "fedavg": -1}) == plain.contrast({"fedlsa": 1, "fedavg": -1})
    assert made.contrast({"ours": 1, "fedavg": -1}).se == pytest.approx(
        plain.contrast({"fedlsa": 1, "fedavg": -1}).se
    )


def test_replicates_are_no_seeds():
    found = replicates([[54.5, 60.2]])
    assert (found.s, found.df) == (pytest.approx(4.03, abs=0.005), 1)
    assert replicates([[54.5, 60.2], [70.0]]) == found and replicates([[54.5], [60.2]]) is None


# -- identities ----------------------------------------------------------------------------------------------

def test_two_methods_are_the_paired_t_test():
    rows = dict(zip("AB", drawn(1, 2, 5)))
    for made in (design(rows), design({**rows, "C": drawn(2, 1, 5)[0]}, pool="AB")):
        pair, plain = against(made, "A", "B"), stats.ttest_rel(rows["A"], rows["B"])
        assert pair.p == pytest.approx([plain.pvalue]) and pair.ends()[0] == pytest.approx(
            tuple(plain.confidence_interval(0.95))
        )
    pooled = fit(np.array(list(rows.values())))
    assert pooled.s ** 2 * 2 == pytest.approx(np.var(rows["A"] - rows["B"], ddof=1)) and pooled.df == 4


def test_least_squares_of_complete_data_is_the_closed_formula():
    y = drawn(3)
    left = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    found = fit(y)
    assert found.sse == pytest.approx((left ** 2).sum()) and found.df == 10
    assert found.contrast(np.array([1, -1, 0, 0, 0, 0.0])) == pytest.approx(
        (y[0].mean() - y[1].mean(), math.sqrt(2 / 3))
    )
    assert found.contrast(np.array([1, -0.5, -0.5, 0, 0, 0.0])) == pytest.approx(
        (y[0].mean() - y[1:3].mean(), math.sqrt(1.5 / 3))
    )


def test_missing_cells_are_adjusted_and_complete_methods_keep_their_difference():
    y = drawn(4)
    y[2, 1] = np.nan
    made = design({str(i): row for i, row in enumerate(y)})
    assert made.df == 9
    assert (
        made.contrast({"0": 1, "1": -1}).d == pytest.approx(y[0].mean() - y[1].mean())
        and made.contrast({"0": 1, "1": -1}).balanced
    )
    adjusted = made.contrast({"0": 1, "2": -1})
    assert (
        adjusted.d != pytest.approx(y[0].mean() - np.nanmean(y[2]))
        and adjusted.se > made.contrast({"0": 1, "1": -1}).se
        and not adjusted.balanced
    )


def test_rows_without_a_common_block():
    made = Design(
        {"A": {0: 1.0, 1: 2.0}, "B": {0: 2.0, 1: 4.0}, "C": {2: 1.0, 3: 2.0}, "D": {2: 5.0, 3: 7.5}}, "ABCD"
    )
    assert made.contrast({"A": 1, "C": -1}) is None and made.contrast({"A": 1, "B": -1}).route == "pooled"


def test_nothing_depends_on_order_or_on_what_a_block_adds():
    rows, names = dict(zip("ABCDEF", drawn(5))), "ABCDEF"
    plain = against(design(rows), "A", "BCD", "Dunnett")
    shifted = {name: values + [5.0, -3.0, 11.0] + 2 for name, values in rows.items()}
    turned = {name: rows[name][::-1] for name in reversed(names)}
    for other in (shifted, turned):
        again_ = against(design(other), "A", "BCD", "Dunnett")
        assert again_.p == pytest.approx(plain.p) and np.ravel(again_.ends()) == pytest.approx(
            np.ravel(plain.ends())
        )
    assert set_apart(np.array(list(turned.values()))) == []


def test_what_a_row_adds_to_the_squares():
    y = drawn(6)
    for row in range(len(y)):
        rest = np.delete(y, row, 0)
        d = y[row] - rest.mean(0)
        assert fit(y).sse - fit(rest).sse == pytest.approx(5 / 6 * ((d - d.mean()) ** 2).sum())


def test_copies_and_constants_stay_out_of_the_residual():
    rows = dict(zip("ABCD", drawn(7, 4)))
    plain, copied = design(rows), design({**rows, "E": rows["A"] + 5e-5})
    assert (copied.s, copied.df) == (plain.s, plain.df)
    twin = copied.contrast({"A": 1, "E": -1})
    assert (twin.d, twin.se, twin.route, twin.n) == (0, 0, "identical", 3) and not copied.contrast(
        {"B": 1, "E": -1}
    ).balanced
    assert copied.contrast({"B": 1, "E": -1}).d == copied.contrast({"B": 1, "A": -1}).d
    collapsed = design({**rows, "Z": [10.0, 10.0, 10.0]})
    assert (collapsed.s, collapsed.apart, collapsed.contrast({"A": 1, "Z": -1}).route) == (
        plain.s,
        ("Z",),
        "paired",
    )
    assert design({**rows, "O": [50.0, np.nan, np.nan]}).s == plain.s


def test_critical_values():
    for df in (1, 2, 6, 30):
        assert critical(1, df) == pytest.approx(stats.t.ppf(0.975, df))
    for m, df, c in ((3, 6, 3.0993), (2, 4, 3.3104), (4, 8, 3.0227), (8, 16, 2.9736)):
        assert critical(m, df) == pytest.approx(c, abs=5e-5) and dunnett(c, m, df) == pytest.approx(
            0.95, abs=1e-5
        )
    assert all(critical(m, 8) < critical(m + 1, 8) for m in range(1, 15)) and all(
        critical(3, df) > critical(3, df + 1) for df in range(1, 30)
    )


def test_critical_values_are_those_of_the_one_way_test_with_these_degrees_of_freedom():
    """Two groups of three and a control of three: df 6, correlation 1/2."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(3, 3))
    x[0] += 4                                     # so that p is neither 0 nor 1 beyond the other's error
    p = stats.dunnett(x[0], x[1], control=x[2], rng=rng).pvalue
    s = math.sqrt(sum(((row - row.mean()) ** 2).sum() for row in x) / 6)
    t = [(row.mean() - x[2].mean()) / s / math.sqrt(2 / 3) for row in x[:2]]
    assert [1 - dunnett(abs(value), 2, 6) for value in t] == pytest.approx(p, abs=2e-3)


def test_steps():
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02]) and holm_levels(p) == pytest.approx(
        [0.05 / 3, 0.025, 0.025, 0.0125]
    )
    family = against(design(dict(zip("ABCDEF", drawn(9, sd=0.7) + np.arange(6)[:, None]))), "A", "BCDEF")
    for adjusted, (low, high) in zip(family.p, family.ends()):
        assert (adjusted < ALPHA) == (low > 0 or high < 0)


def test_turning_everything_over():
    rows = dict(zip("ABCDEF", drawn(10) + np.arange(6)[:, None]))
    minus = {name: -values for name, values in rows.items()}
    others = list("BCDEF")
    one, two = against(design(rows), "A", others, "Dunnett"), against(design(minus), "A", others, "Dunnett")
    assert rank_ends(one.ends()) == rank_ends(two.ends(), low=True)
    assert [(-high, -low) for low, high in two.ends()] == [pytest.approx(ends) for ends in one.ends()]
    for way in ("Dunnett", "Holm"):
        family = against(design(rows), "F", list("ABCDE"), way)
        assert (rank_ends(family.ends())[1] == 1) == (min(low for low, _ in family.ends()) > 0)


def test_closeness_is_the_90_percent_interval():
    for seed in range(20):
        pair = against(design(dict(zip("ABCD", drawn(seed, 4)))), "A", "B")
        low, high = pair.ends(2 * ALPHA)[0]
        assert (tost(pair.estimates[0], 1.0) < ALPHA) == (-1 < low and high < 1)


def test_more_blocks_are_asked_for_only_where_they_are_needed():
    pair = against(design(OFFICE), "fedlsa", ["fedavg"])
    assert first_of(lambda n: pair.grown(n)[0][0] > 0, 3) == 3
    grown = [power(pair, pair.estimates[0], n) for n in (3, 5, 20, 100)]
    assert grown == sorted(grown) and grown[-1] == 1


def test_scenarios_are_added_as_independent():
    one, two = alone(np.array([1.0, 2.0, 4.0]), "level"), alone(np.array([3.0, 3.5, 7.0, 5.0]), "level")
    whole = combined([one, two])
    assert (whole.d, whole.se) == pytest.approx((one.d + two.d, math.hypot(one.se, two.se))) and whole.n == 3
    assert (
        whole.df == pytest.approx((one.se**2 + two.se**2) ** 2 / (one.se**4 / 2 + two.se**4 / 3))
        and combined([one]) == one
    )
    assert (
        two_sided(combined([one, alone(-two.d + np.array([0.0, 0.0, 0.0, 0.0]), "level")]), one.d - two.d)
        == 1
    )


def test_ranks_of_ties_and_of_full_agreement():
    tied = ranks({"A": [1, 1, 1], "B": [1, 1, 1], "C": [1, 1, 1]})
    assert (tied.f, tied.p, list(tied.means.values())) == (0, 1, [2, 2, 2]) and not tied.bars
    same = ranks({"A": [3, 3, 3], "B": [2, 2, 2], "C": [1, 1, 1]})
    assert same.chi2 == pytest.approx(6) and same.p == pytest.approx(1 / 36) and same.f == math.inf
    half = ranks({"A": [3, 3, 1, 2], "B": [3, 2, 2, 2], "C": [1, 1, 3, 2.5]})
    theirs = stats.friedmanchisquare([3, 3, 1, 2], [3, 2, 2, 2], [1, 1, 3, 2.5])
    assert half.chi2 == pytest.approx(theirs.statistic)
    low = ranks({name: [-value for value in row] for name, row in SIX.items()}, lower=True)
    assert low.means == ranks(SIX).means
    mixed = ranks({name: [-row[0], *row[1:]] for name, row in SIX.items()}, [True, *[False] * 5])
    assert mixed.means == ranks(SIX).means


def test_ranks_of_two_methods_are_the_sign_test_of_normal_theory():
    found = ranks({"A": [2, 2, 2, 1], "B": [1, 1, 1, 2]})
    z = (found.means["B"] - found.means["A"]) / math.sqrt(2 * 3 / (6 * 4))
    assert z == pytest.approx((3 - 1) / math.sqrt(4))
    assert (abs(found.means["B"] - found.means["A"]) > found.distance) == (2 * stats.norm.sf(z) < ALPHA)


def test_f_rises_with_chi2():
    pairs = sorted(
        (found.chi2, found.f) for seed in range(30) if (found := ranks(dict(zip("ABCD", drawn(seed, 4, 6)))))
    )
    assert all(one[1] <= two[1] for one, two in itertools.pairwise(pairs))


def test_logit_is_kept_from_the_ends():
    assert (
        logit(50) == 0
        and logit(0) == logit(0.05) == pytest.approx(-logit(100))
        and logit(90) == pytest.approx(math.log(9))
    )


# -- simulated -----------------------------------------------------------------------------------------------

def test_intervals_cover_and_the_spread_test_is_exact():
    """2,000 tables of six equal methods in three blocks."""
    pair = every = 0
    p = []
    for seed in range(2000):
        y = drawn(seed)
        found = fit(y)
        half = found.s * math.sqrt(2 / 3)
        d = y[0].mean() - y[1:].mean(1)
        pair += abs(d[0]) <= critical(1, 10) * half
        every += np.abs(d).max() <= critical(5, 10) * half
        p.append(spread_test(y, 0)[1])
    assert pair / 2000 == pytest.approx(0.95, abs=0.015) and every / 2000 == pytest.approx(0.95, abs=0.015)
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_ranks_are_over_the_blocks_and_methods_with_the_most_numbers():
    numbers = {(method, block): 1.0 for method in "12345" for block in "abc"}
    numbers |= {(method, "d"): 1.0 for method in "123"}
    assert shared(numbers, "abcd") == (list("12345"), list("abc"))                # 15 numbers, not 12
    assert shared(numbers | {("4", "d"): 1.0}, "abcd") == (list("1234"), list("abcd"))
    assert shared(numbers, "ab") == ([], [])                                      # too few blocks


def test_a_scenario_in_which_two_runs_are_equal_adds_nothing_to_a_sum():
    moving = alone(np.array([0.65, 1.63, 0.26, 0.46, -3.2]), "paired")
    equal = alone(np.zeros(5), "identical")
    assert combined([moving, equal]) is moving and combined([equal, equal]) is equal
    assert combined([moving, equal, moving]).route == "combined" and not moving.still
