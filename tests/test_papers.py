"""The five papers as data: every table, row and column leads to a scenario, a method and a measure, and the
published numbers hold together except where a paper itself is inconsistent."""

import csv
import math
import re
from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from pipeline import methods
from pipeline.data import registry
from pipeline.data.partition import Pool, partition
from pipeline.errors import ParamError
from pipeline.report.measures import COSTS
from pipeline.schema import DELTA, ROOT, Block, Cell, Domains, Grid, Subset, Table, load_paper

PAPERS = ("fedccl", "fcclplus", "fedlsa", "rahfl", "fedcrl")  # those that come with FedRepro

KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Blocks that state a setting or a cost; no run measures them.
UNMEASURED = {
    "local-computation",
    "module-cost",
    "private-data-scale",
    "quantity=model",
    "hyper-parameter",
    "hyperparameters",
    "dataset-statistics",
}
# other readings of one data set of a table
PARTIAL = {
    "table1-few",
    "table2-augmented",
    "table2-tuned",
    "table6-dir-05",
    "table8-02",
    "table8-released",
    "table9-released",
}


@cache
def published(paper: str) -> dict[str, list[dict[str, str]]]:
    """Rows of every table of a paper by the table's key."""
    folder = ROOT / "papers" / paper / "published"
    actual = {}
    for key, table in load_paper(paper).tables.items():
        with (folder / table.published).open(encoding="utf-8", newline="") as file:
            actual[key] = list(csv.DictReader(file))
    return actual


def rows(paper: str):
    """(table key, table, row) of every published number."""
    tables = load_paper(paper).tables
    return [(key, tables[key], row) for key, actual in published(paper).items() for row in actual]


def cells(paper: str) -> set[tuple[str, str]]:
    """(scenario, method) of every cell that a table of the paper asks for."""
    document = load_paper(paper)
    wanted = set()
    for _, table, row in rows(paper):
        block, method = (
            table.block(row["setting"], row["dataset"], row["method"]),
            document.method_of(table, row["method"]),
        )
        if block and method and table.measure(block, row["column"]):
            wanted.add((block.scenario, method))
    return wanted


def number(row) -> float:
    """The printed number, or what it must have been where the scan garbled it."""
    likely = re.search(r"likely=([\d.]+)", row["note"])
    return float(likely[1] if likely else row["value"])


# -- names and references ------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_names_are_kebab_and_labels_unique(paper):
    document = load_paper(paper)
    for name in (*document.scenarios, *document.methods, *document.grids):
        assert KEBAB.fullmatch(name), name
    labels = [document.label(method) for method in document.methods]
    assert len(labels) == len(set(labels))
    for method, values in document.methods.items():
        assert values.get("algorithm", method).isidentifier(), method


@pytest.mark.parametrize("paper", PAPERS)
def test_every_scenario_is_used_and_described(paper):
    document = load_paper(paper)
    drawn = {name for figure in document.figures.values() for name in figure.scenarios}
    in_tables = {block.scenario for table in document.tables.values() for block in table.blocks.values()}
    assert drawn | in_tables | set(document.extra_scenarios) == set(document.scenarios) - {"mini", "across"}
    assert set(document.titles) == set(document.scenarios) - {"mini", "across"} >= set(document.notes)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_scenario_beside_the_tables_is_in_none_and_in_no_figure_of_the_print(paper):
    document = load_paper(paper)
    shown = {block.scenario for table in document.tables.values() for block in table.blocks.values()}
    printed = [one for one in document.figures.values() if not one.title.endswith("(not in the paper)")]
    shown |= {name for one in printed for name in one.scenarios}
    assert not shown & set(document.extra_scenarios)


@pytest.mark.parametrize("paper", PAPERS)
def test_methods_with_code_accept_their_hyper_parameters(paper):
    document = load_paper(paper)
    for key, values in document.methods.items():
        if values.get("algorithm", key) in methods.names():
            for scenario in document.scenarios:
                _, algorithm, hyper = Cell(paper, scenario, key).resolve()
                assert methods.load(algorithm, hyper, key)


@pytest.mark.parametrize("paper", PAPERS)
def test_grids_hold_every_printed_cell_that_can_run(paper):
    document = load_paper(paper)
    planned = {(s, m) for grid in document.grids.values() for s in grid.scenarios for m in grid.methods}
    for _, method in planned:
        assert document.methods[method].get("algorithm", method) in methods.names(), method
    assert cells(paper) <= planned
    assert {
        (s, m) for figure in document.figures.values() for s in figure.scenarios for m in figure.methods
    } <= planned


