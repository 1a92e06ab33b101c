"""Every option of every command: its type, default, unit and help.

Layer 0. The dataclasses are grouped in the order in which data flows through
a run: data, views, encoder, projection, loss, probe, optimizer, schedule,
runtime. `flags.py` makes one absl flag of each field; library code takes the
dataclasses, or plain keyword arguments whose defaults it reads here. Nothing
here imports TensorFlow, so that `--help` and a wrong flag answer at once.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# ---- Names that users choose from --------------------------------------------

# The options of each loss, with their defaults (`losses.build` reads them).
LOSS_OPTIONS: dict[str, dict[str, Any]] = {
    "ntxent": {"temperature": 0.1, "normalize": True, "reduction": "mean"},
    "supcon": {"temperature": 0.1, "normalize": True, "reduction": "mean"},
}
SUPERVISED_LOSSES = ("supcon",)
LOSSES = tuple(LOSS_OPTIONS)
REDUCTIONS = ("mean", "sum")

AUGMENTATIONS = ("simclr", "crop", "none")
ENCODERS = (
    "resnet10",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet200",
)
STEMS = ("auto", "imagenet", "cifar")
PROJECTIONS = ("identity", "linear", "mlp")
OPTIMIZERS = ("lars", "sgd", "rmsprop")
SCHEDULES = ("cosine", "constant")
SCALINGS = ("linear", "sqrt", "none")
SAMPLERS = ("shuffle", "class_balanced")
STRATEGIES = ("auto", "default", "mirrored", "multiworker", "tpu")
PRECISIONS = ("auto", "float32", "mixed_bfloat16")
PROTOCOLS = ("knn", "prototype", "linear")

# Datasets that are named by a scheme and what follows it; any other name but
# `digits` is looked up in TensorFlow Datasets.
EMBEDDED_DATASETS = ("digits",)
DATASET_SCHEMES = ("folder", "tfrecord", "csv")

# ---- Constants that are no flag of their own ---------------------------------

# Images up to this side get the CIFAR stem (3x3/1, no pooling) by `auto`
# (USERS B10: the other stem costs accuracy here, or memory there).
CIFAR_STEM_MAX_SIDE = 64
# Side to which images of differing sizes are cropped when none is given.
DEFAULT_IMAGE_SIZE = 224
# The smallest side that each stem can take: below it the last stage would
# see less than one pixel of real signal.
SMALLEST_SIDE = {"imagenet": 32, "cifar": 8}
# SimCLR and SupCon: momentum 0.9 and epsilon 1e-5, against Keras' 0.99, 1e-3.
BATCH_NORM_MOMENTUM = 0.9
BATCH_NORM_EPSILON = 1e-5
# Batch size at which a base learning rate is quoted (linear scaling).
REFERENCE_BATCH_SIZE = 256


class UserError(ValueError):
    """Bad input, in one line: what was given, what is allowed, what to do."""


def nearest(given: str, known: Iterable[str]) -> str | None:
    """Returns the name in `known` that is most like `given`, if any is."""
    matches = difflib.get_close_matches(
        given.lower(), list(known), n=1, cutoff=0.5
    )
    return matches[0] if matches else None


def unknown(kind: str, given: object, known: Iterable[str]) -> UserError:
    """Returns the error for a name that is none of `known`."""
    known = list(known)
    match = nearest(str(given), known)
    hint = f"did you mean {match!r}? " if match else ""
    return UserError(
        f"unknown {kind} {given!r}: {hint}known: {', '.join(known)}"
    )


# ---- Fields ------------------------------------------------------------------


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    check: Callable[[Any], str | None] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    required: bool = False,
    identity: bool = True,
) -> Any:
    """A dataclass field that carries all that its flag needs.

    Args:
      default: the default; its type, or the field's annotation, is the flag's.
      help: one line, with the unit.
      choices: the closed set of values, if it is one.
      check: value -> None, or what is allowed, for open sets.
      minimum, maximum, above: bounds of a number (`above` is exclusive).
      required: whether the command needs it to be given.
      identity: whether it decides what the run computes. The others may differ
        when a run is resumed.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "check": check,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "required": required,
        "identity": identity,
    }
    return dataclasses.field(default=default, metadata=metadata)


