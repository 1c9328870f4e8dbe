"""Which changes of code a cell's digest sees: a table of harmless ones, after which it is the same, and of
real ones, after which it is another."""

import ast
from pathlib import Path

import pytest
from renamings import TOLD_APART

from pipeline.provenance.definitions import Code
from pipeline.provenance.normal_form import normal_form
from pipeline.schema import ROOT

TRAIN = '''"""How a seed is trained."""

import contextlib
import logging
import torch
from torch.optim import SGD
from torch.nn import functional as F

from lib.losses import kl, _scaled
from lib import kinds, terms
from lib.servers import Adaptive, Momentum

ROUNDS = 20
_HALF = 0.5
STEPS = {"sgd": SGD, "adam": torch.optim.Adam}
CHOSEN = ("a", "b")
NOTED = (kinds.SEEN, kinds.told)


class Base:
    """A method."""

    mu: float = 0.01
    clients: int = 4

    def loss(self, model, batch):
        """Cross entropy."""
        fit = F.cross_entropy(model(batch.images), batch.labels)
        return fit + self.mu / 2 * _distance(model)

    def aggregate(self, models):
        return terms.mean(models)


class Method(Base):
    def loss(self, model, batch, scale: float = 1.0) -> float:
        plain = super().loss(model, batch)
        return scale * plain + kl(plain, _HALF)

    @torch.no_grad()
    def server(self, state, models, *, momentum=0.9):
        new = self.aggregate(models)
        for name, value in sorted(new.items()):
            old = state[name]
            state[name] = momentum * old + (1 - momentum) * value
        return state


def _distance(model):
    total = 0.0
    for tensor in model.params:
        total = total + (tensor**2).sum()
    return total


def checked(value):
    if value > 5:
        raise OverflowError(value)
    return value


def train(method: Method, data, rounds: int = ROUNDS, seed=0):
    """Train all rounds."""
    # as in the paper
    if not data:
        raise ValueError(f"no data for {method}")
    assert rounds > 0, "rounds"
    generator = torch.Generator().manual_seed(seed)
    servers = Momentum(), Adaptive()
    history: list = []
    best = None
    step = STEPS["sgd"]
    for number in range(1, rounds + 1):
        order = [k for k in torch.randperm(len(data), generator=generator).tolist() if k >= 0]
        losses = [method.loss(model, batch) for model, batch in zip(order, data)]
        try:
            value = sum(losses) / len(losses)
        except ZeroDivisionError as problem:
            logging.warning("round %s: %s", number, problem)
            value = 0.0

        def better(other):
            return best is None or other < best

        if better(value) and number % 2 == 0:
            best = value
        try:
            assert value < 10
            value = checked(value)
        except AssertionError:
            value = 10.0
        except OverflowError as large:
            value = large.args[0]
        with contextlib.suppress(AssertionError):
            assert value > -10
            value = value + 1
        history.append((number, value, _scaled(value)))
        print("round", number)
    with torch.inference_mode():
        step(history, lr=0.01)
    return {"history": history, "best": best, "noted": NOTED, **{name: len(name) for name in CHOSEN}}
'''
LOSSES = """TEMPERATURE = 2.0


def kl(x, half):
    return half * _scaled(x) * TEMPERATURE


def _scaled(x):
    return x - 1


def unused(x):
    return x
"""
TERMS = """def mean(models):
    return {name: sum(model[name] for model in models) / len(models) for name in models[0]}
"""
KINDS = """SEEN = []


def noted(function):
    SEEN.append(function)
    return function


@noted
def first(x):
    return x


@noted
def second(x):
    return 2 * x


def warn(x):
    SEEN.append(x)


def told(warn, x):
    warn(x)
    return x
"""
SERVERS = """import torch

RATE, DECAY = 0.1, 0.9


class Server:
    def step(self, state):
        return self._shrunk(self._moved(state))

    def undo(self, state):
        return self._grown(state)

    def _moved(self, state):
        return state - RATE * self._scale(state)

    def _shrunk(self, state):
        return DECAY * state

    def _grown(self, state):
        return state + RATE * self._scale(state)

    def _scale(self, state):
        return state * 2

    def _size(self, state):
        return 1


class Momentum(Server):
    def _size(self, state):
        return 2

    def larger(self, state):
        return self._size(state) * self._mean(state)

    def _mean(self, state):
        return state.mean()


class Named:
    def ask(self, state):
        return self._asked(state)


class Adaptive(Named, torch.nn.Module):
    def told(self, state, name):
        return getattr(self, "_by_text")(state) + self.ask(state)

    def _asked(self, state):
        return state

    def _by_text(self, state):
        return self._asked(state)

    def _call_impl(self, state):
        return self._call_impl
"""
FILES = {
    "__init__": "",
    "train": TRAIN,
    "losses": LOSSES,
    "terms": TERMS,
    "kinds": KINDS,
    "servers": SERVERS,
}


