"""Limits from both sides, as numbers typed here.

The numbers are those of the documentation. No test reads a limit from the
package, so that a limit that moves fails one of them. Those of the papers are
in `published_constants_test.py`.
"""

import dataclasses
import struct
import sys
import types

import doctor_facts
import numpy as np
import pytest
import saved_run
import tensorflow as tf

from tf_contrastive import (
    __main__,
    callbacks,
    checkpoints,
    classifiers,
    datasets,
    exporting,
    flags,
    losses,
    views,
)
from tf_contrastive.base import errors
from tf_contrastive.checkpoints import loading, preemption
from tf_contrastive.commands import quickstart_serve
from tf_contrastive.config import encoder, fields, runtime
from tf_contrastive.config.linear import Probe
from tf_contrastive.datasets import (
    data_service,
    pipeline,
    sampler,
)
from tf_contrastive.doctor import advice
from tf_contrastive.encoders import checked_input
from tf_contrastive.evaluation import (
    classification_metrics,
    finetune,
    linear_stage,
    logistic,
    protocols,
    statistics,
    transfer,
)
from tf_contrastive.evaluation.context import Data
from tf_contrastive.exporting import image_bytes, tflite_onnx
from tf_contrastive.losses import contrastive_metrics, similarity
from tf_contrastive.tensorboard import histograms, projector
from tf_contrastive.views import ablation, prng

# ---- Options ----------------------------------------------------------------


def _numeric():
    """Yields (command, option) of all options that are numbers."""
    for name, command in __main__.COMMANDS.items():
        for option in flags.declared(command).values():
            kind = fields.value_type(option.field)
            if kind in (int, float) and not option.field.metadata["read"]:
                yield pytest.param(option.field, id=f"{name} {option.name}")


@pytest.mark.parametrize("field", _numeric())
def test_a_number_is_allowed_up_to_its_declared_bounds(field):
    about, kind = field.metadata, fields.value_type(field)
    low, above, high = about["minimum"], about["above"], about["maximum"]
    step = 1 if kind is int else 1e-9
    if low is None and above is None:
        low = 0
    if low is not None:
        assert not fields.problem(field, kind(low))
        assert fields.problem(field, kind(low) - step * max(1, abs(low)))
    else:
        assert fields.problem(field, kind(above))
        assert not fields.problem(field, kind(above) + max(step, 1e-9))
    if high is None:
        high = 2**31 - 1 if kind is int else (2 - 2.0**-23) * 2.0**127
        beyond = high + 1 if kind is int else high * 1.000001
    else:
        beyond = kind(high) + step * max(1, abs(high))
    assert not fields.problem(field, kind(high))
    assert fields.problem(field, beyond)


def test_numbers_are_those_that_float32_holds():
    declared = {o.name: o.field for o in fields.options(Probe())}
    rate = declared["probe_learning_rate"]
    assert not fields.problem(rate, 1.2e-38)
    assert fields.problem(rate, 1.17e-38)
    assert fields.problem(rate, float("nan"))


# ---- The doctor -------------------------------------------------------------


def _sizes(least, most):
    return np.array([least] + 9 * [most])


def _expected(**changes):
    expected = doctor_facts.facts().expected
    return dataclasses.replace(expected, **changes)