def _dataset_name(value: str) -> str | None:
    """What a dataset may be called, or None if `value` is such a name."""
    scheme, colon, rest = value.partition(":")
    if colon and scheme in DATASET_SCHEMES:
        return None if rest else f"{scheme}:PATH with a path after the colon"
    if re.fullmatch(r"[A-Za-z]\w*(/[\w.\-]+)?(:[\d.*]+)?", value):
        return None
    return (
        "digits, folder:PATH, tfrecord:GLOB, csv:PATH, or a name of TensorFlow"
        " Datasets such as cifar10"
    )


def _optional_dataset_name(value: str) -> str | None:
    return _dataset_name(value) if value else None


def _protocol_list(value: str) -> str | None:
    names = split_list(value)
    bad = [name for name in names if name not in PROTOCOLS]
    if names and not bad:
        return None
    match = nearest(bad[0], PROTOCOLS) if bad else None
    hint = f" (did you mean {match}?)" if match else ""
    return f"a comma-separated list of {', '.join(PROTOCOLS)}{hint}"


def _splits(value: str) -> str | None:
    if re.fullmatch(r"\w+(\[[\d%]*:[\d%]*\])?", value):
        return None
    return "a split such as train, test, train[:1000] or train[10%:]"


def split_list(value: str) -> list[str]:
    """Splits a comma-separated flag value."""
    return [part.strip() for part in value.split(",") if part.strip()]


# ---- The groups of a pretraining run, in the order of its data flow ----------


@dataclasses.dataclass(frozen=True)
class Data:
    """Where images come from."""

    dataset: str = option(
        "digits",
        "digits (embedded), any TensorFlow Datasets name, folder:PATH,"
        " tfrecord:GLOB or csv:PATH (lines of path,label)",
        check=_dataset_name,
    )
    data_dir: str = option(
        "",
        "folder of prepared TensorFlow Datasets; empty: TFDS's own default",
        identity=False,
    )
    split: str = option(
        "train",
        "split to train on, as TFDS writes splits",
        check=_splits,
    )
    validation_fraction: float = option(
        0.0,
        "share of the training split, in [0, 1), cut off for validation",
        minimum=0.0,
        maximum=0.9,
    )
    sampler: str = option(
        "shuffle",
        "order of the training examples; class_balanced gives every class the"
        " same share of every batch (one read of the data per class)",
        choices=SAMPLERS,
    )
    shuffle_buffer: int = option(
        50_000,
        "examples held, encoded, to shuffle among",
        minimum=1,
    )
    max_bad_images: int = option(
        10,
        "images that cannot be read before a run on a folder stops",
        minimum=0,
        identity=False,
    )


@dataclasses.dataclass(frozen=True)
class Views:
    """How an image becomes views."""

    augmentation: str = option(
        "simclr",
        "augmentation policy of the views",
        choices=AUGMENTATIONS,
    )
    views: int = option(2, "views per image", minimum=1)
    image_size: int = option(
        0,
        "side of a view in pixels; 0: the dataset's own, or 224 if it varies",
        minimum=0,
    )
    min_crop_area: float = option(
        0.08,
        "smallest share of the image's area that a random crop keeps",
        above=0.0,
        maximum=1.0,
    )
    flip: bool = option(True, "mirror half of the views left to right")
    color_jitter_strength: float = option(
        1.0,
        "strength s of the colour jitter (0.8s, 0.8s, 0.8s, 0.2s)",
        minimum=0.0,
    )
    blur: bool = option(True, "blur half of the simclr views")


@dataclasses.dataclass(frozen=True)
class Encoder:
    """The network that is pretrained."""

    encoder: str = option("resnet50", "encoder network", choices=ENCODERS)
    width: float = option(
        1.0, "multiplier of the encoder's channels", above=0.0
    )
    stem: str = option(
        "auto",
        "first layers; auto: cifar (3x3, no pooling) for views of at most"
        f" {CIFAR_STEM_MAX_SIDE} pixels, else imagenet (7x7/2, pooling)",
        choices=STEMS,
    )


