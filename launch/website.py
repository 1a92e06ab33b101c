"""Writes the website: guide and results of docs/, and the API reference.

Use: website.py FOLDER, called by launch/docs. The reference has one page per
public module, from the docstrings. Warnings, such as names that do not resolve
and broken links, are errors.
"""

import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pdoc
import tensorflow as tf

import tf_contrastive

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = tf_contrastive.__name__
# Losses, policies and schedules are called: `__call__` is public.
TEMPLATE = """
{% extends "default/module.html.jinja2" %}
{% macro is_public(doc) %}
{% if doc.name == "__call__" and doc.taken_from[0].startswith("PACKAGE") %}
true
{% else %}{{ default_is_public(doc) }}{% endif %}
{% endmacro %}
"""
# pdoc does not resolve fields that a TypedDict inherits from another module.
IGNORED_WARNINGS = (
    "Cannot determine where .* is taken from",
    "Error parsing type annotation .* Import of Figure failed",
)
# Public names of TensorFlow classes that are defined in private modules.
PUBLIC_MODULES = {
    "tensorflow": [tf.Module, tf.Tensor, tf.Variable],
    "tensorflow.data": [tf.data.Dataset],
    "tensorflow.distribute": [tf.distribute.Strategy],
    "tensorflow.keras": [tf.keras.Model],
    "tensorflow.keras.layers": [tf.keras.layers.Layer],
    "tensorflow.keras.metrics": [tf.keras.metrics.Metric],
    "tensorflow.keras.optimizers": [tf.keras.optimizers.Optimizer],
}


def import_lazy_modules() -> None:
    """Makes lazily imported modules and names visible to pdoc."""
    names = [name for name in dir(tf_contrastive) if name != "__version__"]
    tf_contrastive.__all__ = names
    for name in names:
        member = getattr(tf_contrastive, name)
        setattr(tf_contrastive, name, member)
        for inner in getattr(member, "__all__", ()):
            if hasattr(member, inner):
                setattr(member, inner, getattr(member, inner))
    # Their docstrings hold the equations.
    losses = importlib.import_module(f"{PACKAGE}.losses")
    for loss in losses.LOSSES.values():
        setattr(losses, loss.__name__, loss)
        losses.__all__.append(loss.__name__)


def write_reference(folder: pathlib.Path) -> list[str]:
    """Writes the API reference and returns the warnings."""
    import_lazy_modules()
    for module, classes in PUBLIC_MODULES.items():
        for public in classes:
            public.__module__ = module
    with (
        tempfile.TemporaryDirectory() as templates,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        for message in IGNORED_WARNINGS:
            warnings.filterwarnings("ignore", message)
        template = pathlib.Path(templates) / "module.html.jinja2"
        template.write_text(TEMPLATE.replace("PACKAGE", PACKAGE))
        pdoc.render.configure(
            docformat="google",
            footer_text=f"{PACKAGE} {tf_contrastive.__version__}",
            show_source=False,
            template_directory=template.parent,
        )
        pdoc.pdoc(PACKAGE, output_directory=folder)
    return [str(warning.message) for warning in caught]


def write_pages(folder: pathlib.Path) -> list[str]:
    """Writes the pages of docs/ and returns the warnings."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--quiet",
            "--strict",
            f"--config-file={ROOT / 'launch' / 'mkdocs.yml'}",
            f"--site-dir={folder}",
        ],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stderr.splitlines() if done.returncode else []


def main(folder: pathlib.Path) -> int:
    reference = "reference"
    start = folder / "index.html"
    earlier = start.exists() and (folder / reference).exists()
    if folder.exists() and any(folder.iterdir()) and not earlier:
        print(
            f"docs: {folder} holds other files: use a new or empty folder, or"
            " the one of an earlier website",
            file=sys.stderr,
        )
        return 2
    messages = [*write_pages(folder), *write_reference(folder / reference)]
    for message in messages:
        print(f"docs: {message}", file=sys.stderr)
    print(f"written: {start}")
    return min(len(messages), 1)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
