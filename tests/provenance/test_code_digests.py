"""Digests that one process leaves for the next: never after a change of a Python file."""

import json

import pytest

from pipeline.provenance import code_digests
from pipeline.provenance.code_digests import FILE, RememberedCode
from pipeline.provenance.definitions import Code

VALUE = "TABLE = {{None: 0, 'key': 1}}\ndef value():\n    return {}\n"
FIRST = ("package.first:run",)


@pytest.fixture
def root(tmp_path):
    """A repository of two modules and a link to a paper's code, with a place for what is remembered."""
    files = {
        "repository/package/__init__.py": "",
        "repository/package/first.py": "from package.second import value\ndef run():\n    return value()\n",
        "repository/package/second.py": VALUE.format(1),
        "theirs/models.py": "def network():\n    return 1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    repository = tmp_path / "repository"
    (repository / ".cells").mkdir()
    (repository / "papers").mkdir()
    (repository / "papers" / "theirs").symlink_to(tmp_path / "theirs")
    return repository


def process(root):
    """As a new process has it."""
    return RememberedCode(root, registries=("package.second:TABLE",))


@pytest.fixture
def left(root):
    """The digest that an ended process has left."""
    code = process(root)
    digest = code.digest(FIRST, frozenset({"key"}))
    code._write()
    return digest


@pytest.fixture
def computes(monkeypatch):
    """The arguments of every digest that is computed."""
    calls = []
    compute = Code.digest
    monkeypatch.setattr(Code, "digest", lambda *arguments: calls.append(arguments[1:]) or compute(*arguments))
    return calls


def test_it_is_the_digest_of_the_code(root, left):
    assert left == Code(root, registries=("package.second:TABLE",)).digest(FIRST, frozenset({"key"}))


def test_the_next_process_computes_nothing(root, left, computes):
    assert process(root).digest(FIRST, frozenset({"key"})) == left
    assert computes == []


def test_other_arguments_are_computed(root, left, computes):
    process(root).digest(("package.second:value",), frozenset({"key"}))
    assert computes == [(("package.second:value",), frozenset({"key"}))]


def test_other_settings_are_computed(root, left, computes):
    RememberedCode(root, neutral={"package.second"}).digest(FIRST, frozenset({"key"}))
    assert len(computes) == 1


@pytest.mark.parametrize(
    "name", ["package/second.py", "package/further.py", "value.py", "papers/theirs/models.py", "tests/x.py"]
)
def test_after_a_change_of_any_python_file_it_is_computed(root, left, computes, name):
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(VALUE.format(2))
    again = process(root).digest(FIRST, frozenset({"key"}))
    assert len(computes) == 1
    assert (again != left) == (name == "package/second.py")


def test_entries_in_another_order_are_computed(root, computes):
    entries = ("package.first:run", "package.second:value")
    code = process(root)
    code.digest(entries)
    code.digest(entries[::-1])
    assert [arguments[0] for arguments in computes] == [entries, entries[::-1]]


def test_a_package_that_has_the_name_of_a_folder_of_data_counts(root, left, computes):
    (root / "package" / "data").mkdir()
    (root / "package" / "data" / "further.py").write_text(VALUE.format(2))
    process(root).digest(FIRST, frozenset({"key"}))
    assert len(computes) == 1


def test_after_a_file_was_removed_it_is_computed(root, left, computes):
    (root / "package/__init__.py").unlink()
    process(root).digest(FIRST, frozenset({"key"}))
    assert len(computes) == 1


@pytest.mark.parametrize("module", ["definitions", "private_methods"])
def test_by_other_code_that_follows_names_it_is_computed(root, left, computes, tmp_path, monkeypatch, module):
    other = tmp_path / "other.py"
    other.write_text("")
    monkeypatch.setattr(getattr(code_digests, module), "__file__", str(other))
    process(root).digest(FIRST, frozenset({"key"}))
    assert len(computes) == 1


@pytest.mark.parametrize("damage", ["cut short", "another value", "not JSON", "a list"])
def test_from_a_damaged_file_nothing_is_taken(root, left, damage):
    text = (root / FILE).read_text()
    changed = {
        "cut short": text[:-20],
        "another value": text.replace(left, "0" * 64),
        "not JSON": "x",
        "a list": json.dumps([1]),
    }
    (root / FILE).write_text(changed[damage])
    assert process(root).digest(FIRST, frozenset({"key"})) == left


def test_a_change_while_a_process_runs_leaves_nothing(root):
    code = process(root)
    code.digest(FIRST, frozenset())
    (root / "package/second.py").write_text(VALUE.format(2))
    code._write()
    assert not (root / FILE).exists()


def test_a_missing_entry_is_an_error_each_time(root):
    for _ in range(2):
        code = process(root)
        with pytest.raises(KeyError):
            code.digest(("package.first:lost",), frozenset())
        code._write()


def test_nothing_is_written_where_no_run_has_been(root):
    (root / ".cells").rmdir()
    code = process(root)
    code.digest(FIRST, frozenset())
    code._write()
    assert not (root / ".cells").exists()


def test_keys_and_attributes_are_those_of_the_code(root):
    for _ in range(2):
        code = process(root)
        assert code.keys == {None, "key"}
        assert code.attributes(FIRST[0]) == Code(root).attributes(FIRST[0])
        code._write()


def test_a_package_is_parsed_once_for_what_its_private_methods_are(root, monkeypatch):
    """Of each of the modules, for all processes until one of them changes."""
    (root / "package/third.py").write_text(
        "class Third:\n"
        "    def call(self):\n"
        "        return self._inner()\n"
        "    def _inner(self):\n"
        "        return 1\n"
    )
    code = process(root)
    assert code.unseen("package") == {"Third": {"_inner"}} == Code(root).unseen("package")
    code._write()
    parsed = []
    monkeypatch.setattr(Code, "_module", lambda self, name: parsed.append(name))
    assert process(root).unseen("package") == {"Third": {"_inner"}}
    assert not parsed


def test_links_in_a_circle_end(root):
    (root / "package/round").symlink_to(root)
    assert process(root).digest(FIRST, frozenset())
