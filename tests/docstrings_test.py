"""The examples in docstrings run and print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_MODULES = [
    ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    for path in sorted((_ROOT / "tf_contrastive").rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", _MODULES)
def test_examples_of_a_module(name):
    module = importlib.import_module(name.removesuffix(".__init__"))
    failed, examples = doctest.testmod(module)
    assert examples and not failed
