"""The floors of the package: who may import whom, and who knows flags."""

import ast
import graphlib
import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGE = _ROOT / "tf_contrastive"

# From the top down: a module imports from its own part and from the lines below
# its own. Parts of the same line are independent of each other.
_FLOORS = (
    "commands",
    "doctor evaluation",
    "embedding serving train",
    "callbacks exporting",
    "checkpoints tensorboard",
    "model",
    "classifiers datasets encoders flags heads losses optimizers schedules"
    " views",
    "config distribution",
    "base",
)
_FLOOR = {
    part: number
    for number, line in enumerate(reversed(_FLOORS))
    for part in line.split()
}
_COMMAND_LINE = ("flags", "commands")


def _modules():
    """Path from the root -> dotted name and syntax tree, for each module."""
    modules = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        path = path.relative_to(_ROOT)
        parts = path.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[str(path)] = name, ast.parse((_ROOT / path).read_text("utf-8"))
    return modules


_MODULES = _modules()
_NAMES = {name for name, _ in _MODULES.values()}


def _part(name):
    """The part of the package that a dotted name belongs to."""
    package, _, rest = name.partition(".")
    part = rest.split(".")[0] if package == "tf_contrastive" else ""
    return "commands" if part == "__main__" else part


def _imports(nodes):
    """Yields the dotted name of each module that the statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in _NAMES else node.module


def test_modules_import_from_lower_floors_only():
    wrong = [
        f"{path} imports {imported}"
        for path, (name, tree) in _MODULES.items()
        for imported in _imports(ast.walk(tree))
        if _part(name)
        and _part(imported) not in ("", _part(name))
        and _FLOOR[_part(imported)] >= _FLOOR[_part(name)]
    ]
    assert not wrong, "\n".join(wrong)


def _when_loaded(tree):
    """Yields the statements of a module, and those under its conditions.

    An import for type checkers alone is under one: that it costs nothing does
    not make two modules that know each other two.
    """
    for node in tree.body:
        yield from ast.walk(node) if isinstance(node, ast.If) else [node]


def test_modules_do_not_know_each_other():
    graph = {
        name: _NAMES.intersection(_imports(_when_loaded(tree))) - {name}
        for name, tree in _MODULES.values()
    }
    # Raises CycleError, which shows the modules.
    graphlib.TopologicalSorter(graph).prepare()


def test_features_of_the_model_do_not_import_each_other():
    model = "tf_contrastive.model."
    (tree,) = (
        x for n, x in _MODULES.values() if n == f"{model}contrastive_model"
    )
    features = set(_imports(tree.body))
    assert len(features) >= 9
    wrong = [
        f"{name} imports {imported}"
        for name, tree in _MODULES.values()
        if name in features
        for imported in _imports(ast.walk(tree))
        if imported in features
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_does_not_import_what_is_beside_it():
    beside = {path.name for path in _ROOT.iterdir() if path.is_dir()}
    beside |= {path.stem for path in _ROOT.glob("*.py")}
    used = {
        imported.split(".")[0]
        for _, tree in _MODULES.values()
        for imported in _imports(ast.walk(tree))
    }
    assert used & beside == {"tf_contrastive"}


def test_scripts_import_what_exists():
    """Scripts that only maintainers run, and rarely."""
    for folder in ("examples", "launch", "tools"):
        for path in (_ROOT / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                module = getattr(node, "module", None) or ""
                if module.startswith("tf_contrastive"):
                    exec(ast.unparse(node), {})


def test_only_the_command_line_reads_flags():
    wrong = [
        path
        for path, (name, tree) in _MODULES.items()
        if _part(name) not in _COMMAND_LINE
        for imported in _imports(ast.walk(tree))
        if imported.startswith(("absl.flags", "absl.app"))
    ]
    assert not wrong, "\n".join(wrong)


def test_errors_of_the_library_name_arguments_not_flags():
    wrong = [
        f"{path}:{text.lineno}: {text.value}"
        for path, (name, tree) in _MODULES.items()
        if _part(name) not in _COMMAND_LINE
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        for text in ast.walk(node)
        if isinstance(text, ast.Constant)
        and re.search(r"(?<!srun )(?<!install )--\w", str(text.value))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_has_few_parts_on_few_floors():
    entries = {
        path.stem
        for path in _PACKAGE.iterdir()
        if path.suffix == ".py" or path.is_dir()
    } - {"__init__", "__pycache__"}
    assert len(entries) <= 24, sorted(entries)
    assert len(_FLOORS) <= 9
    assert set(_FLOOR) == entries - {"__main__"}
