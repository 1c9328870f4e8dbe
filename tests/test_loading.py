"""Code that Python would run instead of the text that is hashed is refused in one line before training."""

import compileall
import hashlib
import py_compile
import shutil
import types
from importlib.machinery import SourceFileLoader

import pytest
from repository import ROOT

from pipeline import source_code
from pipeline.errors import FedReproError
from pipeline.place import check_code
from pipeline.provenance.definitions import Code
from pipeline.source_code import Loader


@pytest.fixture
def checkout(tmp_path):
    """The packages of a small checkout."""
    folder = tmp_path / "pipeline" / "methods"
    folder.mkdir(parents=True)
    for path in (tmp_path / "pipeline", folder):
        (path / "__init__.py").write_text("")
    (folder / "fedavg.py").write_text("def average():\n    return 1\n")
    check_code(tmp_path)
    return tmp_path


def test_a_package_beside_a_module_of_its_name_is_refused(checkout):
    shutil.copytree(checkout / "pipeline/methods", checkout / "pipeline/methods/fedavg")
    with pytest.raises(
        FedReproError, match=r"pipeline/methods/fedavg/: .* instead of pipeline/methods/fedavg.py"
    ):
        check_code(checkout)


def test_no_digest_is_taken_of_a_module_with_a_package_beside_it(checkout):
    code = Code(checkout, strict=True)
    code.digest(("pipeline.methods.fedavg:average",))
    shutil.copytree(checkout / "pipeline/methods", checkout / "pipeline/methods/fedavg")
    with pytest.raises(FedReproError, match=r"pipeline/methods/fedavg.py: .* package"):
        Code(checkout, strict=True).digest(("pipeline.methods.fedavg:average",))


def test_a_folder_without_code_of_a_modules_name_is_none(checkout):
    (checkout / "pipeline/methods/fedavg").mkdir()
    check_code(checkout)


@pytest.mark.parametrize("kind", ["UNCHECKED_HASH", "CHECKED_HASH"])
def test_bytecode_that_carries_a_hash_is_refused(checkout, kind):
    mode = py_compile.PycInvalidationMode[kind]
    compileall.compile_dir(checkout / "pipeline", quiet=1, invalidation_mode=mode)
    with pytest.raises(FedReproError, match=r"\.pyc: bytecode that is not compared with its source"):
        check_code(checkout)


def test_bytecode_that_python_compares_is_accepted(checkout):
    mode = py_compile.PycInvalidationMode.TIMESTAMP
    compileall.compile_dir(checkout / "pipeline", quiet=1, invalidation_mode=mode)
    check_code(checkout)


def test_code_runs_as_it_is_written_whatever_bytecode_says(checkout):
    file = checkout / "pipeline/methods/fedavg.py"
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(file, invalidation_mode=mode)
    file.write_text(file.read_text().replace("return 1", "return 2"))
    for loader, expected in ((SourceFileLoader, 1), (Loader, 2)):
        module = types.ModuleType("fedavg")
        exec(loader("fedavg", str(file)).get_code("fedavg"), vars(module))
        assert module.average() == expected


def test_the_text_that_was_loaded_is_noted(checkout):
    file = checkout / "pipeline/methods/fedavg.py"
    Loader("fedavg_of_a_test", str(file)).get_code("fedavg_of_a_test")
    assert source_code.loaded.pop("fedavg_of_a_test") == hashlib.sha256(file.read_bytes()).hexdigest()


def test_bytecode_in_the_place_of_a_module_is_refused(checkout):
    file = checkout / "pipeline/methods/fedavg.py"
    py_compile.compile(file, file.with_suffix(".pyc"))
    with pytest.raises(FedReproError, match=r"pipeline/methods/fedavg.pyc: bytecode without a source"):
        check_code(checkout)


@pytest.mark.parametrize("name", ["sitecustomize.py", "usercustomize.py"])
def test_what_python_runs_by_itself_is_refused(checkout, name):
    (checkout / name).write_text("")
    with pytest.raises(FedReproError, match=f"{name}: Python would run it before anything else"):
        check_code(checkout)


@pytest.mark.parametrize("name", ["heapq.py", "yaml.py", "numpy/__init__.py"])
def test_a_module_in_the_place_of_a_librarys_is_refused(checkout, name):
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("")
    top = name.partition("/")[0]
    with pytest.raises(FedReproError, match=f"{top}: Python would import it in the place of"):
        check_code(checkout)


def test_the_code_of_this_checkout_is_accepted():
    check_code(ROOT)


@pytest.mark.parametrize("kept", [0, 10, 20, 0.5])
def test_bytecode_that_a_power_cut_has_torn_is_compiled_again(checkout, kept):
    file = checkout / "pipeline/methods/fedavg.py"
    Loader("fedavg", str(file)).get_code("fedavg")
    [compiled] = (checkout / "pipeline/methods/__pycache__").glob("fedavg*.pyc")
    content = compiled.read_bytes()
    compiled.write_bytes(content[: int(kept * len(content)) if kept < 1 else kept])
    module = types.ModuleType("fedavg")
    exec(Loader("fedavg", str(file)).get_code("fedavg"), vars(module))
    assert module.average() == 1