@pytest.mark.parametrize(
    "old, new, message",
    [
        (
            "rows: &rows {Averaged: null}",
            "rows: &rows {Averaged: fedavgg}",
            "tables.table2.rows.Averaged: unknown method 'fedavgg' .nearest: 'fedavg'",
        ),
        (
            "scenarios: [cifar10-dir-01]\n    methods: [fedavg, fedcrl]",
            "scenarios: [cifar10-dri-01]\n    methods: [fedavg, fedcrl]",
            "figures.figure4.scenarios: unknown scenario 'cifar10-dri-01'",
        ),
        (
            "scenarios: {emnist-dir-01: &one",
            "scenarios: {emnist-dir-02: &one",
            "methods.moon.scenarios: unknown scenario 'emnist-dir-02'",
        ),
    ],
)
def test_a_wrong_reference_is_named(tmp_path, old, new, message):
    text = (ROOT / "papers/fedcrl/paper.yaml").read_text()
    assert text.count(old) == 1
    (tmp_path / "papers/fedcrl").mkdir(parents=True)
    (tmp_path / "papers/fedcrl/paper.yaml").write_text(text.replace(old, new))
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    with pytest.raises(ParamError, match=message):
        load_paper("fedcrl", tmp_path)


# -- tables --------------------------------------------------------------------------------------------------


def test_a_row_can_have_a_scenario_of_its_own():
    table = Table(
        "1",
        "",
        "x.csv",
        blocks={"s|d": Block("main", "inter."), "s|d|BASE": Block("alone", "inter.")},
        columns={"Cost": None},
    )
    assert table.block("s", "d", "BASE").scenario == "alone"
    assert table.block("s", "d", "FedMD").scenario == "main"
    assert table.block("s", "e", "FedMD") is None
    local = Table("1", "", "x.csv", also={"averaged": "pre.AVG", "local": "post.average"})
    assert local.measure(Block("main", "inter."), "averaged") == "pre.inter.AVG"
    assert local.measure(Block("main"), "local") == "post.average"
    assert [table.measure(table.block("s", "d", "FedMD"), c) for c in ("M", DELTA, "Cost")] == [
        "inter.M",
        None,
        None,
    ]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_published_file_is_a_table(paper):
    folder = ROOT / "papers" / paper / "published"
    files = {path.name for path in folder.glob("*.csv")} - {"missing.csv"}
    assert files == {table.published for table in load_paper(paper).tables.values()}
    assert (ROOT / "papers" / paper / "claims.csv").exists()
    for key, actual in published(paper).items():
        assert actual, key
        assert {row["paper"] for row in actual} == {paper}
        at = [(row["setting"], row["dataset"], row["column"], row["method"]) for row in actual]
        assert len(at) == len(set(at)), key


@pytest.mark.parametrize("paper", PAPERS)
def test_every_block_stands_in_its_table(paper):
    for key, table in load_paper(paper).tables.items():
        blocks = {f"{row['setting']}|{row['dataset']}" for row in published(paper)[key]}
        of_rows = {f"{row['setting']}|{row['dataset']}|{row['method']}" for row in published(paper)[key]}
        assert set(table.blocks) <= blocks | of_rows, key
        assert set(table.rows) <= {row["method"] for row in published(paper)[key]}, key
        assert set(table.columns) <= {row["column"] for row in published(paper)[key]}, key
        if key in PARTIAL:
            continue
        left_out = {block.split("|")[0] for block in blocks - set(table.blocks)}
        assert all(any(word in setting for word in UNMEASURED) for setting in left_out), (key, left_out)


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
def test_every_printed_number_has_a_method_and_a_measure(paper):
    document = load_paper(paper)
    for key, table, row in rows(paper):
        block = table.block(row["setting"], row["dataset"], row["method"])
        measure = block and table.measure(block, row["column"])
        if measure is None:
            continue
        where = key, row["setting"], row["dataset"], row["column"], row["method"]
        mean_row = row["method"] in table.rows and table.rows[row["method"]] is None
        assert mean_row or document.method_of(table, row["method"]), where
        assert measure in measures(document.scenarios[block.scenario]) | COSTS.keys(), where


# -- published numbers against each other --------------------------------------------------------------------

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


# -- settings that the papers print --------------------------------------------------------------------------


def printed(paper, key, **where):
    """{(dataset, method, column): value} of a settings table."""
    return {
        (row["dataset"], row["method"], row["column"]): row["value"]
        for row in published(paper)[key]
        if all(text in row[field] for field, text in where.items())
    }


