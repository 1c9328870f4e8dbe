"""The papers as data: rows and columns lead to measures of cells; settings are the printed ones; its texts
are short, and without typed measured numbers."""

import re
from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from pipeline.data import registry
from pipeline.data.partition import Pool, partition
from pipeline.report.measures import COSTS
from pipeline.report.published import read_published
from pipeline.schema import MINIATURES, ROOT, Domains, Paper, Subset, Table, load_paper
from pipeline.schema.paper import DELTA, Block

PAPERS = ("fedccl", "fcclplus", "fedlsa", "rahfl", "fedcrl")  # those that come with FedRepro
# Blocks that state a setting or a cost; no run measures them.
UNMEASURED = (
    "local-computation module-cost private-data-scale quantity=model hyper-parameter hyperparameters "
    "dataset-statistics"
).split()
# other readings of one data set of a table
PARTIAL = (
    "table1-few table2-augmented table2-tuned table6-dir-05 table8-02 table8-released table9-released"
).split()


@cache
def published(paper: str) -> dict[str, list[dict[str, str]]]:
    """Rows of every table of a paper by the table's key."""
    return {key: read_published(paper, table) for key, table in load_paper(paper).tables.items()}


def printed(paper, key, **where):
    """{(dataset, method, column): value} of a settings table."""
    return {
        (row["dataset"], row["method"], row["column"]): row["value"]
        for row in published(paper)[key]
        if all(text in row[field] for field, text in where.items())
    }


def rows(paper: str):
    """(table key, table, row) of every published number."""
    tables = load_paper(paper).tables
    return [(key, tables[key], row) for key, actual in published(paper).items() for row in actual]


def number(row) -> float:
    """The printed number, or what it must have been where the scan garbled it."""
    likely = re.search(r"likely=([\d.]+)", row["note"])
    return float(likely[1] if likely else row["value"])


def measures(scenario) -> set[str]:
    """What an evaluation of the scenario gives."""
    kind, clients = scenario.evaluation.tests, getattr(scenario.partition, "sizes", {})
    if kind == "clients":
        return {"average", "weighted", "clients_std"}
    if kind == "domains":
        return {"average", *scenario.data.domains}
    if kind == "cross":
        return {f"{where}.{name}" for where in ("intra", "inter") for name in (*clients, "AVG")}
    if scenario.corruption is not None:
        return {f"{test}.{name}" for test in ("clean", "corrupted") for name in (*clients, "AVG")}
    return {"average", "fgsm", "pgd"} if scenario.evaluation.attack else {"average"}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_printed_number_is_a_measure_of_a_cell_of_a_grid(paper):
    document = load_paper(paper)
    planned = {(s, m) for grid in document.grids.values() for s in grid.scenarios for m in grid.methods}
    for key, table, row in rows(paper):
        block = table.block(row["setting"], row["dataset"], row["method"])
        measure = block and table.measure(block, row["column"])
        if measure is None:
            continue
        where = key, row["setting"], row["dataset"], row["column"], row["method"]
        mean_row = row["method"] in table.rows and table.rows[row["method"]] is None
        assert mean_row or (block.scenario, document.method_of(table, row["method"])) in planned, where
        assert measure in measures(document.scenarios[block.scenario]) | COSTS.keys(), where
    drawn = {(s, m) for figure in document.figures.values() for s in figure.scenarios for m in figure.methods}
    assert drawn <= planned


@pytest.mark.parametrize("paper", PAPERS)
def test_every_scenario_is_used_and_described(paper):
    document = load_paper(paper)
    drawn = {name for figure in document.figures.values() for name in figure.scenarios}
    in_tables = {block.scenario for table in document.tables.values() for block in table.blocks.values()}
    printed = [one for one in document.figures.values() if not one.title.endswith("(not in the paper)")]
    of_the_print, extra = in_tables.union(*(one.scenarios for one in printed)), {*document.extra_scenarios}
    assert not of_the_print & extra
    assert drawn | in_tables | extra == set(document.scenarios) - {*MINIATURES}
    assert set(document.titles) == set(document.scenarios) - {*MINIATURES} >= set(document.notes)


def test_a_column_of_ours_has_the_model_before_the_blocks_measure():
    table = Table("1", "", "x.csv", also={"averaged": "pre.AVG", "local": "post.average"})
    assert table.measure(Block("main", "inter."), "averaged") == "pre.inter.AVG"
    assert table.measure(Block("main"), "local") == "post.average"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_published_file_is_a_table(paper):
    folder = ROOT / "papers" / paper / "published"
    files = {path.name for path in folder.glob("*.csv")} - {"missing.csv"}
    assert files == {table.published for table in load_paper(paper).tables.values()}
    assert (ROOT / "papers" / paper / "claims.csv").exists()