@dataclasses.dataclass(frozen=True)
class Projection:
    """The head whose output the loss sees."""

    projection: str = option("mlp", "projection head", choices=PROJECTIONS)
    projection_layers: int = option(
        2,
        "dense layers of an mlp projection",
        minimum=2,
        maximum=4,
    )
    projection_hidden: int = option(
        0,
        "units of the hidden layers; 0: as many as encoder features",
        minimum=0,
    )
    projection_output: int = option(128, "size of a projection", minimum=2)
    projection_batch_norm: bool = option(
        True,
        "batch normalization in the projection head",
    )


@dataclasses.dataclass(frozen=True)
class Loss:
    """What is minimised."""

    loss: str = option("ntxent", "contrastive loss", choices=LOSSES)
    temperature: float = option(
        0.0,
        "temperature; 0: the loss's own default",
        minimum=0.0,
    )


@dataclasses.dataclass(frozen=True)
class Probe:
    """The linear probe that is trained along, behind a stop-gradient."""

    probe: bool = option(True, "train a linear probe along, where labels exist")
    probe_learning_rate: float = option(
        0.1,
        "learning rate of the probe's SGD, per 256 images",
        above=0.0,
    )


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """How weights move."""

    optimizer: str = option("lars", "optimizer", choices=OPTIMIZERS)
    momentum: float = option(0.9, "momentum", minimum=0.0, maximum=0.9999)
    nesterov: bool = option(False, "Nesterov's form of the momentum")
    weight_decay: float = option(
        1e-6,
        "L2 weight decay, of weights of rank 2 and more",
        minimum=0.0,
    )
    trust_coefficient: float = option(
        0.001,
        "trust coefficient (eta) of LARS",
        above=0.0,
    )


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long and how fast."""

    epochs: int = option(100, "epochs to train", minimum=1)
    batch_size: int = option(
        256,
        "images per step over all replicas (the global batch)",
        minimum=2,
    )
    learning_rate: float = option(
        0.3,
        "base learning rate, before scaling",
        above=0.0,
    )
    learning_rate_scaling: str = option(
        "linear",
        "linear: base * batch_size / 256; sqrt: base * sqrt(batch_size)",
        choices=SCALINGS,
    )
    schedule: str = option(
        "cosine",
        "learning rate after the warm-up",
        choices=SCHEDULES,
    )
    warmup_epochs: float = option(
        -1.0,
        "epochs of linear warm-up; -1: 10, and at most a tenth of --epochs",
        minimum=-1.0,
    )
    learning_rate_floor: float = option(
        0.0,
        "share of the peak learning rate at which the schedule starts and ends",
        minimum=0.0,
        maximum=1.0,
    )


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Where and how it runs."""

    workdir: str = option(
        "",
        "folder of the run; the same folder and flags resume it",
        required=True,
        identity=False,
    )
    seed: int = option(0, "seed of weights, order and views", minimum=0)
    strategy: str = option(
        "auto",
        "tf.distribute strategy; auto: by the devices found",
        choices=STRATEGIES,
        identity=False,
    )
    virtual_devices: int = option(
        0,
        "split the CPU into so many devices, to try mirrored without GPUs",
        minimum=0,
        identity=False,
    )
    tpu: str = option("local", "local, or the name of a TPU", identity=False)
    precision: str = option(
        "auto",
        "precision policy; auto: mixed_bfloat16 on TPUs, else float32",
        choices=PRECISIONS,
    )
    steps_per_execution: int = option(
        1,
        "steps between two looks of the host (larger is faster on TPUs)",
        minimum=1,
        identity=False,
    )
    checkpoint_every_steps: int = option(
        0,
        "steps between checkpoints; 0: at the end of every epoch",
        minimum=0,
        identity=False,
    )
    keep_checkpoints: int = option(
        3,
        "newest checkpoints to keep",
        minimum=1,
        identity=False,
    )
    log_every_steps: int = option(
        50,
        "steps between points in TensorBoard",
        minimum=1,
        identity=False,
    )