FCCLPLUS = {
    "Digits": "digits",
    "Office Caltech": "office-caltech",
    "Office31": "office31",
    "Office-Home": "office-home",
}


def test_fcclplus_networks_are_the_printed_ones():
    scenarios = load_paper("fcclplus").scenarios
    networks = printed("fcclplus", "table6")
    shown = {"MobileNet": "mobilenetv2"}
    assert {(d, c): scenarios[FCCLPLUS[d]].models[c].name for d, _, c in networks} == {
        (d, c): shown.get(v, v.lower()) for (d, _, c), v in networks.items()
    }


@pytest.mark.parametrize("scenario", ["office-caltech", "office31"])
def test_fcclplus_office_sizes_are_48_percent_of_four_fifths(scenario):
    settings = load_paper("fcclplus").scenarios[scenario]
    for client, size in settings.partition.sizes.items():
        total = sum(registry.find(settings.data.set).expected("canonical")[settings.data.domains[client]])
        assert size == math.floor(0.48 * sum(i % 10 < 8 for i in range(total)))


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
    for name in set(document.scenarios) - {"mini", "across"}:
        scenario = document.scenarios[name]
        assert (
            scenario.training.optimiser.lr,
            scenario.training.batch_size,
            scenario.training.local_epochs,
        ) == (values["eta"], values["b"], values["r"])
        assert (scenario.model.features, scenario.model.dropout) == (values["k"], values["beta_dropout"])
        assert scenario.seeds == ([0, 1] if name in document.extra_scenarios else [0, 1, 2, 3, 4])
    assert [document.methods["fedcrl"][key] for key in ("alpha", "tau", "gamma")] == [
        values[key] for key in ("alpha", "tau_CL", "gamma")
    ]


