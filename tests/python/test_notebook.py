import os
import pathlib

import pytest

nbclient = pytest.importorskip("nbclient", reason="SKIPPED: nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="SKIPPED: nbformat is not installed")
pytest.importorskip("torch", reason="SKIPPED: PyTorch is not installed: tests/pytorch/install.sh installs it")


def kinds_of(notebook):
    def of_cell(cell):
        kinds = [(output.output_type, sorted(output.get("data", {}))) for output in cell.get("outputs", [])]
        # Text arrives in one part or in several.
        return [kind for i, kind in enumerate(kinds) if kind[0] != "stream" or i == 0 or kinds[i - 1][0] != "stream"]

    return [of_cell(cell) for cell in notebook.cells]


@pytest.mark.parametrize("name", ["pipeline.ipynb"])
def test_notebooks_run(source, name):
    path = source / "examples" / "notebooks" / name
    notebook = nbformat.read(path, as_version=4)
    stored = kinds_of(notebook)
    client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    pictures = [
        output.data["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    assert sum(picture.startswith("<iframe") for picture in pictures) == 3  # of our schedule, of the prediction, of the traced module
    assert any("<table" in picture for picture in pictures)
    if folder := os.environ.get("SLUICE_EXECUTED_NOTEBOOKS"):
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times
        nbformat.write(notebook, pathlib.Path(folder) / name)
    assert kinds_of(notebook) == stored, "stored with its outputs; SLUICE_EXECUTED_NOTEBOOKS=examples/notebooks stores them anew"
