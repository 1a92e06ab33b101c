"""The layers of the package: who may import whom, and who may read flags."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

_PACKAGE = Path(__file__).resolve().parents[1] / "tf_contrastive"

# From the bottom up; a module imports from lines above its own, or from its
# own package. Modules of one line do not know of one another.
_LAYERS = [
    {"errors", "terminal"},
    {"config"},
    {"distribution", "flags"},
    {"classifiers", "datasets", "encoders", "heads", "losses", "optimizers"}
    | {"schedules", "views"},
    {"model"},
    {"checkpoints", "tensorboard"},
    {"callbacks", "exporting"},
    {"embedding"},
    {"evaluation"},
    {"training"},
    {"stages"},
    {"doctor"},
    {"benchmarks", "papers"},
    {"commands"},
    {"__main__"},
]
_RANK = {name: rank for rank, layer in enumerate(_LAYERS) for name in layer}


def _modules():
    for path in sorted(_PACKAGE.rglob("*.py")):
        parts = path.relative_to(_PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            yield parts[0], path, ast.parse(path.read_text())


def _imported(tree):
    """Yields the dotted name of everything that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _imported_parts(tree):
    """Yields the parts of this package that a module imports."""
    for name in _imported(tree):
        package, _, rest = name.partition(".")
        if package == "tf_contrastive" and rest:
            yield rest.split(".")[0]


def test_every_module_has_a_layer():
    assert {name for name, _, _ in _modules()} == set(_RANK)


def test_modules_import_from_lower_layers_only():
    wrong = [
        f"{path.relative_to(_PACKAGE)} imports {part}"
        for name, path, tree in _modules()
        for part in _imported_parts(tree)
        if part != name and _RANK.get(part, 99) >= _RANK[name]
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_edge_reads_flags():
    wrong = [
        str(path.relative_to(_PACKAGE))
        for name, path, tree in _modules()
        if name not in ("flags", "__main__", "commands")
        for imported in _imported(tree)
        if imported.startswith(("absl.flags", "absl.app"))
    ]
    assert not wrong, "\n".join(wrong)


def test_archived_libraries_stand_in_few_modules():
    archived = {"tensorflow_addons", "keras_cv"}
    users = {
        str(path.relative_to(_PACKAGE))
        for _, path, tree in _modules()
        if archived & {n.split(".")[0] for n in _imported(tree)}
    }
    assert len(users) <= 4, users


@pytest.mark.parametrize(
    "statement",
    [
        "import tf_contrastive.config",
        "import tf_contrastive.flags",
        "import tf_contrastive.__main__",
        "import tf_contrastive",
    ],
)
def test_the_edge_starts_without_tensorflow(statement):
    code = f"{statement}; import sys; sys.exit('tensorflow' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=_PACKAGE.parent
    )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
