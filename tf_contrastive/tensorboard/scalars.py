"""Tags of a run's curves, and how to read them."""

import psutil
import tensorflow as tf

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
FEATURE_STD = "similarity/feature_std"
FEATURE_RANK = "similarity/feature_effective_rank"


def read(folder: str) -> dict[str, dict[int, float]]:
    """Returns the curves in a folder of event files: tag -> step -> value.

    Of two values of a step, as in a resumed run, the later one is used.
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
