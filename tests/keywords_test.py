"""Misspelt keywords: the nearest one is named; `help` lists what there is."""

import pytest
import tensorflow as tf

from tf_contrastive import (
    datasets,
    encoders,
    heads,
    losses,
    optimizers,
    schedules,
    views,
)
from tf_contrastive.base import errors
from tf_contrastive.config.encoder import ENCODERS
from tf_contrastive.config.views import LISTING
from tf_contrastive.model import ContrastiveModel

_layer = tf.keras.layers.Flatten()
_RUN = {"base_learning_rate": 1.0, "batch_size": 8, "steps_per_epoch": 4}


def _model(**arguments):
    encoder = tf.keras.Sequential(
        [tf.keras.Input([8]), tf.keras.layers.Dense(4)]
    )
    head = heads.build("linear", output=2)
    return ContrastiveModel(encoder, head, losses.NTXent(), **arguments)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: losses.build("ntxent", temprature=1), "temperature"),
        (lambda: losses.NTXent(temprature=1), "temperature"),
        (lambda: losses.SupCon(contrst="all_views"), "contrast"),
        (lambda: losses.MoCo(temprature=1), "temperature"),
        (lambda: views.build("simclr", image_size=8, flp=1), "flip"),
        (lambda: views.build("simclr", imagesize=8), "image_size"),
        (lambda: views.SimCLR(8, flp=True), "flip"),
        (lambda: encoders.build("resnet10", image_shap=1), "image_shape"),
        (lambda: encoders.build("resnet10", widht=1), "width"),
        (lambda: heads.build("mlp", outptu=3), "output"),
        (lambda: heads.MLP(outptu=3), "output"),
        (lambda: heads.LinearProbe(3, normalise_input=1), "normalize_input"),
        (lambda: optimizers.build("lars", learning_rat=1), "learning_rate"),
        (lambda: optimizers.LARS(0.1, weight_deca=1), "weight_decay"),
        (lambda: optimizers.AdamW(0.1, beta1=1), "beta_1"),
        (lambda: schedules.build("cosine", epoch=2, **_RUN), "epochs"),
        (
            lambda: schedules.build("cosine", epochs=2, warmup=1, **_RUN),
            "warmup_epochs",
        ),
        (lambda: schedules.Cosine(0.1, steps_per_epoch=1, epoch=3), "epochs"),
        (lambda: _model(prob=None), "probe"),
        (lambda: _model().compile("sgd", prob_optimizer=1), "probe_optimizer"),
        (lambda: datasets.from_folder("x", exf="apply"), "exif"),
        (lambda: datasets.from_arrays([], lables=1), "labels"),
        (lambda: datasets.from_dataset(None, lable_names=1), "label_names"),
        (lambda: views.Views(None, cout=2), "count"),
        (
            lambda: heads.build(tf.keras.layers.Dense(2), normalise_input=1),
            "normalize_input",
        ),
        (lambda: encoders.build(_layer, image_shap=1), "image_shape"),
    ],
)
def test_the_nearest_keyword_is_named(call, name):
    with pytest.raises((TypeError, errors.UserError)) as error:
        call()
    assert f"did you mean {name}" in str(error.value).replace("'", "")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("build", "members"),
    [
        (losses.build, losses.LOSSES),
        (views.build, {**views.POLICIES, **LISTING}),
        (encoders.build, ENCODERS),
        (heads.build, ["identity", "linear", "mlp"]),
        (optimizers.build, optimizers.OPTIMIZERS),
        (schedules.build, schedules.SCHEDULES),
    ],
)
def test_help_lists_names_and_options(build, members):
    text = " ".join(build.__doc__.split())
    for name in members:
        assert f" {name}(" in text
    if build is losses.build:
        assert "supcon(normalize=True" in text and "positives_cap=None" in text
