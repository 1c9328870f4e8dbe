"""The sentences about a finding: a few patterns in plain words, filled in from the findings alone.

A finding is a claim of a paper with its verdict, its size and its controls (`findings.py`). These
functions write the first sentences of a page and its table of questions.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean

from pipeline.cells.results import lower_is_better
from pipeline.report import sizes
from pipeline.report.controls import HOOK, NETWORK, TUNED, Control, declared_words, in_words
from pipeline.report.findings import Finding, Findings, decisive, looks_ask
from pipeline.report.statistics import ALPHA
from pipeline.report.study import Study
from pipeline.report.verdicts import Chip, Verdict
from pipeline.report.words import counted, method_words, minus, ordinal, setting_words

# Verdicts by which the direction of a claim is shown.
SHOWN = (Chip.HOLDS, Chip.DIRECTION)
# Verdicts that leave the direction open.
STILL_OPEN = (Chip.UNDECIDED, Chip.CONTRADICTED)
# Differences below this many points have two decimals: with one they would be printed as 0.0.
SMALL_POINTS = 0.05
# Differences below this many points are printed as 0.00, without a sign.
NO_POINTS = 0.005
# Kind of a control -> how a sentence about it begins.
UNDER = {
    NETWORK: "With the same network for both",
    TUNED: "Tuned alike",
    HOOK: "With the same scored model for both",
}
# The same in a table.
BRIEFLY = {
    NETWORK: "on the same network",
    TUNED: "tuned alike",
    HOOK: "with the same scored model",
}


# -- the parts of a sentence ---------------------------------------------------------------------------------


def lead_and_rivals(verdict: Verdict) -> tuple[str, list[str]] | None:
    """(the method that is claimed to lead, its rivals) of a claim that compares single methods.

    None for any other claim, and for one about a measure of which small numbers are the better ones.
    """
    claim = verdict.claim
    if claim.tree is None or claim.expected.kind not in ("bound", "size"):
        return None
    if not claim.expected.sign.startswith(">") or not verdict.points:
        return None

    leads = set()
    rivals = []
    for leaf in claim.tree.leaves():
        above = [spot for spot, weight in leaf.weights if weight == 1]
        below = [spot for spot, weight in leaf.weights if weight == -1]
        if len(above) != 1 or len(below) != 1 or len(leaf.weights) != 2:
            return None
        if any(lower_is_better(spot.measure or spot.column) for spot in (*above, *below)):
            return None
        leads.add(method_words(above[0].method))
        rivals.append(method_words(below[0].method))
    if len(leads) != 1:
        return None
    [lead] = leads
    return lead, rivals


def points(number: float) -> str:
    """A difference in points without its sign: `3.8`."""
    size = abs(number)
    return f"{size:.1f}" if size >= SMALL_POINTS else f"{size:.2f}"


def signed(number: float) -> str:
    """A difference in points with its sign: `+3.8`, `−0.4`, or `0.00`."""
    if abs(number) < NO_POINTS:
        return "0.00"
    digits = 1 if abs(number) >= SMALL_POINTS else 2
    return minus(f"{number:+.{digits}f}")


def interval(verdict: Verdict, words: str = "95 % interval ") -> str:
    """The interval of a verdict, `95 % interval 2.0 to 5.5`; empty if there is none.

    verdict  whose interval it is
    words    in front of the numbers
    """
    if verdict.low is None or verdict.high is None:
        return ""
    low = signed(verdict.low).removeprefix("+")
    high = signed(verdict.high).removeprefix("+")
    return f"{words}{low} to {high}"


def _in_brackets(verdict: Verdict) -> str:
    """The interval in brackets, ` (95 % interval 2.0 to 5.5)`; empty if there is none."""
    text = interval(verdict)
    return f" ({text})" if text else ""


def _numbers(verdict: Verdict) -> str:
    """The number with its interval: `+0.1, −4.4 to 4.6` in points, `−300 kB [−310, −290]` in another unit;
    empty without a number."""
    if verdict.point is None:
        return ""
    if verdict.points:
        return ", ".join(filter(None, [signed(verdict.point), interval(verdict, "")]))
    return " ".join(filter(None, [verdict.text(verdict.point), verdict.interval]))


# -- sentences -----------------------------------------------------------------------------------------------


def measured(verdict: Verdict, chip: Chip | None = None) -> str:
    """What was measured, in a sentence.

    verdict  on the claim
    chip     the verdict in a word that the sentence tells; None: its own
    """
    chip = chip or verdict.chip
    sides = lead_and_rivals(verdict)
    if verdict.point is None:
        return f"{verdict.title}: {chip.value}."
    if sides is None or chip not in (*SHOWN, *STILL_OPEN, Chip.FAILS):
        return f"{verdict.title}: {chip.value} ({_numbers(verdict)})."

    lead, rivals = sides
    if len(rivals) > 1:
        return _against_several(verdict, chip, lead, len(rivals))

    [rival] = rivals
    if chip in SHOWN:
        return f"{lead} beats {rival} by {points(verdict.point)} points{_in_brackets(verdict)}."
    if chip in STILL_OPEN and verdict.p is not None and verdict.p < ALPHA:
        return f"Whether {lead} beats {rival} is open ({_open_numbers(verdict)})."
    if chip in STILL_OPEN:
        return f"No difference between {lead} and {rival} is shown ({_open_numbers(verdict)})."
    if verdict.point < 0:
        return f"{lead} is {points(verdict.point)} points behind {rival}{_in_brackets(verdict)}."
    return f"{lead} does not lead {rival} as claimed ({_open_numbers(verdict)})."


def _open_numbers(verdict: Verdict) -> str:
    """The difference with its interval: `+1.5 points, 95 % interval −4.6 to 7.6`."""
    assert verdict.point is not None
    return ", ".join(filter(None, [f"{signed(verdict.point)} points", interval(verdict)]))


def _against_several(verdict: Verdict, chip: Chip, lead: str, rivals: int) -> str:
    """The sentence about a method and several rivals.

    chip    the verdict that it tells
    lead    name of the method
    rivals  number of its rivals; the numbers are those of the nearest one
    """
    nearest = f" against {verdict.rival}" if verdict.rival else ""
    numbers = _open_numbers(verdict).replace(" points", f" points{nearest}", 1)
    if chip in SHOWN:
        return f"{lead} leads its {rivals} rivals ({numbers})."
    if chip in STILL_OPEN:
        return f"Whether {lead} leads its {rivals} rivals is open ({numbers})."
    return f"{lead} does not lead its {rivals} rivals ({numbers})."


def compared(finding: Finding) -> str:
    """The printed number beside the measured one: `The paper reports 7.0: same direction, half the size.`

    Empty if the paper prints nothing, or if the run is no setting of the paper.
    """
    number = finding.number
    verdict = finding.verdict
    if number is None or not verdict.points or verdict.point is None:
        return ""
    return f"The paper reports {minus(f'{number:.1f}')}{_beside_print(finding)}."


def _beside_print(finding: Finding) -> str:
    """How the printed number compares with the measured one, to follow the printed one; empty if that is
    open."""
    word, _, share = finding.size.partition(": ")
    if finding.direction == "open":
        return ", which lies outside the interval" if word in sizes.OTHER else ""
    if finding.direction == "contradicted":
        return ": the other direction" if word == sizes.OPPOSITE else ""
    if finding.direction != "confirmed":
        return ""
    same_direction = {
        sizes.AS_PRINTED: ": same direction, same size",
        sizes.OPEN: ": same direction, size open",
        sizes.SMALLER: f": same direction, {share or 'smaller'}",
        sizes.LARGER: f": same direction, {share or 'larger'}",
    }
    return same_direction.get(word, "")


def under(control: Control) -> str:
    """The sentence about a control: `Tuned alike no difference is shown (+0.1, −4.4 to 4.6).`

    Empty for a control without a number.
    """
    verdict = control.verdict
    if verdict is None or verdict.point is None:
        return ""

    start = UNDER.get(control.kind, f"In another setting ({control.kind})")
    numbers = _numbers(verdict)
    if control.stale:
        numbers += "; stale"

    # One method against several rivals: its place among them.
    sides = lead_and_rivals(verdict)
    if control.place and sides:
        lead, _ = sides
        place, methods = control.place
        notes = _notes(control, undecided=verdict.chip in STILL_OPEN)
        return f"{start.replace('both', 'all')}, {lead} is {ordinal(place)} of {methods}{notes}."

    if control.looks:
        return f"{start} it is open ({numbers}; {control.looks})."
    if verdict.chip in SHOWN:
        return f"{start} the lead stays ({numbers})."
    if verdict.chip in STILL_OPEN:
        return f"{start} no difference is shown ({numbers})."
    if verdict.chip == Chip.FAILS:
        return f"{start} the opposite holds ({numbers})."
    return f"{start}: {verdict.chip.value} ({numbers})."


def _notes(control: Control, undecided: bool = False) -> str:
    """What is to be known of a place, in brackets: ` (undecided, 2 rivals not run)`; else empty.

    undecided  whether the control leaves the claim open
    """
    words = []
    if undecided:
        words.append("undecided")
    if control.left_out:
        words.append(f"{counted(control.left_out, 'rival')} not run")
    if control.stale:
        words.append("stale")
    return f" ({', '.join(words)})" if words else ""


def undone(finding: Finding) -> str:
    """Why a finding is open although its verdict is not; empty if it is not.

    There are three reasons: methods are scored on different sides of local training; the spread of the
    compared rows alone leads to another verdict; several looks at the results ask for a stricter level.
    """
    if finding.unequal:
        return "It fails as scored; where all are scored after local training it is open."
    if finding.other_spread:
        return f"The two estimates of its spread disagree ({finding.other_spread})."
    if finding.undone:
        return f"It is open: {looks_ask(decisive(finding.shown), finding.looks, finding.level)}."
    return ""


def place(finding: Finding) -> str:
    """The data set of a claim, or else its setting in words: `Office Caltech`; empty if it has several."""
    spots = finding.claim.spots
    names = {spot.dataset for spot in spots if spot.table} - {"", "n/a"}
    if len(names) == 1:
        return names.pop()
    settings = {spot.setting for spot in spots if spot.table}
    if names or len(settings) != 1:
        return ""
    return setting_words(settings.pop())


def told(finding: Finding, controls: Iterable[str] = (NETWORK, TUNED)) -> list[str]:
    """The sentences about one finding: what was measured, what the paper reports, why it is open, and its
    controls.

    finding   that is told
    controls  kinds of the controls that are mentioned
    """
    verdict = finding.verdict
    texts = [measured(verdict), compared(finding), undone(finding)]
    if finding.own_stale:
        texts.append("Code or parameters have changed since (stale).")
    for kind in controls:
        control = finding.control(kind)
        texts.append(under(control) if control else "")
    return [text for text in texts if text]


def headline(findings: Findings, brief: bool = False) -> str:
    """The first sentences of a paper's page, about the first of its main claims that has a number.

    findings  of the paper
    brief     whether `tuned alike` is the only control that is mentioned, as in a table of papers
    """
    main = [findings.rows[name] for name in findings.study.paper.main]
    if not main:
        return ""
    for finding in main:
        if finding.verdict.point is not None:
            text = _headline_of(finding, brief)
            return text if finding is main[0] else f"Its main setting has not been run. {text}"
    for finding in main:
        if finding.shortened and finding.shown.point is not None:
            text = _headline_of_short(finding, brief)
            sentence = f"No setting of the paper has been run. In a shortened run: {text}"
            return " ".join([sentence, *_with_all_data(findings, finding)])
    return f"Of {findings.study.name} itself only the miniature has been run."


def _headline_of(finding: Finding, brief: bool) -> str:
    """The sentences about a claim, the first one with its data set."""
    controls = (TUNED,) if brief else (NETWORK, TUNED)
    first, *further = told(finding, controls)
    where = place(finding)
    if where:
        first = f"On {where}, {_lower(first)}"
    return " ".join([first, *further])


def _headline_of_short(finding: Finding, brief: bool) -> str:
    """The sentences, after a colon, about a claim of which only a shortened run has a number."""
    texts = [_lower(measured(finding.shown)), undone(finding)]
    if finding.own_stale:
        texts.append("Code or parameters have changed since (stale).")
    controls = (TUNED,) if brief else (HOOK, TUNED)
    for kind in controls:
        control = finding.control(kind)
        texts.append(under(control) if control else "")
    return " ".join(filter(None, texts))


def _with_all_data(findings: Findings, finding: Finding) -> list[str]:
    """Where the lead of a claim of shortened runs stands in runs with the data, partition and network of the
    paper's setting, a sentence for each such scenario. They are no settings of the paper either, and may lack
    methods."""
    study = findings.study
    tree = finding.claim.tree
    if tree is None or lead_and_rivals(finding.shown) is None:
        return []
    [leading] = [spot for spot, weight in tree.leaves()[0].weights if weight == 1]
    source = findings.evidence.source(leading)
    if source is None:
        return []
    cell, measure = source
    paper_setting = study.paper.scenarios[cell.scenario]
    shortened = study.shortened(cell)

    sentences = []
    for name in study.paper.extra_scenarios:
        if shortened and name == shortened.scenario:
            continue
        scenario = study.paper.scenarios[name]
        same_data = scenario.data == paper_setting.data and scenario.partition == paper_setting.partition
        if not same_data or scenario.model != paper_setting.model:
            continue
        methods = [cell.method for cell in study.finished([name], [])]
        if cell.method in methods and len(methods) > 1:
            sentences.append(_place_in(study, name, measure, cell.method, methods))
    return sentences


def _place_in(study: Study, scenario: str, measure: str, lead: str, methods: list[str]) -> str:
    """`With all the paper's data (CIFAR-10, 50 rounds; 1 seed, 7 of 16 methods) FedCRL is 1st of 7 (85.6) as
    scored and 2nd of 7 (85.6; FedProx 88.0) where all are scored after local training.`

    measure: of the claim, an accuracy in percent
    lead: the method that is claimed to be above
    methods: that have a result, `lead` among them
    """
    results = {method: study.results[study.cell(scenario, method)] for method in methods}
    scored = {}
    trained = {}
    for method, result in results.items():
        measures = result["measures"]
        scored[method] = fmean(measures[measure])
        trained[method] = fmean(measures.get(f"post.{measure}", measures[measure]))

    seeds = min(len(result["seeds"]) for result in results.values())
    done = f"{len(methods)} of {len(study.planned_in(scenario))} methods"
    stale = sum(study.is_stale(cell) for cell in study.finished([scenario], methods))
    if stale:
        done += f", {stale} of them stale"
    start = f"With all the paper's data ({study.title(scenario)}; {counted(seeds, 'seed')}, {done})"
    text = f"{start} {study.label(lead)} is {_place_of(study, lead, scored)}"
    if trained == scored:
        return f"{text}."
    after = _place_of(study, lead, trained)
    return f"{text} as scored and {after} where all are scored after local training."


def _place_of(study: Study, lead: str, accuracies: dict[str, float]) -> str:
    """`2nd of 7 (85.6; FedProx 88.0)`, with the best method where the lead is not it.

    accuracies: method -> in percent
    """
    best = max(accuracies, key=lambda method: accuracies[method])
    place = 1 + sum(accuracy > accuracies[lead] for accuracy in accuracies.values())
    numbers = f"{accuracies[lead]:.1f}"
    if place > 1:
        numbers += f"; {study.label(best)} {accuracies[best]:.1f}"
    return f"{ordinal(place)} of {len(accuracies)} ({numbers})"


def _lower(sentence: str) -> str:
    """A sentence as it follows a colon or a comma: `No difference` becomes `no difference`, a name stays."""
    starts = ("No ", "Whether ")
    return sentence[0].lower() + sentence[1:] if sentence.startswith(starts) else sentence


# -- the questions at the top of a page ----------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerRow:
    """A question with what the results say.

    question  in words
    printed   the paper's number as text; empty: there is none
    measured  the measured number as text, with its interval in brackets; empty: there is none
    seeds     `3 seeds`; empty without a measured number
    chip      the answer in a word, which gives its colour
    answer    in words
    claim     id of the claim that it asks about
    further   whether it asks about the claim under another condition (a control)
    stale     whether a number in it was measured with other code or parameters than today's
    """

    question: str
    printed: str
    measured: str
    seeds: str
    chip: Chip
    answer: str
    claim: str
    further: bool = False
    stale: bool = False


def answers(findings: Findings) -> list[AnswerRow]:
    """A row for each question in paper.yaml, in its order."""
    asked = findings.study.paper.findings.answers
    # (claim, kind of control) that a question of its own asks about.
    own_questions = {(answer.claim, answer.control) for answer in asked if answer.control}
    rows = []
    for answer in asked:
        finding = findings.rows[answer.claim]
        kind = answer.control
        if answer.experiment:
            kind = declared_words(answer.experiment)
        if answer.scenario:
            kind = in_words(findings.study.title(answer.scenario))
        if kind:
            control = finding.control(kind) or Control(kind)
            rows.append(_row_of_control(answer.question, finding, control))
            continue
        others = [
            control for control in finding.controls if (answer.claim, control.kind) not in own_questions
        ]
        rows.append(_row(answer.question, finding.shown, _answer(finding, others), finding))
    return rows


def _row_of_control(question: str, finding: Finding, control: Control) -> AnswerRow:
    """The row of a question about a claim under a control."""
    verdict = control.verdict or Verdict(finding.claim, Chip.NOT_RUN)
    answer = f"open: {control.looks}" if control.looks else _yes_or_no(verdict)
    if verdict.size in sizes.OTHER and verdict.chip in STILL_OPEN and finding.number is not None:
        answer += f"; the printed {signed(finding.number)} lies outside"
    if control.place:
        place, methods = control.place
        answer += f"; {ordinal(place)} of {methods}"
        if verdict.rival and (verdict.point or 0) < 0:
            answer += f", {verdict.rival} is above it"
        if control.left_out:
            answer += f"; {control.left_out} not run"
    return replace(_row(question, verdict, answer), further=True, stale=control.stale)


def _row(question: str, verdict: Verdict, answer: str, finding: Finding | None = None) -> AnswerRow:
    """A question with an answer.

    question  in words
    verdict   whose number is shown
    answer    in words
    finding   whose printed number is shown; None: none is
    """
    printed = ""
    if finding and finding.number is not None and verdict.points:
        printed = signed(finding.number)
    numbers = " ".join(filter(None, [verdict.text(verdict.point), verdict.interval]))
    seeds = counted(verdict.seeds, "seed") if numbers else ""
    chip = Chip.UNDECIDED if verdict.chip in STILL_OPEN else verdict.chip
    stale = finding is not None and finding.own_stale
    return AnswerRow(question, printed, numbers, seeds, chip, answer, verdict.claim.id, stale=stale)


def _yes_or_no(verdict: Verdict) -> str:
    """Whether the direction of a claim is shown: yes, no, or why that is open."""
    if verdict.chip in SHOWN:
        return "yes"
    if verdict.chip == Chip.FAILS:
        return "no"
    if verdict.chip in STILL_OPEN:
        sides = lead_and_rivals(verdict)
        one_rival = sides is not None and len(sides[1]) == 1
        return "no difference shown" if one_rival else "open"
    return verdict.chip.value


def _answer(finding: Finding, controls: Iterable[Control]) -> str:
    """The answer in words: the direction, its size, and what controls say.

    controls  of the claim, without those that a question of its own asks about
    """
    text = _yes_or_no(finding.shown)
    if finding.other_spread:
        text = f"open: {finding.other_spread}"
    elif finding.undone or finding.unequal:
        text = f"open: {finding.reservations[0]}"
    elif finding.direction == "confirmed" and finding.size:
        _, _, share = finding.size.partition(": ")
        words = {sizes.AS_PRINTED: "as large as printed", sizes.OPEN: "size open"}
        size = words.get(finding.verdict.size, share or finding.verdict.size)
        text += f", {size}"
    if finding.shortened:
        text = f"shortened run: {text}"

    for control in controls:
        if not control.measured or control.kind not in UNDER:
            continue
        assert control.verdict is not None
        if control.place:
            place, methods = control.place
            numbers = f"{ordinal(place)} of {methods}{_notes(control)}"
        else:
            numbers = f"{control.verdict.text(control.verdict.point)} {control.verdict.interval}".strip()
        text += f"; {BRIEFLY[control.kind]} {numbers}"
    return text
