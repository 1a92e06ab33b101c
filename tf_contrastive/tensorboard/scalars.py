"""The names of a run's curves, the page that TensorBoard opens them on."""

import os

import tensorflow as tf
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalars

# A number of a step -> its tag. The groups follow the data: input, loss,
# similarity, optimizer, probe, system.
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
FEATURE_STD = "similarity/feature_std"
FEATURE_RANK = "similarity/feature_effective_rank"

# The five curves by which a run is judged, and what each is looked at for. The
# fifth is the effective rank: that all embeddings become one shows in the
# fourth, but that they use a few dimensions only shows in no other.
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
# What stands in for it where no features are looked at.
_SPREAD = {"5. spread (1) or collapse (0)": ("similarity/embedding_std",)}
_GROUPS = ("input", "loss", "similarity", "optimizer", "probe", "system")


def write_layout(*, probe: bool, ranks: bool) -> None:
    """Writes the custom-scalars page: five curves, then groups in data order.

    Curves of training and validation share a chart. The default writer gets it.

    Args:
      probe: whether the run has a probe.
      ranks: whether it measures the rank of features.
    """
    curves = dict(_CURVES)
    if not ranks:
        curves = {k: v for k, v in curves.items() if FEATURE_RANK not in v}
        curves |= _SPREAD
    if not probe:
        curves = {k: v for k, v in curves.items() if "probe/accuracy" not in v}
    first = layout_pb2.Category(
        title="is it learning?",
        chart=[_chart(title, tags) for title, tags in curves.items()],
    )
    others = [
        layout_pb2.Category(
            title=f"{place}. {group}",
            chart=[_chart(f"all of {group}", (f"{group}/[^/]+",))],
            closed=True,
        )
        for place, group in enumerate(_GROUPS, start=1)
    ]
    layout = layout_pb2.Layout(category=[first, *others])
    summary = custom_scalars.pb(layout).SerializeToString()
    tf.summary.experimental.write_raw_pb(summary, step=0)


def read(folder: str) -> dict[str, dict[int, float]]:
    """Returns the curves in a folder of event files: tag -> step -> value.

    Where a run was resumed, the later of two values of a step.

    Args:
      folder: a run's `events`; other folders in it are not read.
    """
    found: dict[str, dict[int, float]] = {}
    for path in sorted(tf.io.gfile.glob(os.path.join(folder, "events.out.*"))):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    number = float(tf.make_ndarray(value.tensor))
                    found.setdefault(value.tag, {})[event.step] = number
    return found


def _chart(title: str, tags: tuple[str, ...]) -> layout_pb2.Chart:
    # Regular expressions, which TensorBoard matches from the start on. Where
    # two curves are compared, those of validation would be too many.
    before = f"({VALIDATION})?" if len(tags) == 1 else ""
    shown = [f"^{before}{tag}$" for tag in tags]
    return layout_pb2.Chart(
        title=title, multiline=layout_pb2.MultilineChartContent(tag=shown)
    )


_GIB = 2**30


def memory() -> dict[str, float]:
    """Tag -> GiB that this process holds, where the system tells it."""
    found = {}
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    kib = int(line.split()[1])
                    found["system/host_memory_gib"] = kib * 1024 / _GIB
    except FileNotFoundError:
        pass
    held, peak = [], []
    for kind in ("GPU", "TPU"):
        for device in tf.config.list_logical_devices(kind):
            try:
                told = tf.config.experimental.get_memory_info(device.name)
            except (ValueError, tf.errors.OpError):
                continue  # Of another host, or one that does not count.
            held.append(told["current"])
            peak.append(told["peak"])
    if held:
        # The fullest one: there the run would end.
        found["system/device_memory_gib"] = max(held) / _GIB
        found["system/device_memory_peak_gib"] = max(peak) / _GIB
    return found