def test_rahfl_local_epochs_follow_from_the_sizes():
    for name, scenario in load_paper("rahfl").scenarios.items():
        if name not in ("mini", "across"):
            expected = {max(scenario.public.size // size, 1) for size in scenario.partition.sizes.values()}
            assert expected == {scenario.training.local_epochs}


# -- the partitions on sets of the official size -------------------------------------------------------------


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


def domain_scenarios():
    for paper in PAPERS:
        for name, scenario in load_paper(paper).scenarios.items():
            if (
                isinstance(scenario.partition, (Domains, Subset))
                and scenario.data.set != "domainnet"
                and name not in ("mini", "across")
            ):
                yield pytest.param(scenario, id=f"{paper}/{name}")


@pytest.mark.parametrize("scenario", list(domain_scenarios()))
def test_partitions_by_domain_and_size_can_be_cut(scenario):
    parts = partition(scenario.partition, official_pool(scenario.data), "here")
    assert min(map(len, parts.train)) >= 10
    assert min(map(len, parts.domain_test.values())) >= (
        25 if getattr(scenario.partition, "validation", False) else 30
    )
    if isinstance(scenario.partition, Subset):
        assert [len(part) for part in parts.train] == list(scenario.partition.sizes.values())


# What a partition of official size has otherwise than the print -> the words of the scenario's note that say
# so.
FEDLSA_DIFFERS = {
    ("Digits", "Instances"): (203_587 + 9_000, "203,587 images, which leaves 25,000 for SYN"),
    ("PACS", "Feature Dimensions[0]"): (224, "prints a side of 225 pixels"),
    ("PACS", "Feature Dimensions[1]"): (224, "prints a side of 225 pixels"),
}
FCCLPLUS_DIFFERS = {
    ("Digits", "SV"): (6.83, "SVHN's share is cut off"),
    ("Office Caltech", "D"): (47, "60 of DSLR's 127 are 47 %"),
    **{
        ("Office-Home", client): (share, "the shares then differ a little")
        for client, share in zip("ACPR", (82.45, 65.47, 80.46, 65.60))
    },
}


def test_fedlsas_printed_counts_are_the_partitions():
    """Table 1: all images of the domains, training and test parts together."""
    document, differs = load_paper("fedlsa"), {}
    keys = {"Digits": "digits", "Office Caltech": "office-caltech", "PACS": "pacs"}
    for (dataset, _, column), value in printed("fedlsa", "table1").items():
        settings = document.scenarios[keys[dataset]]
        pool = official_pool(settings.data)
        parts = partition(settings.partition, pool, dataset)
        assert len(parts.train) == 10 and set(parts.domain_test) == set(pool.names)
        actual = {
            "Instances": len(pool.labels),
            "Domains": len(parts.domain_test),
            "Classes": pool.classes,
            "Feature Dimensions[2]": 3,
            **dict.fromkeys(("Feature Dimensions[0]", "Feature Dimensions[1]"), settings.data.size),
        }[column]
        if actual != int(value):
            differs[dataset, column] = actual
            assert FEDLSA_DIFFERS[dataset, column][1] in " ".join(document.points(keys[dataset]))
    assert differs == {key: actual for key, (actual, _) in FEDLSA_DIFFERS.items()}


# -- DVC -----------------------------------------------------------------------------------------------------


def test_fcclplus_printed_counts_are_the_partitions():
    """Table 5: every client's images, and their share of its domain's training part, to the digits of the
    print."""
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
                assert FCCLPLUS_DIFFERS[dataset, client][1] in " ".join(document.points(scenario))
    assert differs == {key: actual for key, (actual, _) in FCCLPLUS_DIFFERS.items()}


def test_fedlsa_test_parts_have_the_sizes_that_the_printed_digits_fit():
    scenarios = load_paper("fedlsa").scenarios
    sizes = {
        name: {
            domain: len(test)
            for domain, test in partition(
                scenarios[name].partition, official_pool(scenarios[name].data), name
            ).domain_test.items()
        }
        for name in ("office-caltech", "pacs", "digits")
    }
    assert sizes["office-caltech"] == {"CALTECH": 224, "AMAZON": 190, "WEBCAM": 58, "DSLR": 30}
    assert sizes["pacs"] == {"PHOTO": 501, "ART": 615, "CARTOON": 704, "SKETCH": 1179}
    assert sizes["digits"]["USPS"] == 2007


@pytest.fixture(scope="module")
def stages():
    """Address -> what it writes, of all stages that DVC finds from the repository's root."""
    repo = pytest.importorskip("dvc.repo")
    with repo.Repo(str(ROOT)) as opened:
        return {stage.addressing: {str(out) for out in stage.outs} for stage in opened.index.stages}


@pytest.mark.parametrize("paper", PAPERS)
def test_dvc_has_a_stage_for_every_cell_of_the_grids(paper, stages):
    document = load_paper(paper)
    at = f"papers/{paper}/dvc.yaml:"
    expected = {
        f"{at}partition@{scenario}" for scenario in document.scenarios if scenario not in ("mini", "across")
    }
    expected |= {f"{at}{name}" for name in ("sources", "partition-mini", "results", "report")}
    expected |= {f"{at}mini@{method}" for method in document.miniature.methods} | {
        f"{at}across@{method}" for method in document.miniature.others
    }
    expected |= {
        f"{at}{key}@{s}-{m}"
        for key, grid in document.grids.items()
        if not grid.separate_file
        for s in grid.scenarios
        for m in grid.methods
    }
    drawing = {
        stage
        for stage, outs in stages.items()
        if stage.startswith(at) and all("figures/" in out for out in outs) and outs
    }
    assert {stage for stage in stages if stage.startswith(at)} - drawing == expected
    full = document.grids.get("full", Grid([], []))  # in a folder of its own, for the size of the lock
    assert {stage for stage in stages if stage.startswith(f"papers/{paper}/full/")} == {
        f"papers/{paper}/full/dvc.yaml:full@{s}-{m}" for s in full.scenarios for m in full.methods
    }


def test_the_miniature_waits_for_no_method_of_another_paper(upstream):
    """`dvc repro` runs what ./dvc.yaml needs, which must stay as short as it is."""
    root = {name for names in upstream.values() for name in names} | upstream.keys()
    assert "report" in upstream and "papers/fedcrl/dvc.yaml:mini@fedcrl" in upstream["report"]
    assert {
        name.partition("@")[0].rpartition(":")[2].removesuffix("-mini")
        for name in root
        if name.startswith("papers/")
    } == {
        "sources",
        "partition",
        "mini",
        "results",
        "figure1",
        "figure2",
        "figure4",
        "figure5",
        "figure8",
        "figure9",
    }
    assert not [
        name for name in root if name.startswith("papers/") and "figure" in name and "-mini" not in name
    ]


@pytest.fixture(scope="module")
def upstream():
    """Stage of ./dvc.yaml -> all that run before it."""
    repo, networkx = pytest.importorskip("dvc.repo"), pytest.importorskip("networkx")
    with repo.Repo(str(ROOT)) as opened:
        graph = opened.index.graph
        return {
            stage.addressing: {needed.addressing for needed in networkx.descendants(graph, stage)}
            for stage in opened.index.stages
            if ":" not in stage.addressing
        }
