"""The sentences below a table about its runs: seeds, scored models, data, twins, dates.

`page` asks for the `footnotes` of each table. A twin is a test image with a byte-identical training image.
"""

from collections.abc import Collection, Iterable

from pipeline.data import gate
from pipeline.data import twins as data_twins
from pipeline.files import read_csv
from pipeline.report.published import MARKS, Panel, Value
from pipeline.report.study import Study, processor, seed_words
from pipeline.report.words import counted
from pipeline.schema import Cell

# At most so many names are listed; of more only the number is given.
NAMED = 6
# Test images with a byte-identical twin among the training images, by data set and rule of the test part;
# `python -m stages.twins` writes it from the images.
TWINS = "data/twins.csv"
TWIN_COLUMNS = ["set", "digest", "rule", "domain", "tests", "twins"]


def footnotes(study: Study, panel: Panel) -> list[str]:
    """The sentences below a table, those that change how its numbers are read first."""
    values = [value for row in panel.rows for value in row.values]
    cells = [*dict.fromkeys(value.cell for value in values if value.cell in study.results)]
    return [
        *seeds(study, cells),
        *hooks(study, cells),
        *samples(study, cells),
        *marks(values),
        *origins(study, cells),
        *twins(study, cells),
        *found(study, cells),
        *process(study, cells),
    ]


def listed(names: Iterable[str]) -> str:
    """Names of methods as text, `FedAvg, MOON`; if there are more than NAMED, only how many."""
    names = [*dict.fromkeys(names)]
    return ", ".join(names) if len(names) <= NAMED else f"{len(names)} methods"


def seeds(study: Study, cells: Iterable[Cell]) -> list[str]:
    """For each scenario whose rows have other seeds than declared: which rows have which seeds."""
    scenarios: dict[str, dict[tuple[int, ...], list[str]]] = {}
    for cell in cells:
        rows = scenarios.setdefault(cell.scenario, {})
        rows.setdefault(tuple(sorted(study.results[cell]["seeds"])), []).append(study.label(cell.method))
    sentences = []
    for scenario, rows in scenarios.items():
        declared = sorted(study.paper.scenarios[scenario].seeds)
        if [*rows] == [tuple(declared)]:
            continue
        groups = "; ".join(f"{listed(names)} {seed_words([*trained])}" for trained, names in rows.items())
        where = f" of {study.title(scenario)}" if len(scenarios) > 1 else ""
        text = f"Seeds{where}: {groups}; declared are {seed_words(declared)}."
        shared = set[int]().union(*rows).intersection(*rows)
        if len(rows) > 1 and shared:
            text += f" Means are over the {counted(len(shared), 'seed')} that all rows have."
        sentences.append(text)
    return sentences


def hooks(study: Study, cells: Iterable[Cell]) -> list[str]:
    """Which rows are scored before and which after local training; nothing if it is the same for all."""
    sides = study.hooks(cells)
    if len(sides) < 2:
        return []
    after = [study.label(cell.method) for cell in sides["post"]]
    before = [study.label(cell.method) for cell in sides["pre"]]
    # First the side of the paper's method, else that of fewer methods.
    if (study.name not in after, len(after)) <= (study.name not in before, len(before)):
        scored = f"{listed(after)} after local training, {listed(before)} before it"
    else:
        scored = f"{listed(before)} before it, {listed(after)} after it"
    return [f"Not all are scored alike: {scored}."]


def samples(study: Study, cells: Iterable[Cell]) -> list[str]:
    """For each scenario in which only some clients are scored: how many, of how many."""
    counts = {}
    for cell in cells:
        result = study.results[cell]
        if "sample" in result:
            counts[cell.scenario] = f"{result['sample']} clients of {len(result['clients'][0])}"
    where = {scenario: study.title(scenario) for scenario in counts}
    return [
        f"{where[scenario]}: accuracies are over {count}, drawn once for every seed."
        for scenario, count in counts.items()
    ]


def marks(values: Iterable[Value]) -> list[str]:
    """What the marks behind the numbers of a table mean."""
    used = {sign for value in values for sign in value.signs}
    return [f"{sign} {text}." for sign, text in MARKS.items() if sign in used]


def origins(study: Study, cells: Iterable[Cell]) -> list[str]:
    """Where the images come from, and how they differ from the official ones."""
    sets = {}
    for cell in cells:
        for data in (study.results[cell]["data"], study.results[cell]["public"]):
            if data:
                sets[data["set"], data["source"]] = data["deviation"]
    words = {"mirror": "a local copy", "bundled": "scikit-learn", "canonical": "the official files"}
    sentences = []
    for (name, source), deviation in sets.items():
        text = f"{name}: from {words.get(source, source)}"
        sentences.append(f"{text}, {deviation}." if deviation else f"{text}.")
    return sentences


def twins(study: Study, cells: Iterable[Cell]) -> list[str]:
    """How many test images have a twin.

    They are known if they were counted for exactly these images and for the rule by which the scenario takes
    its test part.
    """
    sentences = []
    for scenario, cell in {cell.scenario: cell for cell in cells}.items():
        data = study.results[cell]["data"]
        rule = getattr(study.paper.scenarios[scenario].partition, "test", "")
        wanted = (data["set"], rule, data["digest"])
        counts = [row for row in counted_twins(study) if (row["set"], row["rule"], row["digest"]) == wanted]
        told = "" if counts else data_twins.told(study.key, scenario, study.root)
        if told:
            sentences.append(f"{told[0].upper()}{told[1:]}.")
        for row in counts:
            if int(row["twins"]):
                sentences.append(
                    f"{row['twins']} of {row['tests']} test images of {row['domain'].upper()} have a "
                    "byte-identical twin in the training part, of which the clients hold a share."
                )
    return [*dict.fromkeys(sentences)]


def found(study: Study, cells: Iterable[Cell]) -> list[str]:
    """What was noticed when the data sets were prepared, such as images of the archive that were left out."""
    of_sets = {study.results[cell]["data"]["set"]: cell.scenario for cell in cells}
    sentences = []
    for name, scenario in of_sets.items():
        sentences += [f"{name}: {line}." for line in gate.noted(study.key, scenario, study.root)]
    return sentences


def counted_twins(study: Study) -> list[dict[str, str]]:
    """The rows of the file TWINS; none if the project does not have it."""
    path = study.root / TWINS
    return [row for _, row in read_csv(path, TWIN_COLUMNS)] if path.exists() else []


def process(study: Study, cells: Collection[Cell]) -> list[str]:
    """When the first seeds were trained, and on which processors all seeds were trained.

    A result records the time of its first seed only.
    """
    runs = [study.results[cell] for cell in cells]
    days = sorted({run["started"][:10] for run in runs if run.get("started")})
    makes = {processor(machine) for run in runs for machine in run.get("machines", [run["versions"]])}
    if not days:
        return []
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return [f"First seeds trained {when}; processors of all seeds: {', '.join(sorted(makes))}."]