@pytest.mark.parametrize("paper", PAPERS)
def test_every_block_stands_in_its_table(paper):
    for key, table in load_paper(paper).tables.items():
        rows = published(paper)[key]
        blocks = {f"{row['setting']}|{row['dataset']}" for row in rows}
        of_rows = {f"{row['setting']}|{row['dataset']}|{row['method']}" for row in rows}
        assert set(table.blocks) <= blocks | of_rows, key
        assert set(table.rows) <= {row["method"] for row in rows}, key
        assert set(table.columns) <= {row["column"] for row in rows}, key
        if key in PARTIAL:
            continue
        left_out = {block.split("|")[0] for block in blocks - set(table.blocks)}
        assert all(any(word in setting for word in UNMEASURED) for setting in left_out), (key, left_out)


# (table, dataset, method) whose printed average is not the mean of its printed parts, within 0.02.
AVERAGES = {
    "fedccl": {("1", "Office-10", m) for m in ("FedAvg", "FedProc", "FedProto", "FPL")}
    | {("2", "Digit-5", m) for m in ("FedProc", "FPL", "FedCCL")}
    | {("2", "Office-10", m) for m in ("FedPCL", "FPL")},
    "fcclplus": {
        ("9", "Digits", "FedDF"),
        ("9", "Digits", "FedMatch"),
        ("9", "Digits", "FCCL"),
        ("15", "Office31", "FCCL+"),
        ("10", "Digits", "FCCL+[fccm=1,fisl=0,fntd=0]"),
        ("10", "Digits", "FCCL+[fccm=0,fisl=0,fntd=0]"),
    },
    "fedcrl": {("3", "CIFAR-10", "Averaged"), ("3", "CIFAR-100", "Averaged")},
}
# (table, dataset, method) whose printed delta is not average minus baseline, within 0.011.
DELTAS = {
    "fcclplus": {
        ("8", "Office Caltech", "FCCL"),
        ("8", "Office-Home", "FCCL"),
        ("15", "Digits", "MOON[tau=1]"),
    }
}


def blocks_of(paper):
    """(table, setting, dataset) -> method -> column -> printed number, of the tables with measured blocks."""
    actual = defaultdict(lambda: defaultdict(dict))
    for _, table, row in rows(paper):
        block = table.block(row["setting"], row["dataset"], row["method"])
        measure = block and table.measure(block, row["column"])
        if block and (row["column"] == DELTA or measure and measure not in COSTS):
            actual[row["table"], row["setting"], row["dataset"]][row["method"]][row["column"]] = number(row)
    return actual


@pytest.mark.parametrize("paper", PAPERS)
def test_printed_averages_are_the_means_of_their_parts(paper):
    wrong = set()
    for (table, _, dataset), block in blocks_of(paper).items():
        for method, columns in block.items():
            parts = [value for column, value in columns.items() if column not in ("Avg", "AVG", DELTA)]
            average = columns.get("Avg", columns.get("AVG"))
            if average is not None and len(parts) > 1 and abs(sum(parts) / len(parts) - average) > 0.0201:
                wrong.add((table, dataset, method))
        for column, average in block.get("Averaged", {}).items():
            parts = [
                columns[column]
                for method, columns in block.items()
                if method != "Averaged" and column in columns
            ]
            if abs(sum(parts) / len(parts) - average) > 0.0201:
                wrong.add((table, dataset, "Averaged"))
    assert wrong == AVERAGES.get(paper, set())


@pytest.mark.parametrize("paper", PAPERS)
def test_printed_deltas_are_differences_to_the_baseline(paper):
    wrong, tables = set(), {table.number: table for table in load_paper(paper).tables.values()}
    for (table, _, dataset), block in blocks_of(paper).items():
        without = [method for method, columns in block.items() if DELTA not in columns]
        if len(without) == len(block):
            continue
        assert without == [tables[table].baseline or without[0]], (table, dataset)
        for method, columns in block.items():
            value, base = (
                next(iter(v for c, v in actual.items() if c in ("Avg", "AVG")), next(iter(actual.values())))
                for actual in (columns, block[without[0]])
            )
            if DELTA in columns and abs(value - base - columns[DELTA]) > 0.0111:
                wrong.add((table, dataset, method))
    assert wrong == DELTAS.get(paper, set())