def digest(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / "lib" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    entries = ("lib.train:train", "lib.train:Method")
    return Code(root, constants={"SECONDS"}, strict=True).digest(entries)


def changed(*changes: tuple[str, str, str]) -> dict[str, str]:
    """The files after (file, old text, new text); an old text of several places is changed in all."""
    files = dict(FILES)
    for file, old, new in changes:
        assert old in files[file], old
        files[file] = files[file].replace(old, new)
    return files


T = "train"
S = "servers"
HARMLESS = {
    "a comment": [(T, "# as in the paper", "# Eq. 3 of the paper")],
    "no comment": [(T, "    # as in the paper\n", "")],
    "the docstring of a module": [(T, "How a seed is trained.", "Trains a seed.")],
    "the docstring of a function": [(T, "Train all rounds.", "All rounds, one after the other.")],
    "the docstring of a class": [(T, '    """A method."""\n\n', "")],
    "the docstring of a method": [(T, "Cross entropy.", "Cross entropy and the proximal term.")],
    "an annotation of a parameter": [(T, "rounds: int = ROUNDS", "rounds: 'int' = ROUNDS")],
    "a new annotation": [(T, "data, rounds: int", "data: list, rounds: int")],
    "an annotation of what is returned": [(T, ") -> float:", ") -> torch.Tensor:")],
    "an annotation of a local variable": [(T, "history: list = []", "history = []")],
    "another assert": [(T, "assert rounds > 0", "assert rounds >= 1")],
    "what an assert says": [(T, '"rounds"\n', '"rounds: above 0"\n')],
    "one more assert": [(T, "    best = None\n", "    best = None\n    assert isinstance(seed, int)\n")],
    "no assert": [(T, '    assert rounds > 0, "rounds"\n', "")],
    "what an error says": [(T, 'f"no data for {method}"', 'f"{method}: it has no data"')],
    "an error's other values": [(T, 'f"no data for {method}"', 'f"no data of {len(data)}"')],
    "what a log line says": [(T, '"round %s: %s"', '"in round %s: %s"')],
    "no log line": [(T, '            logging.warning("round %s: %s", number, problem)\n', "")],
    "one more log line": [(T, "    best = None\n", '    best = None\n    print("begins", rounds)\n')],
    "a logger of the module": [
        (T, "_HALF = 0.5\n", "_HALF = 0.5\nJOURNAL = logging.getLogger(__name__)\n"),
        (T, "    best = None\n", '    best = None\n    JOURNAL.info("begins %s", rounds)\n'),
    ],
    "a logger with its name": [
        (T, "_HALF = 0.5\n", '_HALF = 0.5\n_log: logging.Logger = logging.getLogger("lib")\n'),
        (T, 'logging.warning("round %s: %s", number, problem)', "_log.warning(number)"),
    ],
    "a logger that is asked for": [
        (T, "    best = None\n", '    best = None\n    logging.getLogger(__name__).info("begins")\n')
    ],
    "a log line of a container's items": [
        (T, "        new = self", "        print(sorted(state.keys()), *models.values())\n        new = self")
    ],
    "a log line with the larger of two": [
        (T, "    best = None\n", "    best = None\n    print(max(rounds, seed), generator.sum(seed))\n")
    ],
    "what is printed": [(T, 'print("round", number)', 'print(f"round {number} of {rounds}")')],
    "the name of a local variable": [
        (T, "losses = [", "each = ["),
        (T, "sum(losses) / len(losses)", "sum(each) / len(each)"),
    ],
    "the name of a loop's variable": [
        (T, "for tensor in model.params", "for t in model.params"),
        (T, "(tensor**2)", "(t**2)"),
    ],
    "the name of a comprehension's variable": [
        (T, "[k for k in", "[at for at in"),
        (T, "if k >= 0", "if at >= 0"),
    ],
    "the name of a caught error": [(T, "problem", "error")],
    "the name of an inner function": [(T, "better", "improves")],
    "the name of a private helper": [(T, "_distance", "_norm")],
    "the name of a private helper of another module": [
        (T, "_scaled", "_shifted"),
        ("losses", "_scaled", "_shifted"),
    ],
    "the name of a private constant": [(T, "_HALF", "_SHARE")],
    "the name of a private method": [(S, "_moved", "_after")],
    "the name of a private method that two others call": [(S, "_scale", "_zoom")],
    "the names of private methods exchanged": [
        (S, "_moved", "_x"),
        (S, "_shrunk", "_moved"),
        (S, "_x", "_shrunk"),
    ],
    "the name of a subclass's own private method": [(S, "_mean", "_average")],
    "the order of private methods": [
        (S, "    def _shrunk(self, state):\n        return DECAY * state\n\n", ""),
        (
            S,
            "    def _moved",
            "    def _shrunk(self, state):\n        return DECAY * state\n\n    def _moved",
        ),
    ],
    "two constants on a line each": [(S, "RATE, DECAY = 0.1, 0.9", "RATE = 0.1\nDECAY = 0.9")],
    "the order of definitions": [
        ("losses", "def _scaled(x):\n    return x - 1\n\n\n", ""),
        ("losses", "def kl", "def _scaled(x):\n    return x - 1\n\n\ndef kl"),
    ],
    "the order of methods": [
        (T, "    def aggregate(self, models):\n        return terms.mean(models)\n", ""),
        (
            T,
            "    def loss(self, model, batch):\n",
            "    def aggregate(self, models):\n        return terms.mean(models)\n\n"
            "    def loss(self, model, batch):\n",
        ),
    ],
    "from the module or by its name": [
        (T, "from lib import kinds, terms", "from lib import kinds\nfrom lib.terms import mean"),
        (T, "terms.mean", "mean"),
    ],
    "an alias of a module": [
        (T, "from lib import kinds, terms", "from lib import kinds, terms as rules"),
        (T, "terms.mean", "rules.mean"),
    ],
    "an alias of a foreign module": [
        (T, "functional as F", "functional"),
        (T, "F.cross_entropy", "functional.cross_entropy"),
    ],
    "an import that moves into a function": [
        (T, "from lib import kinds, terms\n", "from lib import kinds\n"),
        (T, "        return terms.mean", "        from lib import terms\n\n        return terms.mean"),
    ],
    "one more import": [(T, "import logging\n", "import logging\nimport math\n")],
    "an unused function": [("losses", "def unused(x):\n    return x", "def unused(x):\n    return -x")],
    "a constant that changes no result": [(T, "_HALF = 0.5\n", "_HALF = 0.5\nSECONDS = 3\n")],
    "blanks and brackets": [
        (
            T,
            "return fit + self.mu / 2 * _distance(model)",
            "return (fit\n            + (self.mu / 2) * _distance(model))",
        )
    ],
    "how a number is written": [(T, "_HALF = 0.5", "_HALF = 0.50")],
    "how a text is written": [(T, 'STEPS["sgd"]', "STEPS['sgd']")],
    "a pass": [(T, "            best = value\n", "            best = value\n            pass\n")],
}
REAL = {
    "a statement on a name of a logger": [(T, "    best = None\n", "    best = None\n    log.mul_(2)\n")],
    "an assert that writes": [
        (T, "    best = None\n", "    best = None\n    assert torch.round(seed, out=seed) is seed\n")
    ],
    "a constant": [(T, "ROUNDS = 20", "ROUNDS = 21")],
    "one of two constants": [(S, "0.1, 0.9", "0.1, 0.8")],
    "two constants exchanged": [(S, "RATE, DECAY", "DECAY, RATE")],
    "a private method": [(S, "return state * 2", "return state * 3")],
    "which private method": [(S, "self._grown(state)", "self._shrunk(state)")],
    "the order of private calls": [
        (S, "self._shrunk(self._moved(state))", "self._moved(self._shrunk(state))")
    ],
    "a private method that a base calls no more": [
        (S, "self._shrunk(self._moved(state))", "self._moved(state)")
    ],
    "the private name in a base alone": [
        (S, "    def _size(self, state):\n        return 1", "    def _big(self, state):\n        return 1")
    ],
    "the private name in a subclass alone": [
        (S, "    def _size(self, state):\n        return 2", "    def _big(self, state):\n        return 2"),
    ],
    "a private method for a base's": [(S, "_mean", "_scale")],
    "a private name that a text has": [(S, "def _by_text", "def _of_text")],
    "a private name that another base calls": [(S, "def _asked", "def _wanted")],
    "a private name of a foreign base": [(S, "_call_impl", "_call_ours")],
    "a private name after another object": [
        (T, "    servers = Momentum(), Adaptive()", "    servers = Momentum()._mean"),
    ],
    "a private constant": [(T, "_HALF = 0.5", "_HALF = 0.500001")],
    "a constant two files away": [("losses", "TEMPERATURE = 2.0", "TEMPERATURE = 2.5")],
    "a whole number for a fraction": [("losses", "TEMPERATURE = 2.0", "TEMPERATURE = 2")],
    "the default of a field": [(T, "mu: float = 0.01", "mu: float = 0.02")],
    "the kind of a field": [(T, "mu: float = 0.01", "mu: int = 0.01")],
    "the order of fields": [
        (T, "    mu: float = 0.01\n    clients: int = 4\n", "    clients: int = 4\n    mu: float = 0.01\n")
    ],
    "one more field": [(T, "clients: int = 4\n", "clients: int = 4\n    beta: float = 0.1\n")],
    "the default of a parameter": [(T, "momentum=0.9", "momentum=0.99")],
    "the name of a parameter": [(T, "momentum", "beta")],
    "a parameter by position": [(T, "models, *, momentum", "models, momentum")],
    "one more parameter": [(T, "seed=0):", "seed=0, more=None):")],
    "a sign": [(T, "return fit + self.mu", "return fit - self.mu")],
    "a term left out": [(T, "return fit + self.mu / 2 * _distance(model)", "return fit")],
    "a factor": [(T, "self.mu / 2", "self.mu")],
    "another factor": [(T, "self.mu / 2", "self.mu / 3")],
    "the order of a product": [(T, "scale * plain", "plain * scale")],
    "the order of a sum": [(T, "total + (tensor**2).sum()", "(tensor**2).sum() + total")],
    "a power": [(T, "tensor**2", "tensor**3")],
    "a mean for a sum": [(T, "(tensor**2).sum()", "(tensor**2).mean()")],
    "an argument of a call": [(T, "kl(plain, _HALF)", "kl(plain, 0)")],
    "the order of arguments": [(T, "kl(plain, _HALF)", "kl(_HALF, plain)")],
    "a keyword's value": [(T, "lr=0.01", "lr=0.02")],
    "a keyword": [(T, "lr=0.01", "rate=0.01")],
    "another foreign function": [(T, "F.cross_entropy", "F.nll_loss")],
    "another foreign module": [(T, "from torch.optim import SGD", "from torch.optim.adam import SGD")],
    "a function of another name": [(T, "import SGD\n", "import Adam as SGD\n")],
    "a decorator": [(T, "@torch.no_grad()", "@torch.enable_grad()")],
    "no decorator": [(T, "    @torch.no_grad()\n", "")],
    "a base class": [(T, "class Method(Base)", "class Method")],
    "a method that is no more": [
        (T, "    def aggregate(self, models):\n        return terms.mean(models)\n", "")
    ],
    "the name of a method": [(T, "    def server(", "    def serve(")],
    "the condition of a loop": [(T, "rounds + 1)", "rounds)")],
    "a comparison": [(T, "other < best", "other <= best")],
    "a condition": [(T, "number % 2 == 0", "number % 2 == 1")],
    "and for or": [(T, "better(value) and number", "better(value) or number")],
    "a condition that is no more": [(T, " and number % 2 == 0", "")],
    "the condition of a comprehension": [(T, " if k >= 0]", " if k > 0]")],
    "the source of a comprehension": [(T, "zip(order, data)", "zip(data, order)")],
    "the seed of a draw": [(T, "manual_seed(seed)", "manual_seed(seed + 1)")],
    "one more draw": [
        (T, "    best = None\n", "    best = None\n    torch.rand(1, generator=generator)\n"),
    ],
    "the order of statements": [
        (T, "            old = state[name]\n", ""),
        (T, "momentum) * value\n", "momentum) * value\n            old = state[name]\n"),
    ],
    "a statement twice": [
        (T, "        new = self.aggregate(models)\n", "        new = self.aggregate(models)\n" * 2)
    ],
    "another local variable": [(T, "            best = value\n", "            step = value\n")],
    "a variable that hides another": [(T, "best = None\n", "best = None\n    data = data[1:]\n")],
    "what is returned": [(T, '"best": best', '"best": value')],
    "the key of what is returned": [(T, '"best": best', '"last": best')],
    "what is returned of a loop": [(T, "    return state\n", "    return new\n")],
    "a kind of error": [(T, "raise ValueError(", "raise TypeError(")],
    "an error that is caught": [(T, "except ZeroDivisionError", "except ArithmeticError")],
    "the value after an error": [(T, "value = 0.0", "value = 1.0")],
    "when an error is raised": [(T, "if not data:", "if data is None:")],
    "an assert that acts": [(T, "assert rounds > 0", "assert data.pop()")],
    "a log line that acts": [(T, 'print("round", number)', 'print("round", generator.seed())')],
    "a function of the repository called warn": [
        (T, "from lib import kinds", "from lib.kinds import warn\nfrom lib import kinds"),
        (T, "    best = None\n", "    best = None\n    warn(seed)\n"),
    ],
    "a function of the repository called print": [
        (T, "from lib import kinds", "from lib.kinds import warn as print\nfrom lib import kinds"),
    ],
    "a call of a function that is given as warn": [("kinds", "    warn(x)\n", "")],
    "a log line that takes an iterator's items": [
        (T, "    best = None\n", "    best = None\n    print(list(data))\n")
    ],
    "a log line that unpacks an iterator": [(T, "    best = None\n", "    best = None\n    print(*data)\n")],
    "a log line that loops over an iterator": [
        (T, "    best = None\n", "    best = None\n    print([one for one in data])\n")
    ],
    "an assert that takes an iterator's items": [
        (T, "    best = None\n", "    best = None\n    assert any(data)\n")
    ],
    "an assert that is caught": [(T, "assert value < 10", "assert value < 11")],
    "an assert that is suppressed": [(T, "assert value > -10", "assert value > -11")],
    "no assert where it is caught": [(T, "            assert value < 10\n", "")],
    "the value of an error that is caught": [(T, "OverflowError(value)", "OverflowError(value + 1)")],
    "the order in which definitions are noted": [
        ("kinds", "@noted\ndef first(x):\n    return x\n\n\n", ""),
        ("kinds", "    return 2 * x\n", "    return 2 * x\n\n\n@noted\ndef first(x):\n    return x\n"),
    ],
    "one more definition that is noted": [("kinds", "def warn(x)", "@noted\ndef warn(x)")],
    "a definition that is noted": [("kinds", "return 2 * x", "return 3 * x")],
    "an error that acts": [(T, 'f"no data for {method}"', "data.read()")],
    "the entry of a table": [(T, '"sgd": SGD', '"sgd": torch.optim.Adagrad')],
    "which entry": [(T, 'STEPS["sgd"]', 'STEPS["adam"]')],
    "the order of a tuple": [(T, '("a", "b")', '("b", "a")')],
    "a helper's statement": [("losses", "return x - 1", "return x - 2")],
    "which of two helpers": [(T, "_scaled(value)))", "_distance(value)))")],
    "a function of another module": [("terms", "/ len(models)", "/ (1 + len(models))")],
    "a context": [(T, "torch.inference_mode()", "torch.no_grad()")],
    "no context": [(T, "    with torch.inference_mode():\n        step", "    if True:\n        step")],
    "what acts on import": [(T, "ROUNDS = 20\n", "ROUNDS = 20\ntorch.set_num_threads(2)\n")],
    "what acts on import of a package": [("__init__", "", "import torch\ntorch.nn.Linear.forward = None\n")],
    "a name of the scope around": [
        (T, "        def better(other):\n", "        def better(other, best=None):\n")
    ],
    "a global name": [
        (T, "            best = value\n", "            global best_of_all\n            best_of_all = value\n")
    ],
}


def test_the_tables_are_as_long_as_they_have_to_be():
    assert len(HARMLESS) >= 21
    assert len(REAL) >= 52


def test_the_page_on_reliability_names_their_lengths():
    text = " ".join((ROOT / "docs/reliability.md").read_text("utf-8").split())
    assert f"{len(REAL)} real and {len(HARMLESS)} harmless changes of code" in text


@pytest.fixture(scope="module")
def before(tmp_path_factory) -> str:
    return digest(tmp_path_factory.mktemp("before"), FILES)


@pytest.mark.parametrize("change", HARMLESS)
def test_a_harmless_change_leaves_the_digest(tmp_path, before, change):
    assert digest(tmp_path, changed(*HARMLESS[change])) == before


@pytest.mark.parametrize("change", REAL)
def test_a_real_change_is_another_digest(tmp_path, before, change):
    assert digest(tmp_path, changed(*REAL[change])) != before


def test_a_private_name_that_another_module_mentions_counts(tmp_path):
    """Renamed in its class alone, it is missing there."""
    mentions = changed((T, "servers = Momentum(), Adaptive()", "servers = Momentum()._mean"))
    renamed = mentions | {S: mentions[S].replace("_mean", "_average")}
    assert digest(tmp_path / "one", mentions) != digest(tmp_path / "other", renamed)


def test_a_private_method_of_another_package_is_known_by_name(tmp_path):
    """A class of a paper's folder that defines a base's private method again: renamed in the base alone, that
    is no longer so."""
    head = "from lib.servers import Server\n\n\nclass Ours(Server):\n"
    text = f"{head}    def _moved(self, state):\n        return 0\n"
    digests = []
    for name in ("_moved", "_after"):
        root = tmp_path / name
        digest(root, changed((S, "_moved", name)))
        (root / "ours").mkdir()
        (root / "ours/method.py").write_text(text)
        digests.append(Code(root, strict=True).digest(("ours.method:Ours",)))
    assert digests[0] != digests[1]


def test_what_a_class_calls_may_be_anothers_by_a_subclass_of_both_in_another_package(tmp_path):
    asks = "class Asks:\n    def ask(self):\n        return self._answer()\n\n\n"
    has = (
        "class Has:\n    def tell(self):\n        return self.{0}()\n\n    def {0}(self):\n        return 1\n"
    )
    digests = []
    for name in ("_answer", "_reply"):
        root = tmp_path / name
        digest(root, FILES | {"both": asks + has.format(name)})
        (root / "ours").mkdir()
        (root / "ours/method.py").write_text(
            "from lib.both import Asks, Has\n\n\nclass Both(Asks, Has):\n    pass\n"
        )
        digests.append(Code(root, strict=True).digest(("ours.method:Both",)))
    assert digests[0] != digests[1]


def test_a_file_that_cannot_be_parsed_changes_no_digest(tmp_path, before):
    files = FILES | {"half": "def written(:\n"}
    assert digest(tmp_path, files) == before


def test_the_place_and_the_name_of_a_module_do_not_count(tmp_path, before):
    files = changed((T, "from lib.losses import kl", "from lib.inner.rules import kl"))
    files["inner/__init__"], files["inner/rules"] = "", files.pop("losses")
    assert digest(tmp_path, files) == before


def test_a_definition_that_moves_to_another_module_does_not_count(tmp_path, before):
    moved = "def _scaled(x):\n    return x - 1\n"
    files = changed(
        ("losses", moved, ""),
        ("losses", "TEMPERATURE = 2.0", "from lib.shifts import _scaled\n\nTEMPERATURE = 2.0"),
        (
            T,
            "from lib.losses import kl, _scaled",
            "from lib.losses import kl\nfrom lib.shifts import _scaled",
        ),
    )
    assert digest(tmp_path, files | {"shifts": moved}) == before


def test_helpers_that_differ_only_behind_several_calls_are_told_apart(tmp_path):
    """train calls a or b; both have one form, and so have what they call, until the last."""
    chain = (
        "def {0}(x):\n    return {0}2(x)\n\n\ndef {0}2(x):\n    return {0}3(x)\n\n\n"
        "def {0}3(x):\n    return x + {1}\n\n\n"
    )
    texts = chain.format("a", 1) + chain.format("b", 2)
    both = "def train(x):\n    return {}(x), a(x), b(x)\n\n\nclass Method:\n    pass\n"
    one, other = (
        digest(tmp_path / name, {"__init__": "", "train": texts + both.format(name)}) for name in "ab"
    )
    assert one != other


def test_by_default_caught_asserts_count():
    text = "def f(x):\n    try:\n        assert x\n    except AssertionError:\n        return 1\n"
    definition = ast.parse(text).body[0]
    assert normal_form(definition) == normal_form(definition, strict=True)
    assert normal_form(definition) != normal_form(definition, strict=False)


@pytest.mark.parametrize("change", TOLD_APART)
def test_what_a_renaming_or_two_constants_may_change_is_another_digest(tmp_path, change):
    before, after = TOLD_APART[change]
    digests = []
    for files in (before, before | after):
        root = tmp_path / str(len(digests))
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        entry = "ours.m:run" if "ours/m.py" in files else "lib.a:run"
        digests.append(Code(root, strict=True).digest((entry,)))
    assert digests[0] != digests[1]