# (check, options, facts just inside, facts just outside).
_ADVICE = [
    ("stem", {"stem": "imagenet"}, {"image_size": 65}, {"image_size": 64}),
    ("stem", {"stem": "cifar"}, {"image_size": 127}, {"image_size": 128}),
    (
        "augmentation_strength",
        {"blur": True},
        {"image_size": 65},
        {"image_size": 64},
    ),
    (
        "memory",
        {},
        {"process_memory": 899, "available_memory": 1000},
        {"process_memory": 901, "available_memory": 1000},
    ),
    (
        "checkpoint_interval",
        {"epochs": 1},
        {"input_speed": None, "step_speed": 49_920 / 3590},
        {"input_speed": None, "step_speed": 49_920 / 3610},
    ),
    (
        "encoder",
        {"epochs": 1},
        {"process_memory": 1, "step_speed": 49_920 / 3600 / 23.9},
        {"process_memory": 1, "step_speed": 49_920 / 3600 / 24.1},
    ),
    ("load", {}, {"load_per_core": 0.74}, {"load_per_core": 0.76}),
    (
        "imbalance",
        {"loss": "supcon"},
        {"class_sizes": _sizes(10, 100)},
        {"class_sizes": _sizes(10, 101)},
    ),
    (
        "positives",
        {},
        {"expected": _expected(without_positives=0.049)},
        {"expected": _expected(without_positives=0.051)},
    ),
    (
        "negatives",
        {},
        {"expected": _expected(negatives=62)},
        {"expected": _expected(negatives=61.9)},
    ),
    (
        "online_knn_size",
        {},
        {"online_knn_size": 12_500},
        {"online_knn_size": 12_501},
    ),
    ("temperature", {}, {"temperature": 0.03}, {"temperature": 0.029}),
    (
        "key_momentum",
        {"loss": "moco", "epochs": 2, "key_momentum": 0.99},
        {"steps_per_epoch": 251},
        {"steps_per_epoch": 249},
    ),
    # Of equation 5, and of table 1 with projections of 64 and 16.
    (
        "loss_weight",
        {"loss": "decoupled_ntxent", "alignment": "similarity"},
        {"loss_weight": 0.75},
        {"loss_weight": 0.74},
    ),
    (
        "loss_weight",
        {"loss": "decoupled_ntxent", "projection_output": 64},
        {"loss_weight": 0.0235},
        {"loss_weight": 0.0234},
    ),
    (
        "loss_weight",
        {"loss": "align_uniform", "projection_output": 16},
        {"loss_weight": 0.0469},
        {"loss_weight": 0.0468},
    ),
    ("temperature", {}, {"temperature": 1.0}, {"temperature": 1.01}),
    *(
        (
            "patches",
            {"encoder": "vit_ti8", "stem": "auto"},
            {"image_size": inside},
            {"image_size": outside},
        )
        for inside, outside in ((32, 24), (256, 264))
    ),
    (
        "learning_rate",
        {"encoder": "vit_ti4", "stem": "auto", "optimizer": "adamw"},
        {"peak_learning_rate": 0.0024},
        {"peak_learning_rate": 0.0025},
    ),
    *(
        (
            "learning_rate",
            {"optimizer": name},
            {"peak_learning_rate": rate},
            {"peak_learning_rate": 1.01 * rate},
        )
        for name, rate in (
            ("sgd", 2.0),
            ("rmsprop", 1.0),
            ("adam", 0.02),
            ("adamw", 0.02),
        )
    ),
    (
        "learning_rate",
        {"optimizer": "lars"},
        {"peak_learning_rate": 0.05},
        {"peak_learning_rate": 0.049},
    ),
    (
        "weights_learning_rate",
        {"encoder": "keras:VGG16", "init_from": "imagenet", "stem": None},
        {"learning_rate": 0.03},
        {"learning_rate": 0.031},
    ),
    (
        "weights_warmup",
        {"encoder": "keras:VGG16", "init_from": "w.h5", "stem": None},
        {"warmup_epochs": 1.0},
        {"warmup_epochs": 1.01},
    ),
    (
        "warmup",
        {"warmup_epochs": 0.0},
        {"batch_size": 1023},
        {"batch_size": 1024},
    ),
    ("batch_norm", {}, {"batch_size": 8}, {"batch_size": 7}),
    (
        "dropped_images",
        {},
        {"info": doctor_facts.info(2_560 + 255)},
        {"info": doctor_facts.info(1_280 + 255)},
    ),
    (
        "few_steps",
        {"epochs": 1},
        {"steps_per_epoch": 100},
        {"steps_per_epoch": 99},
    ),
]