FCCLPLUS = {
    "Digits": "digits",
    "Office Caltech": "office-caltech",
    "Office31": "office31",
    "Office-Home": "office-home",
}


def test_fcclplus_networks_are_the_printed_ones():
    scenarios = load_paper("fcclplus").scenarios
    networks = printed("fcclplus", "table6")
    used = {"MobileNet": "mobilenetv2"}
    assert {(d, c): scenarios[FCCLPLUS[d]].models[c].name for d, _, c in networks} == {
        (d, c): used.get(v, v.lower()) for (d, _, c), v in networks.items()
    }


def test_fcclplus_hyper_parameters_are_the_printed_ones():
    keys = {
        "FedProx": "fedprox",
        "FedProc": "fedproc",
        "FedRS": "fedrs",
        "RHFL": "rhfl",
        "FCCL": "fccl",
        "FCCL+": "fcclplus",
        "MOON": "moon-1",
    }
    methods_of = load_paper("fcclplus").methods
    differ = {
        (method, column)
        for (_, method, column), value in printed("fcclplus", "table7").items()
        if methods_of[keys[method]][{"lambda": "lam"}.get(column, column)] != float(value)
    }
    assert differ == {("FCCL+", "mu")}  # Table 7 has 0.002, the text and the code 0.02


def test_fedcrl_settings_are_the_printed_ones():
    document = load_paper("fedcrl")
    values = {column: float(value) for (_, _, column), value in printed("fedcrl", "table1").items()}
    for name in set(document.scenarios) - {*MINIATURES}:
        scenario = document.scenarios[name]
        assert (
            scenario.training.optimiser.lr,
            scenario.training.batch_size,
            scenario.training.local_epochs,
        ) == (values["eta"], values["b"], values["r"])
        assert (scenario.model.features, scenario.model.dropout) == (values["k"], values["beta_dropout"])
        assert name in document.extra_scenarios or scenario.seeds == [0, 1, 2, 3, 4]
    assert [document.methods["fedcrl"][key] for key in ("alpha", "tau", "gamma")] == [
        values[key] for key in ("alpha", "tau_CL", "gamma")
    ]