# ---- The commands ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pretrain:
    """All options of `pretrain`."""

    data: Data = dataclasses.field(default_factory=Data)
    views: Views = dataclasses.field(default_factory=Views)
    encoder: Encoder = dataclasses.field(default_factory=Encoder)
    projection: Projection = dataclasses.field(default_factory=Projection)
    loss: Loss = dataclasses.field(default_factory=Loss)
    probe: Probe = dataclasses.field(default_factory=Probe)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    runtime: Runtime = dataclasses.field(default_factory=Runtime)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        schedule, runtime = self.schedule, self.runtime
        if schedule.warmup_epochs > schedule.epochs:
            raise UserError(
                f"--warmup_epochs={schedule.warmup_epochs:g} is longer than"
                f" --epochs={schedule.epochs}: give at most"
                f" --warmup_epochs={schedule.epochs}"
            )
        replicas = runtime.virtual_devices
        if replicas:
            if runtime.strategy not in ("auto", "mirrored"):
                raise UserError(
                    f"--virtual_devices={replicas} needs --strategy=mirrored,"
                    f" not {runtime.strategy}"
                )
            check_divisible(schedule.batch_size, replicas)
        if self.loss.loss in ("ntxent",) and self.views.views < 2:
            raise UserError(
                f"--views={self.views.views} leaves {self.loss.loss} without"
                " positives: give --views=2 or more"
            )
        if self.views.image_size:
            check_image_size(
                self.views.image_size,
                resolve_stem(self.encoder.stem, self.views.image_size),
            )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What `evaluate` measures, and on what."""

    workdir: str = option("", "folder of the run to evaluate")
    saved_model: str = option(
        "", "export to evaluate instead of a run (needs --dataset)"
    )
    protocols: str = option(
        ",".join(PROTOCOLS),
        f"comma-separated protocols out of {', '.join(PROTOCOLS)}",
        check=_protocol_list,
    )
    untrained: bool = option(
        True, "evaluate a random encoder of the same kind, too"
    )
    dataset: str = option(
        "", "dataset; empty: that of the run", check=_optional_dataset_name
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    train_split: str = option(
        "train", "split that the classifiers learn from", check=_splits
    )
    test_split: str = option("test", "split that is scored", check=_splits)
    knn_k: int = option(
        5, "neighbours that vote (top-1 of k=1 is 1NN)", minimum=1
    )
    probe_epochs: int = option(90, "epochs of the linear probe", minimum=1)
    probe_batch_size: int = option(256, "batch of the linear probe", minimum=1)
    probe_learning_rate: float = option(
        0.1, "learning rate of the linear probe, per 256 images", above=0.0
    )
    embedding_batch_size: int = option(
        256, "images embedded at a time", minimum=1
    )
    seed: int = option(0, "seed of the linear probe", minimum=0)


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """All options of `evaluate`."""

    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        e = self.evaluation
        if bool(e.workdir) == bool(e.saved_model):
            raise UserError(
                "give one of --workdir=RUN and --saved_model=EXPORT/VERSION"
            )
        if e.saved_model and not e.dataset:
            raise UserError(
                "--saved_model needs --dataset=NAME: an export does not say on"
                " what it is to be scored"
            )


@dataclasses.dataclass(frozen=True)
class Exporting:
    """What `export` writes."""

    workdir: str = option("", "folder of the run to export", required=True)
    output_dir: str = option(
        "", "folder to write <version>/ into; empty: <workdir>/export"
    )


@dataclasses.dataclass(frozen=True)
class Export:
    """All options of `export`."""

    exporting: Exporting = dataclasses.field(default_factory=Exporting)

    def validate(self) -> None:
        """Raises `UserError` for values that cannot work."""
        validate_fields(self)


@dataclasses.dataclass(frozen=True)
class Embedding:
    """What `embed` embeds."""

    workdir: str = option("", "folder of the run whose encoder embeds")
    saved_model: str = option("", "export that embeds instead of a run")
    input: str = option(
        "",
        "dataset to embed, named as for --dataset; empty: that of the run",
        check=_optional_dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("test", "split to embed", check=_splits)
    output: str = option("", "npz file to write", required=True)
    embedding_batch_size: int = option(
        256, "images embedded at a time", minimum=1
    )
    max_bad_images: int = option(
        10, "images that cannot be read before it stops", minimum=0
    )


@dataclasses.dataclass(frozen=True)
class Embed:
    """All options of `embed`."""

    embedding: Embedding = dataclasses.field(default_factory=Embedding)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        e = self.embedding
        if bool(e.workdir) == bool(e.saved_model):
            raise UserError(
                "give one of --workdir=RUN and --saved_model=EXPORT/VERSION"
            )
        if e.saved_model and not e.input:
            raise UserError("--saved_model needs --input=DATASET")


@dataclasses.dataclass(frozen=True)
class Listing:
    """What `datasets` shows."""

    show: str = option(
        "",
        "dataset of which to write a contact sheet",
        check=_optional_dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("train", "split to show", check=_splits)
    output: str = option("contact_sheet.png", "PNG file to write")


@dataclasses.dataclass(frozen=True)
class Datasets:
    """All options of `datasets`."""

    listing: Listing = dataclasses.field(default_factory=Listing)

    def validate(self) -> None:
        """Raises `UserError` for values that cannot work."""
        validate_fields(self)


# ---- Reading and checking ----------------------------------------------------


def fields(config: Any) -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yields (group name, field, value) of every option of a command."""
    for group in dataclasses.fields(config):
        values = getattr(config, group.name)
        for field in dataclasses.fields(values):
            yield group.name, field, getattr(values, field.name)