@pytest.mark.parametrize("check,options,inside,outside", _ADVICE)
def test_the_doctor_warns_beyond_its_limits(check, options, inside, outside):
    for facts, warns in ((inside, False), (outside, True)):
        known = {f.name for f in dataclasses.fields(advice.Facts)}
        of_run = {k: v for k, v in facts.items() if k not in known}
        of_facts = {k: v for k, v in facts.items() if k in known}
        found = doctor_facts.facts(options | of_run, **of_facts)
        assert (check in advice.warnings(found)) == warns, facts


# ---- Training ---------------------------------------------------------------


def _epochs(chance, *logs, **options):
    watcher = callbacks.CollapseWarning(chance, **options)
    for epoch, (spread, nearer, loss) in enumerate(logs):
        alignment = (1 - nearer) * 2 * spread**2
        watcher.on_epoch_end(
            epoch,
            {"embedding_std": spread, "alignment": alignment, "loss": loss},
        )


@pytest.mark.parametrize(
    "good,bad",
    [
        ((1.0, 0.5, 4.011), (1.0, 0.5, 4.009)),
        ((1.0, 0.5, 3.989), (1.0, 0.5, 3.991)),
        # One point, a narrow cone, and positives that are like any images.
        ((0.051, 0.5, 3.0), (0.049, 0.5, 3.0)),
        ((0.301, 0.09, 3.0), (0.299, 0.09, 3.0)),
        ((0.299, 0.101, 3.0), (0.299, 0.099, 3.0)),
        ((0.9, 0.003, 3.0), (0.9, 0.001, 3.0)),
        ((0.9, 0.003, 3.0), (0.9, -0.1, 3.0)),
    ],
)
def test_a_run_that_learns_nothing_is_reported(good, bad, capsys):
    _epochs(4.0, *[good] * 4)
    _epochs(4.0, bad, bad, good, bad, bad)
    assert not capsys.readouterr().err
    _epochs(4.0, good, bad, bad, bad, bad)
    assert capsys.readouterr().err.count("for 3 epochs") == 1


def test_keys_may_be_far_from_queries(capsys):
    _epochs(4.0, *[(0.9, 0.0, 3.0)] * 4, one_network=False)
    assert not capsys.readouterr().err
    _epochs(4.0, *[(0.2, 0.0, 3.0)] * 4, one_network=False)
    assert capsys.readouterr().err.startswith("collapse: ")


def test_a_collapse_counts_after_the_warm_up(capsys):
    _epochs(4.0, *[(0.01, 0.0, 3.0)] * 4, warmup_epochs=2.0)
    assert not capsys.readouterr().err
    _epochs(4.0, *[(0.01, 0.0, 3.0)] * 4, warmup_epochs=1.0)
    _epochs(4.0, *[(0.9, 0.5, 4.0)] * 3, warmup_epochs=9.0)
    assert capsys.readouterr().err.count("for 3 epochs") == 2


def test_stems_have_their_sides():
    assert encoder.resolve_stem("auto", 64) == "cifar"
    assert encoder.resolve_stem("auto", 65) == "imagenet"
    for stem, side in (("imagenet", 32), ("cifar", 8)):
        encoder.check_image_size(side, stem)
        with pytest.raises(errors.UserError, match=f"image_size={side} or"):
            encoder.check_image_size(side - 1, stem)


def test_gpus_have_a_precision_from_their_generation_on():
    def precision(capability):
        machine = runtime.Machine(gpu_capability=capability)
        return runtime.resolve_precision("auto", machine)

    assert precision((6, 1)) == "float32"
    assert precision((7, 0)) == precision((7, 5)) == "mixed_float16"
    assert precision((8, 0)) == "mixed_bfloat16"


@pytest.mark.parametrize("capability,rounds", [((7, 5), False), ((8, 0), True)])
def test_gpus_round_products_from_ampere_on(capability, rounds, monkeypatch):
    monkeypatch.setattr(
        losses.matrix_products.distribution,
        "gpu_capability",
        lambda _: capability,
    )
    assert losses.matrix_products.rounded_by_device(None) == rounds