def test_rahfl_local_epochs_follow_from_the_sizes():
    for name, scenario in load_paper("rahfl").scenarios.items():
        if name not in MINIATURES:
            expected = {max(scenario.public.size // size, 1) for size in scenario.partition.sizes.values()}
            assert expected == {scenario.training.local_epochs}


def official_pool(data) -> Pool:
    """A pool with as many images per domain and part as the official set, classes in turn."""
    entry = registry.find(data.set)
    counts = entry.expected("canonical") or {
        part: registry.find(part).expected("canonical")[part] for part in entry.parts
    }
    chosen = data.domains or {name: name for name in counts}
    sizes = [counts[name] for name in chosen.values()]
    test = np.concatenate([np.arange(sum(pair)) >= pair[0] for pair in sizes])
    domains = np.repeat(np.arange(len(sizes)), [sum(pair) for pair in sizes])
    return Pool(np.arange(len(test)) % entry.classes, domains, test, list(chosen), entry.classes)


@pytest.mark.parametrize("paper", PAPERS)
def test_partitions_by_domain_and_size_can_be_cut(paper):
    for name, scenario in load_paper(paper).scenarios.items():
        kind = scenario.partition
        if not isinstance(kind, (Domains, Subset)) or scenario.data.set == "domainnet" or name in MINIATURES:
            continue
        parts = partition(kind, official_pool(scenario.data), name)
        assert min(map(len, parts.train)) >= 10, name
        assert min(map(len, parts.domain_test.values())) >= (
            25 if getattr(kind, "validation", False) else 30
        ), name
        if isinstance(kind, Subset):
            assert [len(part) for part in parts.train] == list(kind.sizes.values()), name


# What a partition of official size has otherwise than the print, as the scenarios' notes say.
FEDLSA_DIFFERS = {
    ("Digits", "Instances"): 203_587 + 9_000,
    ("PACS", "Feature Dimensions[0]"): 224,
    ("PACS", "Feature Dimensions[1]"): 224,
}
FCCLPLUS_DIFFERS = {
    ("Digits", "SV"): 6.83,
    ("Office Caltech", "D"): 47,
    **{("Office-Home", client): share for client, share in zip("ACPR", (82.45, 65.47, 80.46, 65.60))},
}


def test_fedlsas_printed_counts_are_the_partitions():
    """Table 1: all images of the domains, training and test parts together."""
    document, differs, sizes = load_paper("fedlsa"), {}, {}
    keys = {"Digits": "digits", "Office Caltech": "office-caltech", "PACS": "pacs"}
    for (dataset, _, column), value in printed("fedlsa", "table1").items():
        settings = document.scenarios[keys[dataset]]
        pool = official_pool(settings.data)
        parts = partition(settings.partition, pool, dataset)
        assert len(parts.train) == 10
        assert set(parts.domain_test) == set(pool.names)
        actual = {
            "Instances": len(pool.labels),
            "Domains": len(parts.domain_test),
            "Classes": pool.classes,
            "Feature Dimensions[2]": 3,
            **dict.fromkeys(("Feature Dimensions[0]", "Feature Dimensions[1]"), settings.data.size),
        }[column]
        if actual != int(value):
            differs[dataset, column] = actual
            assert document.points(keys[dataset])
        sizes[dataset] = {domain: len(test) for domain, test in parts.domain_test.items()}
    assert differs == FEDLSA_DIFFERS
    # the sizes that the printed digits of accuracies fit
    assert sizes["Office Caltech"] == {"CALTECH": 224, "AMAZON": 190, "WEBCAM": 58, "DSLR": 30}
    assert sizes["PACS"] == {"PHOTO": 501, "ART": 615, "CARTOON": 704, "SKETCH": 1179}
    assert sizes["Digits"]["USPS"] == 2007


def test_fcclplus_printed_counts_are_the_partitions():
    """Table 5: clients' images, and their share of the domain's training part, to the print's digits."""
    document, differs = load_paper("fcclplus"), {}
    sizes, shares = (
        printed("fcclplus", "table5", setting=kind) for kind in ("n_samples", "percent_of_full_train")
    )
    for dataset, scenario in FCCLPLUS.items():
        settings = document.scenarios[scenario]
        pool = official_pool(settings.data)
        parts = partition(settings.partition, pool, dataset)
        for (client, domain), train in zip(parts.clients, parts.train, strict=True):
            (size,), (share,) = (
                [value for (d, _, c), value in table.items() if (d, c) == (dataset, client)]
                for table in (sizes, shares)
            )
            whole = int((pool.domains == pool.names.index(domain)).sum()) - len(parts.domain_test[domain])
            actual = round(100 * len(train) / whole, len(share.partition(".")[2]))
            assert len(train) == int(size)
            if actual != float(share):
                differs[dataset, client] = actual
                assert document.points(scenario)
    assert differs == FCCLPLUS_DIFFERS


# What an accuracy or a difference of accuracies looks like: a decimal number of one or more, a number of
# points, a decimal share. A setting is not refused: rates and Dirichlet parameters are below one or stand in
# brackets (`Dir(5.0)`); neither is the number of a section (`Sec. 4.1`), nor a number of the print marked as
# such: `printed 73.66`, `73.66 printed`.
MEASURED = re.compile(
    r"(?<![\w.(,])(?<!Sec\. )(?<!printed )[1-9]\d*\.\d+(?! printed)"
    r"|\d[\d.]* (?:percentage )?points?\b"
    r"|(?<!printed )\b\d+\.\d+ %(?! printed)"
)


def texts(paper: Paper) -> dict[str, str]:
    """key of paper.yaml -> text, of all that is prose on the pages."""
    actual = {"idea": paper.idea}
    actual |= {f"why[{i}]": text for i, text in enumerate(paper.why)}
    actual |= {f"titles.{scenario}": text for scenario, text in paper.titles.items()}
    actual |= {
        f"notes.{name}[{i}]": text for name in paper.notes for i, text in enumerate(paper.points(name))
    }
    for i, one in enumerate(paper.readings):
        actual |= {f"readings[{i}].{part}": getattr(one, part) for part in ("paper", "run", "why")}
    for key, table in paper.tables.items():
        actual |= {f"tables.{key}.title": table.title, f"tables.{key}.note": table.note}
    return actual | {f"figures.{key}.title": figure.title for key, figure in paper.figures.items()}


@pytest.mark.parametrize("paper", PAPERS)
def test_texts_have_no_typed_measured_number(paper):
    for key, text in texts(load_paper(paper)).items():
        assert not MEASURED.findall(text), key
