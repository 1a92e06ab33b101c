"""Draws the training curves of runs side by side.

Use: python examples/draw_curves.py runs/healthy runs/sick --output=curves.png

A column for each run, a row for each of loss, contrastive accuracy, probe
accuracy, similarity and spread. docs/guide/curves.md explains them.
"""

import os

from absl import app, flags, logging

# Hides TensorFlow's messages at start-up.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
logging.set_verbosity(logging.ERROR)

from tf_contrastive.evaluation import figures  # noqa: E402
from tf_contrastive.tensorboard import scalars  # noqa: E402

_OUTPUT = flags.DEFINE_string("output", "curves.png", "file to write")

# Row -> curves: name in the legend -> TensorBoard tag.
_ROWS = {
    "loss": {"": "loss/contrastive"},
    "accuracy": {
        "contrastive": "loss/contrastive_accuracy",
        "probe": "probe/accuracy",
    },
    "similarity": {
        "positives": "similarity/positive",
        "negatives": "similarity/negative",
    },
    "spread": {"": "similarity/embedding_std"},
}
_COLORS = ("#1f77b4", "#d95f02")


def draw(workdirs: list[str]) -> bytes:
    """Returns a PNG with a column for each run."""
    figure, axes = figures.panels(
        len(_ROWS), len(workdirs), 2.6, 1.5, sharex="col", sharey="row"
    )
    for column, workdir in zip(axes.T, workdirs, strict=True):
        curves = scalars.read(os.path.join(workdir, "events"))
        if not curves:
            raise app.UsageError(f"{workdir}: no run of pretrain with events")
        column[0].set_title(os.path.basename(workdir.rstrip("/")), fontsize=9)
        for axis, (row, tags) in zip(column, _ROWS.items(), strict=True):
            axis.tick_params(labelsize=7)
            for (name, tag), color in zip(tags.items(), _COLORS, strict=False):
                points = sorted(curves.get(tag, {}).items())
                axis.plot(*zip(*points, strict=True), color=color, label=name)
            if axis in axes[:, 0]:
                axis.set_ylabel(row, fontsize=8)
                if len(tags) > 1:
                    axis.legend(fontsize=7, frameon=False)
        column[-1].set_xlabel("step", fontsize=8)
    return figures.png(figure)


def main(arguments: list[str]) -> None:
    """Writes a picture of the runs in the given folders."""
    if len(arguments) < 2:
        raise app.UsageError("name the folders of one or more runs")
    with open(_OUTPUT.value, "wb") as file:
        file.write(draw(arguments[1:]))


if __name__ == "__main__":
    app.run(main)