@pytest.mark.parametrize("images,cached", [(4096, True), (4097, False)])
def test_a_gibibyte_of_images_is_kept(images, cached, monkeypatch):
    """512 x 512 pixels of one channel are a quarter of a MiB."""
    info = datasets.Info("x", "train", images, 10, (256, 1024, 1))
    source = type("S", (), {"info": info, "cached": lambda self: "cached"})()
    assert (pipeline.in_memory(source, "auto") == "cached") == cached
    assert pipeline.in_memory(source, "memory") == "cached"


@pytest.mark.parametrize(
    "files,hosts,shared",
    [
        (16, 2, "file"),
        (15, 2, "example"),
        (100, 1, "example"),
        (63, 8, "example"),
        (71, 9, "example"),
        (72, 9, "file"),
        (8, 9, "example"),
    ],
)
def test_hosts_share_files_if_each_has_eight(files, hosts, shared):
    names = type("Files", (), {"names": ["x"] * files})()
    source = type(
        "Source", (), {"arrays": None, "record_files": lambda self: names}
    )()
    context = tf.distribute.InputContext(hosts)
    order = sampler.Order(batch_size=72, sharding="auto")
    stream = sampler.Stream(source, order, context)
    assert stream.sharding == shared


@pytest.mark.parametrize(
    "label,fits", [("9" * 18, True), ("1" + "0" * 18, False)]
)
def test_a_label_has_18_digits(label, fits, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(f"path,label\na.png,{label}\n")
    message = "1 of 1 files do not exist" if fits else "write integers"
    with pytest.raises(errors.UserError, match=message):
        datasets.source(f"csv:{path}", "train")


@pytest.mark.parametrize("images", [9_999, 10_001])
def test_colours_are_those_of_ten_thousand_images(images, capsys):
    source = datasets.from_arrays(np.zeros([images, 1, 1, 3], np.uint8))
    datasets.channel_statistics(source)
    read = f"{min(images, 10_000):,} of {images:,} images"
    assert read in capsys.readouterr().err


def test_a_cloud_s_notice_leaves_time_to_save():
    """30 s on Google Cloud; two questions may wait for their answers."""
    assert preemption._POLL_SECONDS + 2 * preemption._TIMEOUT_SECONDS <= 15


def test_histograms_are_of_128_views_or_32_of_224_pixels():
    assert histograms.images_per_batch(32, 2) == 64
    assert histograms.images_per_batch(112, 2) == 64
    assert histograms.images_per_batch(113, 2) == 62
    assert histograms.images_per_batch(224, 1) == 32


def test_a_message_has_1500_characters():
    assert str(errors.UserError("x" * 1500)) == "x" * 1500
    cut = str(errors.UserError("x" * 1501))
    assert cut == "x" * 750 + " ... " + "x" * 750


# ---- Exports ----------------------------------------------------------------


@pytest.mark.parametrize("edge,sign", [(0.0, -1), (1.0, 1)])
def test_a_pixel_may_be_a_thousandth_out_of_range(edge, sign):
    def pixel(distance):
        return tf.fill([1, 1, 1, 3], edge + sign * distance)

    served = checked_input.check_range(pixel(0.0009))
    np.testing.assert_array_equal(served, pixel(0.0))
    with pytest.raises(tf.errors.InvalidArgumentError):
        checked_input.check_range(pixel(0.0011))


@pytest.mark.parametrize(
    "kind,inside,outside",
    [
        ("tflite", (0.99e-5, 0.0), (1.01e-5, 1.0)),
        ("tflite dynamic int8", (1.0, 0.9991), (0.0, 0.9989)),
        ("tflite int8", (1.0, 0.9901), (0.0, 0.9899)),
        ("onnx", (0.99e-5, 0.0), (1.01e-5, 1.0)),
    ],
)
def test_a_converted_encoder_may_differ_a_little(
    kind, inside, outside, tmp_path, monkeypatch
):
    """Pairs are (largest difference, least cosine)."""
    model = tf.Module()
    model.__call__ = tf.function(
        lambda x: x[:, 0, 0], [tf.TensorSpec([None, 1, 1, 3])]
    )
    tf.saved_model.save(model, str(tmp_path))
    module = type("M", (), {"encode": None})()
    module.encoder_spec = tf.TensorSpec([None, 1, 1, 3])
    module.encode = lambda x: x[:, 0, 0]
    name = kind.partition(" ")[0]
    converted = [(kind, b"content", lambda x: x[:, 0, 0])]
    for function in ("_tflite", "_onnx"):
        monkeypatch.setattr(tflite_onnx, function, lambda *_: converted)
    images = np.ones([2, 1, 1, 3], np.float32)

    def write(found):
        monkeypatch.setattr(tflite_onnx, "compare", lambda *_: found)
        return [*tflite_onnx.write(str(tmp_path), module, [name], images)]

    assert len(write(inside)) == 1
    for found in (outside, (np.nan, np.nan)):
        with pytest.raises(errors.UserError, match="differs"):
            write(found)


# ---- Evaluation -------------------------------------------------------------


@pytest.mark.parametrize("rows", [2, 6])
def test_directions_of_a_trillionth_of_the_variance_are_rounding(rows):
    def axes(variance):
        centred = np.zeros([rows, 3])
        centred[:2, 0] = 1, -1
        centred[:2, 1] = np.sqrt(variance), np.sqrt(variance)
        return logistic._principal_axes(centred, np.zeros(centred.shape[1]))[1]

    assert len(axes(2e-12)) == 2
    assert len(axes(0.5e-12)) == 1


@pytest.mark.parametrize(
    "steps,momentum", [(1, 0.9), (99, 0.9), (101, 1 - 10 / 101), (1000, 0.99)]
)
def test_transfer_has_simclr_s_batch_norm_momentum(
    steps, momentum, monkeypatch
):
    """SimCLR, B.8: max(1 - 10 / s, 0.9) for s steps per epoch."""

    class Captured(Exception):
        pass

    def select(context, rows, recipes, **options):
        raise Captured(recipes[0].batch_norm_momentum)

    monkeypatch.setattr(finetune, "select_recipe", select)
    info = datasets.Info("x", "train", 4 * steps, 10, (8, 8, 3))
    train = type("Source", (), {"info": info})()
    data = type("Data", (), {"train": train})()
    other = type("Context", (), {"data": data})()
    target = type("Target", (), {"multi_label": False, "metric": "top1"})()
    grid = {"steps": 1, "learning_rates": (0.1,), "weight_decays": (0.0,)}
    monkeypatch.setattr(finetune, "score_by", lambda *_: None)
    with pytest.raises(Captured) as found:
        transfer._finetune(
            other, target, np.arange(2), grid, 4, 0, trained=True
        )
    assert found.value.args[0] == pytest.approx(momentum, rel=1e-12)


def test_probabilities_sum_to_one_within_a_hundredth():
    def error(total):
        rows = np.array([[total - 0.5, 0.5]])
        classification_metrics.expected_calibration_error(rows, np.array([0]))

    for total in (0.991, 1.009):
        error(total)
    for total in (0.989, 1.011):
        with pytest.raises(errors.UserError):
            error(total)


def test_a_row_below_float32_has_no_direction():
    rows = np.array([[1.2e-38, 0], [0, 0], [3e38, 3e38]], np.float32)
    found = classifiers.normalize(rows)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(found, [[1, 0], [0, 0], [half, half]], rtol=1e-6)


@pytest.mark.parametrize(
    ("protocol", "split", "least"),
    [
        ("transforms", "train", 40),
        ("transforms", "test", 40),
        ("tsne", "test", 4),
    ],
)
def test_protocols_need_images(protocol, split, least):
    for images, fits in ((least - 1, False), (least, True)):
        sizes = {"train": 99, "test": 99} | {split: images}
        train, test = (
            datasets.from_arrays(np.zeros([n, 8, 8, 3], np.uint8), split=name)
            for name, n in sizes.items()
        )
        context = types.SimpleNamespace(
            data=Data(train, test), subject=types.SimpleNamespace()
        )
        lacks = protocols.missing(protocol, context)
        assert lacks is None if fits else f"{least} images" in lacks


def test_two_encoders_differ_at_five_percent():
    assert statistics.verdict(0.1, 0.2, 0.05) == "better"
    assert statistics.verdict(-0.2, -0.1, 0.0499) == "worse"
    assert statistics.verdict(0.1, 0.2, 0.0501) == "tied"


def test_intervals_hold_95_percent():
    low, high = statistics.interval(np.arange(2_000) % 2 == 0)
    # 1.96 deviations of 0.5 / sqrt(2000); 90 % would be 1.64, 97.5 % 2.24.
    assert high - low == pytest.approx(2 * 1.96 * 0.01118, rel=0.08)


# ---- Numbers of this package where a paper states none ----------------------


def test_noise_has_a_deviation_up_to_a_fifth():
    """Of the ablation of SimCLR's figure 5, whose code is not published."""
    seeds = tf.constant([[0, n] for n in range(400)])
    noise = ablation.Noise(16)
    uniforms = prng.uniform(seeds, noise.streams)
    gray = tf.fill([400, 16, 16, 3], 0.5)
    spreads = np.std(noise(gray, uniforms), axis=(1, 2, 3))
    assert 0.18 < spreads.max() < 0.21
    assert spreads.mean() == pytest.approx(0.1, abs=0.01)


def test_exported_prototypes_have_a_temperature_of_a_tenth():
    head = exporting.PrototypeHead(np.eye(2, dtype=np.float32), np.arange(2))
    own, other = head(tf.constant([[1.0, 0.0]])).numpy()[0]
    assert own / other == pytest.approx(np.exp(10), rel=1e-4)


def test_added_operations_act_on_half_of_the_views():
    policy = views.build("simclr+solarize", image_size=8, blur=False)
    assert policy._operations[-1].probability == 0.5


# ---- Files, clocks, numbers that are neither options nor published -----------


def _exif(orientation):
    tag = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + tag


def test_a_thousand_comments_may_precede_the_orientation():
    segment = b"\xff\xe1" + struct.pack(">H", len(_exif(6)) + 2) + _exif(6)
    for comments, expected in ((999, 6), (1000, 1)):
        data = b"\xff\xd8" + b"\xff\xfe\0\2" * comments + segment + b"\xff\xda"
        assert image_bytes.orientation(tf.constant(data)) == expected


def test_the_metadata_of_a_png_have_64_kb():
    for padding, expected in (((1 << 16) - 20, 6), (1 << 16, 1)):
        text = b"\0" * 5 + b"x" * (padding - 5) + b'tiff:Orientation="6"'
        chunk = b"iTXtXML:com.adobe.xmp\0" + text
        size = struct.pack(">I", len(chunk) - 4)
        data = tf.constant(b"\x89PNG\r\n\x1a\n" + size + chunk)
        assert image_bytes.orientation(data) == expected


def test_a_maximum_is_subtracted_below_a_temperature_of_a_fiftieth():
    batch = similarity.Batch(None, None, 2, False, True)
    assert batch.bounded(0.02) and not batch.bounded(0.0199)
    assert not batch._replace(normalized=False).bounded(1.0)
    # Sums of a million exponentials stay normal numbers of float32.
    assert 1e6 * np.exp(1 / 0.02) < 3.4e38 and np.exp(-1 / 0.02) > 1.2e-38


def test_metrics_are_of_1024_anchors():
    z = np.random.default_rng(0).normal(size=[515, 2, 4]).astype(np.float32)
    usual, same, more = (
        contrastive_metrics.contrastive_task(z, **options)
        for options in ({}, {"max_anchors": 1024}, {"max_anchors": 1025})
    )
    assert usual["entropy"] == same["entropy"] != more["entropy"]


@pytest.mark.slow
def test_a_deleted_checkpoint_is_replaced_ten_times(tmp_path):
    saved_run.make(tmp_path)
    reads = []

    def read(run):
        reads.append(run.step)
        if len(reads) < 10:
            raise loading.DeletedCheckpointError("deleted")
        return run.step

    assert checkpoints.load(str(tmp_path), read) == 1
    reads = []
    with pytest.raises(loading.DeletedCheckpointError):
        checkpoints.load(str(tmp_path), _deleted(reads))
    assert len(reads) == 10


def _deleted(reads):
    def read(run):
        reads.append(run.step)
        raise loading.DeletedCheckpointError("deleted")

    return read


@pytest.mark.parametrize(("wrong", "serves"), [(36, True), (37, False)])
def test_the_quickstart_needs_nine_of_ten_digits(
    wrong, serves, tmp_path, monkeypatch, capsys
):
    (tmp_path / "1").mkdir()
    _, labels, held_out = quickstart_serve.digits()
    answers = labels.copy()
    assert held_out.sum() == 360
    others = np.flatnonzero(held_out)[:wrong]
    answers[others] = (answers[others] + 1) % 10

    def embed(images):
        return {"embedding": tf.one_hot(answers, 10)}

    embed.structured_input_signature = ((), {"images": None})
    loaded = types.SimpleNamespace(signatures={"serving_default": embed})
    monkeypatch.setattr(tf.saved_model, "load", lambda path: loaded)
    monkeypatch.setitem(sys.modules, "tf_contrastive", None)
    if serves:
        quickstart_serve.main(str(tmp_path))
        assert "serves embeddings" in capsys.readouterr().out
    else:
        with pytest.raises(SystemExit, match="only"):
            quickstart_serve.main(str(tmp_path))


class _Clock:
    """Replaces the module `time` of another module."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_data_service_is_awaited_for_60_seconds(monkeypatch):
    clock, asks = _Clock(), []
    monkeypatch.setattr(data_service, "time", clock)

    def connect(address):
        if service.lost is None:
            asks.append(clock.now)
        if clock.now > 200:
            raise OSError("dead")

    monkeypatch.setattr(data_service, "_connect", connect)
    service = data_service.DataService("grpc://localhost:1")
    with pytest.raises(tf.errors.OpError):
        for _ in service._until_lost(tf.data.Dataset.range(0)):
            pass
    # 60 s after the dispatcher's last answer.
    assert asks[-1] == pytest.approx(260, abs=1)


@pytest.mark.parametrize(("seconds", "reports"), [(59.9, False), (60.1, True)])
def test_a_linear_stage_is_saved_each_minute(
    seconds, reports, monkeypatch, tmp_path
):
    clock, lines, saves = _Clock(), [], []
    monkeypatch.setattr(linear_stage, "time", clock)
    monkeypatch.setattr(linear_stage.terminal, "info", lines.append)
    monkeypatch.setattr(
        linear_stage.Progress, "_save", lambda self: saves.append(clock.now)
    )
    progress = linear_stage.Progress(
        types.SimpleNamespace(workdir=str(tmp_path)),
        {"hyperparameters": {"epochs": 100}},
        types.SimpleNamespace(stop_reason=lambda: None),
        is_chief=False,
    )
    clock.now = seconds
    progress.epoch(1, {"loss": 0.0, "accuracy": 0.0})
    assert bool(lines) == bool(saves) == reports


def test_thumbnails_are_of_48_pixels_in_a_sprite_of_8192():
    assert projector.thumbnail_side(28_900) == 48
    assert projector.thumbnail_side(29_241) == 47
