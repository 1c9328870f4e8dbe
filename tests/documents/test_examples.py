"""The notebooks in examples/ run and print what is in them; this file, run by Python, renews that."""

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from repository import ROOT, python

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
POINTS = 8  # by which another processor's accuracy may differ
EXECUTE = "import sys; sys.path[:0] = {tests!r}; from test_examples import executed; executed({path!r})"


def executed(path: str | Path) -> dict:
    """The notebook, its code cells run in one namespace, with what they printed; printed as JSON, too."""
    notebook, names = json.loads(Path(path).read_text("utf-8")), {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        text = printed.getvalue().splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": text}
        cell["execution_count"], cell["outputs"] = number, [stream] if text else []
    print(json.dumps(notebook, indent=1, ensure_ascii=False))
    return notebook


def outputs(notebook: dict) -> str:
    return "".join(
        line for cell in notebook["cells"] for out in cell.get("outputs", ()) for line in out["text"]
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path, tmp_path):
    code = EXECUTE.format(tests=[str(ROOT / "tests"), str(Path(__file__).parent)], path=str(path))
    today = json.loads(python(tmp_path, code, PYTHONPATH=str(ROOT)).stdout)
    number = re.compile(r"\d+\.?\d*")
    stored, printed = outputs(json.loads(path.read_text("utf-8"))), outputs(today)
    assert number.sub("", printed) == number.sub("", stored) != ""
    assert [*map(float, number.findall(printed))] == pytest.approx(
        [*map(float, number.findall(stored))], abs=POINTS
    )
    assert str(ROOT) not in path.read_text("utf-8")


if __name__ == "__main__":
    for notebook in NOTEBOOKS:
        with redirect_stdout(io.StringIO()) as text:
            executed(notebook)
        notebook.write_text(text.getvalue(), "utf-8")
