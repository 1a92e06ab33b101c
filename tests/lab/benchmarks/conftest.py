import json
import sys

import pytest

from lab.__main__ import main


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Runs `benchmark NAME`; returns its status and what it wrote."""

    def run(*words):
        output = tmp_path / "output.json"
        words = ["benchmark", *words, f"--output={output}"]
        monkeypatch.setattr(sys, "argv", ["lab", *words])
        status = main()
        return status, json.loads(output.read_text())

    return run
