"""Numbers that the machine does not hold: refused before the first step."""

import pytest

from tf_contrastive import __main__, flags, losses, optimizers, schedules
from tf_contrastive.base import errors
from tf_contrastive.config import allocations, fields
from tf_contrastive.config.pretrain import Pretrain, resolve
from tf_contrastive.config.runtime import Machine
from tf_contrastive.views.mixup_cutmix import Mixing


@pytest.mark.parametrize(
    "kind,values",
    [
        # Infinity or 0 in TensorFlow, or none.
        (float, [3.5e38, 1.1e-38, float("nan"), float("inf")]),
        (int, [2**32, 10**21]),
    ],
)
def test_no_command_takes_a_number_that_tensorflow_does_not_hold(kind, values):
    options = [
        option
        for command in __main__.COMMANDS.values()
        for option in fields.options(command())
        if fields.value_type(option.field) is kind
    ]
    assert len(options) > 60
    for option in options:
        for value in values:
            assert fields.problem(option.field, value), option.name


@pytest.mark.parametrize(
    "command,name,value",
    [
        ("pretrain", "profile_steps", "1,2147483648"),
        ("pretrain", "standardize", "0.5,0.5,0.5/1e-40,0.5,0.5"),
        ("pretrain", "standardize", "0.5,0.5,1e39/0.5,0.5,0.5"),
        ("evaluate", "knn_k", "2147483648"),
        ("evaluate", "linear_learning_rates", "0.1,1e-300"),
        ("evaluate", "finetune_fractions", "1e-50,1"),
        ("evaluate", "transfer_weight_decays", "0,1e-60"),
    ],
)
def test_lists_hold_only_such_numbers(command, name, value):
    with pytest.raises(errors.UserError, match=f"^{name}="):
        words = [f"--{name}={value}", "--workdir=/x"]
        flags.parse(__main__.COMMANDS[command], words)


@pytest.mark.parametrize("value", [1e300, 1e-40, float("nan")])
def test_python_takes_no_such_number_either(value):
    def schedule(**options):
        return schedules.build(
            **{
                "base_learning_rate": 0.1,
                "batch_size": 256,
                "steps_per_epoch": 1,
                "epochs": 4,
                "warmup_epochs": 0,
                **options,
            }
        )

    for make in (
        lambda: losses.build("supcon", temperature=value),
        lambda: losses.NTXent(temperature=value),
        lambda: losses.build("align_uniform", weight=value),
        lambda: optimizers.build("sgd", learning_rate=value),
        lambda: optimizers.LARS(0.1, weight_decay=value),
        lambda: optimizers.build("adam", learning_rate=0.1, epsilon=value),
        lambda: schedule(base_learning_rate=value),
        lambda: schedule(floor=value),
        lambda: schedules.Cosine(value, steps_per_epoch=1, epochs=2),
        lambda: schedule(name="exponential", decay_epochs=value),
        lambda: schedule(name="piecewise", boundaries=(1.0, value)),
        lambda: Mixing(10, mixup_alpha=value),
    ):
        with pytest.raises(ValueError):
            make()


def test_a_learning_rate_that_overflows_with_the_batch_is_refused():
    def peak(batch_size):
        rate = schedules.build(
            "constant",
            base_learning_rate=1e38,
            batch_size=batch_size,
            steps_per_epoch=1,
            epochs=1,
        )
        return float(rate(0))

    assert peak(512) == pytest.approx(2e38)
    with pytest.raises(errors.UserError, match="batch_size=1024"):
        peak(1024)


def _needs(monkeypatch, gib, **options):
    """Checks a run of a few MB with these options on such a machine."""
    monkeypatch.setattr(allocations, "of_machine", lambda: gib << 30)
    small = {
        "encoder": "resnet10",
        "width": 0.125,
        "stem": "cifar",
        "image_size": 8,
        "batch_size": 64,
        "projection_output": 128,
        "loss": "moco",
        "queue_size": 64,
    }
    run = fields.replace(Pretrain(), **small | options)
    allocations.check_model(run, Machine())
    allocations.check_batch(run, Machine())
    allocations.check_cache(run.data.cache, image_bytes=3 << 29)


