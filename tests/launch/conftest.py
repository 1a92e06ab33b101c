"""A copy of the project's launch scripts, with fake programs that they call."""

import json
import os
import shutil
import sys

import processes
import pytest
from processes import ROOT

# A fake program that records its arguments.
_RECORD = """#!{python}
import json, os, sys
with open({calls!r}, "a") as file:
    name = os.path.basename(sys.argv[0])
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
{then}
sys.exit(int(os.environ.get("FAKE_STATUS", 0)))
"""


class Project:
    """A copy of the project with fake programs, such as gcloud and Python."""

    def __init__(self, folder):
        self.folder = folder
        self.calls_file = folder / "calls"
        self.bin = folder / "bin"
        for name in ("setup.py", "pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "launch", folder / "launch")
        for name in ("configs", "tf_contrastive"):
            (folder / name).mkdir()
        (folder / "launch" / "install").write_text("#!/bin/sh\n")
        for name in ("docker", "gcloud", "sbatch", "srun"):
            self.fake(self.bin / name)
        # It keeps what is applied.
        applied = f"open({str(folder / 'applied')!r}, 'w')"
        self.fake(self.bin / "kubectl", f"{applied}.write(sys.stdin.read())")
        self.fake(folder / ".venv" / "bin" / "python")

    def fake(self, path, then=""):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            _RECORD.format(
                python=sys.executable, calls=str(self.calls_file), then=then
            )
        )
        path.chmod(0o755)

    def environment(self, **variables):
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "TPU_", "TF_CONFIG"))
        }
        path = f"{self.bin}:{os.environ['PATH']}"
        return {**inherited, "PATH": path, **variables}

    def run(self, *words, status=None, **variables):
        environment = self.environment(**variables)
        return processes.run(
            words, status=status, cwd=self.folder, env=environment
        )

    def calls(self):
        """Returns and forgets the recorded calls."""
        if not self.calls_file.exists():
            return []
        lines = self.calls_file.read_text().splitlines()
        self.calls_file.unlink()
        return [json.loads(line) for line in lines]


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)