def replace(config: Any, **values: Any) -> Any:
    """Returns `config` with the named fields replaced, whatever their group."""
    groups: dict[str, dict[str, Any]] = {}
    for group, field, _ in fields(config):
        if field.name in values:
            groups.setdefault(group, {})[field.name] = values.pop(field.name)
    if values:
        known = [field.name for _, field, _ in fields(config)]
        raise unknown("option", next(iter(values)), known)
    return dataclasses.replace(
        config,
        **{
            name: dataclasses.replace(getattr(config, name), **changed)
            for name, changed in groups.items()
        },
    )


def problem(field: dataclasses.Field, value: Any) -> str | None:
    """Returns what is allowed for `field`, or None if `value` is."""
    m = field.metadata
    if m["choices"] and value not in m["choices"]:
        match = nearest(str(value), m["choices"])
        hint = f" (did you mean {match}?)" if match else ""
        return f"one of {', '.join(m['choices'])}{hint}"
    if m["check"] and (allowed := m["check"](value)):
        return allowed
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if m["minimum"] is not None and not value >= m["minimum"]:
        return f"at least {m['minimum']:g}"
    if m["above"] is not None and not value > m["above"]:
        return f"above {m['above']:g}"
    if m["maximum"] is not None and not value <= m["maximum"]:
        return f"at most {m['maximum']:g}"
    if m["required"] and value in ("", None):
        return "given; it has no default"
    return None


def validate_fields(config: Any) -> None:
    """Raises `UserError` for the first option whose value is not allowed."""
    for _, field, value in fields(config):
        if allowed := problem(field, value):
            given = (
                f"--{field.name}={value}" if value != "" else f"--{field.name}"
            )
            raise UserError(f"{given}: must be {allowed}")


def resolve_stem(stem: str, image_size: int) -> str:
    """Returns the stem that `auto` stands for at this side of an image."""
    if stem != "auto":
        return stem
    return "cifar" if image_size <= CIFAR_STEM_MAX_SIDE else "imagenet"


def check_image_size(image_size: int, stem: str) -> None:
    """Raises `UserError` if views are too small for the encoder's stem."""
    smallest = SMALLEST_SIDE[stem]
    if image_size < smallest:
        other = " or --stem=cifar" if stem == "imagenet" else ""
        raise UserError(
            f"views of {image_size} pixels are too small for the {stem} stem,"
            f" which takes {smallest} and more: give --image_size={smallest}"
            f" or more{other}"
        )


def check_divisible(batch_size: int, replicas: int) -> None:
    """Raises `UserError` if replicas cannot share the global batch evenly."""
    if batch_size % replicas:
        lower = max(batch_size // replicas, 1) * replicas
        raise UserError(
            f"--batch_size={batch_size} is not divisible by the {replicas}"
            f" replicas that share it: give --batch_size={lower} or"
            f" {lower + replicas}"
        )


def check_labels(loss: str, dataset: str, has_labels: bool) -> None:
    """Raises `UserError` if a supervised loss is to train without labels."""
    if loss in SUPERVISED_LOSSES and not has_labels:
        others = ", ".join(n for n in LOSSES if n not in SUPERVISED_LOSSES)
        raise UserError(
            f"--loss={loss} needs labels, and {dataset} has none: give a"
            f" labelled dataset, or a loss without labels ({others})"
        )
