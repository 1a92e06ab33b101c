"""The instructions of launch/Dockerfile."""

import re
from pathlib import Path

ROOT = Path(__file__).absolute().parents[1]


def instructions():
    """Lists (name, text) of each, with continued lines joined."""
    text = (ROOT / "launch" / "Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]