# Sizes that need about 0.9 and 1.1 GiB, by hand: a key has 128 numbers of 4
# bytes, a feature of this encoder 64; an image two views of 8 x 8 x 3 numbers
# and, encoded, 8 channels; a weight is kept three times.
@pytest.mark.parametrize(
    "option,inside,outside",
    [
        ("queue_size", 1_887_000, 2_307_000),
        ("online_knn_size", 3_775_000, 4_614_000),
        ("batch_size", 269_000, 330_000),
        ("image_size", 515, 574),
        ("views", 19_600, 24_000),
        ("projection_hidden", 419_000, 513_000),
        ("projection_output", 943_000, 1_153_000),
        ("width", 4.6, 5.2),
    ],
)
def test_what_does_not_fit_into_memory_is_refused(
    option, inside, outside, monkeypatch
):
    _needs(monkeypatch, 1, **{option: inside})
    with pytest.raises(errors.UserError, match=f"^{option}={outside}") as error:
        _needs(monkeypatch, 1, **{option: outside})
    _needs(monkeypatch, 2, **{option: outside})
    # What it says to set fits.
    fitting = float(str(error.value).rpartition("=")[2])
    assert inside * 0.99 < fitting < outside
    _needs(monkeypatch, 1, **{option: type(inside)(fitting)})


def test_the_head_grows_with_the_width(monkeypatch):
    with pytest.raises(errors.UserError, match=r"^width=1000 ") as error:
        _needs(monkeypatch, 1, width=1000.0)
    fitting = float(str(error.value).rpartition("=")[2])
    _needs(monkeypatch, 1, width=0.95 * fitting)


def test_images_that_do_not_fit_are_not_kept(monkeypatch):
    _needs(monkeypatch, 2, cache="memory")
    _needs(monkeypatch, 1, cache="auto")
    with pytest.raises(errors.UserError, match=r"^cache=memory"):
        _needs(monkeypatch, 1, cache="memory")


def test_hosts_share_a_batch_and_replicas_have_copies(monkeypatch):
    monkeypatch.setattr(allocations, "of_machine", lambda: 1 << 30)
    run = fields.replace(
        Pretrain(),
        image_size=224,
        stem="imagenet",
        batch_size=2048,
        wire_dtype="uint8",
    )
    run = resolve(run, Machine(), dataset="folder:x", image_shape=None)
    allocations.check_batch(run, Machine(hosts=16))
    for hosts, change in (1, {}), (8, {}), (16, {"batch_size": 4096}):
        with pytest.raises(errors.UserError, match=r"^batch_size="):
            changed = fields.replace(run, **change)
            allocations.check_batch(changed, Machine(hosts=hosts))
    # On accelerators, the views alone: 0.6 GB of bytes, 2.5 GB of floats.
    allocations.check_batch(run, Machine(on_cpu=False))
    for change in {"wire_dtype": "float32"}, {"batch_size": 4096}:
        with pytest.raises(errors.UserError, match=r"^batch_size="):
            changed = fields.replace(run, **change)
            allocations.check_batch(changed, Machine(on_cpu=False))
    run = fields.replace(run, online_knn_size=150_000)
    allocations.check_model(run, Machine())
    with pytest.raises(errors.UserError, match=r"^online_knn_size"):
        allocations.check_model(run, Machine(replicas=4))


def test_a_batch_to_embed_must_fit(monkeypatch):
    monkeypatch.setattr(allocations, "of_machine", lambda: 1 << 30)
    allocations.check_images("embedding_batch_size", 1_700, 224)
    with pytest.raises(errors.UserError, match=r"^embedding_batch_size=1900"):
        allocations.check_images("embedding_batch_size", 1_900, 224)


def test_this_machine_has_memory():
    assert allocations.of_machine() > 1 << 30
