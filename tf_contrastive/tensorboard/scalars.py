"""Tags of a run's curves, their arrangement on a page, and how to read them."""

from collections.abc import Iterable

import psutil
import tensorflow as tf
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalars

from tf_contrastive.base import files

# Metric -> tag. The groups follow the data: input, loss, similarity, optimizer,
# probe, system.
TAGS = {
    "loss": "loss/contrastive",
    "contrastive_accuracy": "loss/contrastive_accuracy",
    "contrastive_entropy": "loss/contrastive_entropy",
    "one_view_accuracy": "loss/one_view_accuracy",
    "kl_lower_bound": "loss/kl_lower_bound",
    "positives_per_anchor": "loss/positives_per_anchor",
    "positive_similarity": "similarity/positive",
    "negative_similarity": "similarity/negative",
    "alignment": "similarity/alignment",
    "uniformity": "similarity/uniformity",
    "embedding_std": "similarity/embedding_std",
    "probe_loss": "probe/loss",
    "probe_accuracy": "probe/accuracy",
    "online_knn_top1": "probe/online_knn_top1",
}
VALIDATION = "validation/"
# Before a metric: a value to read its curve by.
REFERENCE = "reference/"
FEATURE_STD = "similarity/feature_std"
FEATURE_RANK = "similarity/feature_effective_rank"

# The five curves by which a run is judged. Collapse to one point shows in the
# fourth; collapse to a few dimensions shows only in the fifth.
_CURVES = {
    "1. loss": ("loss/contrastive",),
    "2. contrastive accuracy": ("loss/contrastive_accuracy",),
    "3. probe accuracy": ("probe/accuracy",),
    "4. similarity: positives above negatives": (
        "similarity/positive",
        "similarity/negative",
    ),
    "5. dimensions in use (effective rank)": (FEATURE_RANK,),
}
# Replaces the fifth in a run without histograms.
_SPREAD_CURVE = {"5. spread (1) or collapse (0)": ("similarity/embedding_std",)}
_GROUPS = ("input", "loss", "similarity", "optimizer", "probe", "system")


def write_layout(metrics: Iterable[str], *, ranks: bool) -> None:
    """Writes the custom-scalars page: five curves, then groups in data order.

    Curves of training, validation and references share a chart. A curve is left
    out if the run does not have its metric, or does not measure the ranks of
    features.
    """
    curves = _CURVES if ranks else _CURVES | _SPREAD_CURVE
    measured = {TAGS[metric] for metric in metrics}
    if ranks:
        measured.add(FEATURE_RANK)
    curves = {k: tags for k, tags in curves.items() if measured >= set(tags)}
    first = layout_pb2.Category(
        title="is it learning?",
        chart=[_chart(title, tags) for title, tags in curves.items()],
    )
    others = [
        layout_pb2.Category(
            title=f"{number}. {group}",
            chart=[_chart(f"all of {group}", (f"{group}/[^/]+",))],
            closed=True,
        )
        for number, group in enumerate(_GROUPS, start=1)
    ]
    layout = layout_pb2.Layout(category=[first, *others])
    summary = custom_scalars.pb(layout).SerializeToString()
    tf.summary.experimental.write_raw_pb(summary, step=0)


def _chart(title: str, tags: tuple[str, ...]) -> layout_pb2.Chart:
    # A chart that compares two curves leaves those of validation out. Charts
    # are the same for all runs: TensorBoard shows each of other curves apart.
    prefix = f"({VALIDATION}|{REFERENCE})?" if len(tags) == 1 else ""
    expressions = [f"^{prefix}{tag}$" for tag in tags]
    return layout_pb2.Chart(
        title=title, multiline=layout_pb2.MultilineChartContent(tag=expressions)
    )


def read(folder: str) -> dict[str, dict[int, float]]:
    """Returns the curves in a folder of event files: tag -> step -> value.

    Of two values of a step, as in a resumed run, the later one is used.
    Subfolders are not read.
    """
    curves: dict[str, dict[int, float]] = {}
    for path in files.entries(folder, r"events\.out\..*"):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    number = float(tf.make_ndarray(value.tensor))
                    curves.setdefault(value.tag, {})[event.step] = number
    return curves


def memory() -> dict[str, float]:
    """Returns tag -> GiB that this process holds, as far as it is known."""
    resident = psutil.Process().memory_info().rss
    gib = {"system/host_memory_gib": resident / 2**30}
    devices = []
    for kind in ("GPU", "TPU"):
        for device in tf.config.list_logical_devices(kind):
            try:
                devices.append(
                    tf.config.experimental.get_memory_info(device.name)
                )
            except (ValueError, tf.errors.OpError):
                continue  # Of another host, or without this information.
    if devices:
        # The fullest device is the one that may run out of memory.
        for tag, key in (("memory", "current"), ("memory_peak", "peak")):
            largest = max(device[key] for device in devices)
            gib[f"system/device_{tag}_gib"] = largest / 2**30
    return gib
