"""A measure in paper.yaml that no result can ever have is one line of `fedrepro check` and of a report."""

import pytest
from repository import edit

from pipeline.commands import check
from pipeline.errors import ParamError
from pipeline.report.named_measures import check_measures
from pipeline.report.writing import render
from pipeline.schema import papers

FILE = "papers/fedcrl/paper.yaml"
# By `evaluation.tests`: measures that results of such a scenario can have, whether or not any has them yet.
POSSIBLE = {
    "clients": (
        "average weighted clients_std loss pre.average post.weighted before.average after.average "
        "other.average rounds.1-2.average rounds.1-2.post.average changes.loss pace.average "
        "above.fedprox.average run.traffic run.memory run.seconds scarce.accuracy method.tau figure3.mean"
    ).split(),
    "domains": "average digits domains.std rounds.1-2.digits before.digits".split(),
    "cross": "average intra.AVG inter.AVG intra.0 pre.inter.AVG rounds.1-2.inter.1".split(),
    "pooled": "average clean.AVG corrupted.AVG post.clean.1".split(),
}
IMPOSSIBLE = {
    "clients": (
        "domain.std domains.std averge fgsm metric.worst round.1-2.average rounds.1-2.averge "
        "changes.averge pace. above.fedporx.average above.fedavg.averge before.averge run.second "
        "figure9.mean figure3.means scarce.average unseen.average clean.AVG"
    ).split(),
    "domains": "weighted domain.std digit intra.AVG".split(),
    "cross": "weighted intra.average inter.client9 domains.std".split(),
    "pooled": "weighted clean.average inter.AVG".split(),
}


def pairs(by_kind):
    return [(tests, measure) for tests, several in by_kind.items() for measure in several]


def named(root, measure, tests="clients", part="also", prefix=""):
    """A table of the paper has a column with this measure."""

    def change(document):
        document["scenarios"]["balanced"]["evaluation"]["tests"] = tests
        table = document["tables"]["table1"]
        table[part] = {"Ours": measure}
        table["blocks"]["even,public=a|Digits"]["measure"] = prefix
        if tests != "clients":  # whose measures the rest of the paper shows
            document["tables"] = {"table1": table | {"columns": {}, part: table[part]}}
            document["figures"] = {}

    edit(root / FILE, change)


def drawn(root, kind, *measures, **keys):
    """A figure of the paper has these measures."""
    figure = {"number": "7", "title": "F", "scenarios": ["balanced"], "kind": kind, "measures": [*measures]}
    edit(root / FILE, lambda document: document["figures"].update(figure7=figure | keys))


@pytest.mark.parametrize("paper", papers())
def test_no_committed_paper_names_an_impossible_measure(paper):
    check_measures(paper)


@pytest.mark.parametrize("tests, measure", pairs(POSSIBLE))
def test_a_measure_that_results_can_have_is_allowed(root, tests, measure):
    named(root, measure, tests)
    check_measures("fedcrl", root)


@pytest.mark.parametrize("tests, measure", pairs(IMPOSSIBLE))
def test_a_measure_that_no_result_can_have_is_an_error(root, tests, measure):
    named(root, measure, tests)
    with pytest.raises(ParamError, match=rf"{FILE}: tables.table1.also.Ours: unknown measure '{measure}' \("):
        check_measures("fedcrl", root)


def test_the_nearest_measure_is_named(root):
    named(root, "domain.std", "domains")
    with pytest.raises(ParamError, match="unknown measure 'domain.std' .nearest: 'domains.std'"):
        check_measures("fedcrl", root)


def test_a_wrong_measure_of_a_printed_column_is_an_error(root):
    named(root, "averge", part="columns")
    with pytest.raises(ParamError, match="tables.table1.columns.Ours: unknown measure 'averge'"):
        check_measures("fedcrl", root)


def test_a_measure_that_one_of_several_blocks_can_have_is_allowed(root):
    def change(document):
        document["scenarios"]["skewed"] = {
            **document["scenarios"]["skewed"],
            "evaluation": {"tests": "domains", "last": 1},
        }
        document["tables"]["table2"]["also"] = {"Domain": "digits"}

    edit(root / FILE, change)
    check_measures("fedcrl", root)


def test_a_block_prepends_its_beginning(root):
    named(root, "AVG", "cross", prefix="inter.")
    check_measures("fedcrl", root)


def test_a_beginning_that_no_measure_has_is_an_error(root):
    named(root, "AVG", "cross", prefix="intre.")
    where = r"tables.table1.blocks.even,public=a\|Digits.measure"
    with pytest.raises(ParamError, match=f"{where}: unknown beginning of measures 'intre.' .nearest: 'int"):
        check_measures("fedcrl", root)


def test_a_metric_of_the_papers_is_known_where_its_scenario_measures_it(root):
    def measure(document):
        document["scenarios"]["balanced"]["evaluation"]["metrics"] = ["worst"]

    named(root, "metric.worst")
    edit(root / FILE, measure)
    check_measures("fedcrl", root)


@pytest.mark.parametrize("kind, over", [("curves", []), ("sweep", ["mu"]), ("pairs", [])])
def test_a_wrong_measure_of_a_figure_is_an_error(root, kind, over):
    drawn(root, kind, "average", "averge", over=over)
    with pytest.raises(ParamError, match="figures.figure7.measures: unknown measure 'averge'"):
        check_measures("fedcrl", root)


def test_a_curve_of_what_is_computed_from_curves_is_an_error(root):
    drawn(root, "curves", "rounds.1-2.average")
    with pytest.raises(ParamError, match="figures.figure7.measures"):
        check_measures("fedcrl", root)


def test_a_figure_of_the_papers_own_may_have_any_measure(root):
    drawn(root, None, "rounds.1-2.average", "run.seconds", function="draw")
    check_measures("fedcrl", root)


def test_the_check_of_a_paper_names_it_in_one_line(root):
    named(root, "domain.std")
    wrong = [line for line in check.of_paper("fedcrl", root) if "paper.yaml" in line]
    assert len(wrong) == 1
    assert f"{FILE}: tables.table1.also.Ours: unknown measure 'domain.std'" in wrong[0]
    assert "\n" not in wrong[0]


def test_a_report_names_it_before_it_writes_a_file(measured):
    named(measured, "domain.std")
    with pytest.raises(ParamError, match=f"{FILE}: tables.table1.also.Ours: unknown measure 'domain.std'"):
        render(root=measured)
    assert not (measured / "reports").exists()


def test_a_report_of_another_paper_is_written(measured):
    named(measured, "domain.std")
    other = next(name for name in papers(measured) if name != "fedcrl")
    render([other], root=measured)
    assert (measured / f"reports/{other}.md").exists()
