"""Writes the reference of the package: a page per public module, of docstrings.

Use: reference.py FOLDER, by launch/docs. A name that does not resolve, or
whatever else is warned of, is an error.
"""

import importlib
import os
import pathlib
import sys
import tempfile
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pdoc
import tensorflow as tf

import tf_contrastive

PACKAGE = tf_contrastive.__name__
# A loss, a policy and a schedule are called: that is no private matter.
TEMPLATE = """
{% extends "default/module.html.jinja2" %}
{% macro is_public(doc) %}
{% if doc.name == "__call__" and doc.taken_from[0].startswith("PACKAGE") %}
true
{% else %}{{ default_is_public(doc) }}{% endif %}
{% endmacro %}
"""
# Where users know classes from that stand elsewhere.
KNOWN_AS = {
    "tensorflow": [tf.Module, tf.Tensor, tf.Variable],
    "tensorflow.data": [tf.data.Dataset],
    "tensorflow.distribute": [tf.distribute.Strategy],
    "tensorflow.keras": [tf.keras.Model],
    "tensorflow.keras.layers": [tf.keras.layers.Layer],
    "tensorflow.keras.metrics": [tf.keras.metrics.Metric],
    "tensorflow.keras.optimizers": [tf.keras.optimizers.Optimizer],
}


def settle() -> None:
    """Imports what is imported when first used, since pdoc looks no further."""
    names = [name for name in dir(tf_contrastive) if name != "__version__"]
    tf_contrastive.__all__ = names
    for name in names:
        member = getattr(tf_contrastive, name)
        setattr(tf_contrastive, name, member)
        for inner in getattr(member, "__all__", ()):
            if hasattr(member, inner):
                setattr(member, inner, getattr(member, inner))
    # Where equations stand.
    losses = importlib.import_module(f"{PACKAGE}.losses")
    for loss in losses.LOSSES.values():
        setattr(losses, loss.__name__, loss)
        losses.__all__.append(loss.__name__)


def write(folder: pathlib.Path) -> list[str]:
    """Writes all pages; what was warned of."""
    settle()
    for module, classes in KNOWN_AS.items():
        for known in classes:
            known.__module__ = module
    with (
        tempfile.TemporaryDirectory() as templates,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        template = pathlib.Path(templates) / "module.html.jinja2"
        template.write_text(TEMPLATE.replace("PACKAGE", PACKAGE))
        pdoc.render.configure(
            docformat="google",
            footer_text=f"{PACKAGE} {tf_contrastive.__version__}",
            show_source=False,
            template_directory=template.parent,
        )
        pdoc.pdoc(PACKAGE, output_directory=folder)
    return [str(warning.message) for warning in told]


def main(folder: pathlib.Path) -> int:
    start = folder / f"{PACKAGE}.html"
    if folder.exists() and any(folder.iterdir()) and not start.exists():
        print(
            f"docs: {folder} holds something else: give a folder that is new,"
            " empty, or of an earlier reference",
            file=sys.stderr,
        )
        return 2
    # Pages of modules that are gone must go.
    for page in (folder / PACKAGE).rglob("*.html"):
        page.unlink()
    told = write(folder)
    for message in told:
        print(f"docs: {message}", file=sys.stderr)
    print(f"written: {start}")
    return min(len(told), 1)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
