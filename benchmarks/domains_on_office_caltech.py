"""Curves of every domain on Office-Caltech: `python benchmarks/domains_on_office_caltech.py`

FedLSA's scenario as it stands (ten clients, each with 20 % of its domain's training part, LeNet on 32 x 32 images, five local
epochs), 10 rounds in place of 100, one seed: FedAvg, FedProto (averaging), FPL and FedLSA. FedLSA brings a network of its own
(a projector, representations of length one), so FedAvg runs on that one too. Needs data/office_caltech10 (`python stages/data.py
office_caltech10`); the mirror's images are 64 x 64. Under a CPU minute; writes benchmarks/results/domains_on_office_caltech.json
and .svg.
"""
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.params import Scenario, load_paper      # noqa: E402

METHODS = ["fedavg", "fedproto", "fpl", "fedlsa"]
ROUNDS = 10
DOMAINS = ["CALTECH", "AMAZON", "WEBCAM", "DSLR"]


def cut(scenario: Scenario) -> Scenario:
    return dataclasses.replace(scenario, training=dataclasses.replace(scenario.training, rounds=ROUNDS))


def on_fedlsas_network(scenario: Scenario) -> Scenario:
    return cut(scenario).with_networks({"name": "fedlsa"}, "model")


def main() -> None:
    from cut_down import RESULTS, Smaller, compare, draw
    name = "domains_on_office_caltech"
    cells = {load_paper("fedlsa").label(method): Smaller("fedlsa", "office-caltech", method, cut) for method in METHODS}
    cells["FedAvg, FedLSA's network"] = Smaller("fedlsa", "office-caltech", "fedavg", on_fedlsas_network)
    document = compare(cells, name, ["average", *DOMAINS])
    draw(document, {domain: domain for domain in DOMAINS} | {"average": "average"}, RESULTS / f"{name}.svg")
    print(f"\n{'last five rounds':24}" + "".join(f"{domain:>9}" for domain in [*DOMAINS, "average"]))
    for result in document["results"]:
        last = result["rounds"][-5:]
        means = [sum(row[domain] for row in last) / len(last) for domain in [*DOMAINS, "average"]]
        print(f"{result['label']:24}" + "".join(f"{value:9.2f}" for value in means))


if __name__ == "__main__":
    main()
