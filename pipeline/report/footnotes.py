"""The sentences below a table about its runs: seeds, scored models, data, twins, dates.

`page` asks for the `footnotes` of each table. Each of the other functions writes the sentences on one matter;
its arguments are `study`, the results of the paper, and `cells`, those whose numbers the table shows.
A twin is a test image that is byte for byte equal to a training image.
"""

from collections.abc import Collection, Iterable

from pipeline.data import gate
from pipeline.data import twins as data_twins
from pipeline.files import read_csv
from pipeline.report.published import MARKS, Panel, Value
from pipeline.report.study import Study, processor, seed_words
from pipeline.report.words import counted
from pipeline.schema import Cell

# At most so many names of methods are listed; of more only the number is given.
NAMED = 6
# Numbers of test images with a twin, by data set and rule of the test part; `python -m stages.twins` counts
# them in the images.
TWINS = "data/twins.csv"
TWIN_COLUMNS = ["set", "digest", "rule", "domain", "tests", "twins"]
# Source of images in a result -> in words.
SOURCES = {"mirror": "a local copy", "bundled": "scikit-learn", "canonical": "the official files"}


def footnotes(study: Study, panel: Panel) -> list[str]:
    """The sentences below a table; those that change how its numbers are read come first.

    study  of the paper
    panel  the table
    """
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
    """Which rows have which seeds, for each scenario in which some have other seeds than paper.yaml
    declares."""
    # Scenario -> seeds -> labels of the rows that have them.
    scenarios: dict[str, dict[tuple[int, ...], list[str]]] = {}
    for cell in cells:
        trained = tuple(sorted(study.results[cell]["seeds"]))
        rows = scenarios.setdefault(cell.scenario, {})
        rows.setdefault(trained, []).append(study.label(cell.method))

    sentences = []
    for scenario, rows in scenarios.items():
        declared = sorted(study.paper.scenarios[scenario].seeds)
        if [*rows] == [tuple(declared)]:
            continue
        groups = [f"{listed(names)} {seed_words([*trained])}" for trained, names in rows.items()]
        where = f" of {study.title(scenario)}" if len(scenarios) > 1 else ""
        text = f"Seeds{where}: {'; '.join(groups)}; declared are {seed_words(declared)}."
        shared = set[int]().union(*rows).intersection(*rows)
        if len(rows) > 1 and shared:
            text += f" Means are over the {counted(len(shared), 'seed')} that all rows have."
        sentences.append(text)
    return sentences


def hooks(study: Study, cells: Iterable[Cell]) -> list[str]:
    """Which rows are scored before local training and which after it; nothing if it is the same for all."""
    sides = study.hooks(cells)
    if len(sides) < 2:
        return []
    after = [study.label(cell.method) for cell in sides["post"]]
    before = [study.label(cell.method) for cell in sides["pre"]]
    # The side of the paper's method comes first; without it, that of fewer methods.
    place_of_after = (study.name not in after, len(after))
    place_of_before = (study.name not in before, len(before))
    if place_of_after <= place_of_before:
        scored = f"{listed(after)} after local training, {listed(before)} before it"
    else:
        scored = f"{listed(before)} before it, {listed(after)} after it"
    return [f"Not all are scored alike: {scored}."]


def samples(study: Study, cells: Iterable[Cell]) -> list[str]:
    """How many of the clients are scored, for each scenario in which not all are."""
    counts = {}
    for cell in cells:
        result = study.results[cell]
        if "sample" in result:
            counts[cell.scenario] = f"{result['sample']} clients of {len(result['clients'][0])}"

    sentences = []
    for scenario, count in counts.items():
        title = study.title(scenario)
        sentences.append(f"{title}: accuracies are over {count}, drawn once for every seed.")
    return sentences


def marks(values: Iterable[Value]) -> list[str]:
    """What the marks behind the numbers of a table mean."""
    used = {sign for value in values for sign in value.signs}
    return [f"{sign} {text}." for sign, text in MARKS.items() if sign in used]


def origins(study: Study, cells: Iterable[Cell]) -> list[str]:
    """Where the images come from, and how they differ from the official ones."""
    # (data set, source) -> how its images differ from the official ones; empty: they do not.
    sets = {}
    for cell in cells:
        for data in (study.results[cell]["data"], study.results[cell]["public"]):
            if data:
                sets[data["set"], data["source"]] = data["deviation"]

    sentences = []
    for (name, source), deviation in sets.items():
        text = f"{name}: from {SOURCES.get(source, source)}"
        if deviation:
            text += f", {deviation}"
        sentences.append(f"{text}.")
    return sentences


def twins(study: Study, cells: Iterable[Cell]) -> list[str]:
    """How many test images have a twin.

    The number is known if twins were counted in exactly these images and for the rule by which the scenario
    takes its test part.
    """
    sentences = []
    by_scenario = {cell.scenario: cell for cell in cells}
    for scenario, cell in by_scenario.items():
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
    """What was noticed when the data sets were prepared, for example images that were left out."""
    of_sets = {study.results[cell]["data"]["set"]: cell.scenario for cell in cells}
    sentences = []
    for name, scenario in of_sets.items():
        sentences += [f"{name}: {line}." for line in gate.noted(study.key, scenario, study.root)]
    return sentences


def counted_twins(study: Study) -> list[dict[str, str]]:
    """The rows of the file TWINS; none if the project does not have it."""
    path = study.root / TWINS
    if not path.exists():
        return []
    return [row for _, row in read_csv(path, TWIN_COLUMNS)]


def process(study: Study, cells: Collection[Cell]) -> list[str]:
    """When the first seeds were trained, and on which processors all seeds were trained.

    A result records the time of its first seed only.
    """
    runs = [study.results[cell] for cell in cells]
    days = sorted({run["started"][:10] for run in runs if run.get("started")})
    makes = set[str]()
    for run in runs:
        makes.update(map(processor, run.get("machines", [run["versions"]])))
    if not days:
        return []
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return [f"First seeds trained {when}; processors of all seeds: {', '.join(sorted(makes))}."]
