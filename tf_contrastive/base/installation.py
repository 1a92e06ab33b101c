"""What this interpreter lacks, and the command that installs it.

The package imports this module before any other one: it loads in every Python 3
without further packages, so that a wrong interpreter gets one line.
"""

import importlib.util
import os
import shlex
import sys

# Of the package.
VERSION = "0.3.0"
# The folder of the package: that of a clone, or of installed packages.
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
# What every command imports; another package of the stack comes with them.
_NEEDED = ("absl", "numpy", "tensorflow", "wrapt")
_INSTALL = os.path.join(ROOT, "launch", "install")
_PYTHON = os.path.join(ROOT, ".venv", "bin", "python")


def problem() -> str:
    """Returns why this interpreter cannot run the package, or nothing."""
    if sys.version_info < (3, 10):  # noqa: UP036
        return unusable("is too old")
    import importlib.metadata

    absent = [n for n in _NEEDED if importlib.util.find_spec(n) is None]
    try:
        version = importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:
        version = ""  # Or the wheel has another name, such as tensorflow-cpu.
    minor = tuple(int(part) for part in version.split(".")[:2] if part)
    if version and minor < (2, 15):
        return unusable(f"has TensorFlow {version}, and 2.15 is the oldest")
    if minor > (2, 15) and importlib.util.find_spec("tf_keras") is None:
        absent.append("tf_keras")
    return unusable(f"has no {', '.join(absent)}") if absent else ""


def unusable(why: str) -> str:
    """Says which interpreter cannot be used, and what to do."""
    version = "{}.{}.{}".format(*sys.version_info)
    if not os.path.exists(_INSTALL):
        todo = f"run {_pip()} {shlex.quote(_source())}"
    else:
        todo = f"run {_INSTALL}, and then {_PYTHON} -m tf_contrastive"
    return (
        f"{sys.executable} (Python {version}) {why}: tf_contrastive needs"
        f" Python 3.10 to 3.13 with the packages that it requires: {todo}"
    )


def missing(module: str, extra: str = "") -> str:
    """Returns what is wrong with a package and what to run, or nothing.

    One that was made for another NumPy is found, and cannot be imported.
    `extra` of setup.py has it; empty: the package always needs it.
    """
    try:
        importlib.import_module(module)
    except Exception as error:
        reason = "is not installed"
        absent = isinstance(error, ModuleNotFoundError) and error.name == module
        if not absent:
            line = (str(error).splitlines() or [""])[0]
            reason = f"cannot be imported ({type(error).__name__}: {line})"
        return f"{module}, which {reason}: run {command(module, extra)}"
    return ""


def command(module: str, extra: str = "") -> str:
    """Returns the command that installs an extra, or a module."""
    source = _source()
    wanted = f"{source}[{extra}]" if extra else module
    editable = "-e " if extra and source == ROOT else ""
    return f"{_pip()} {editable}{shlex.quote(wanted)}"


def _pip() -> str:
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip"):
        return f"{python} -m pip install"
    return f"uv pip install --python {python}"


def _source() -> str:
    """Returns what pip installs: a clone, or the name of the package."""
    is_clone = os.path.exists(os.path.join(ROOT, "setup.py"))
    return ROOT if is_clone else "tf_contrastive"
