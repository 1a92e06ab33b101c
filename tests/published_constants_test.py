"""Constants of the papers and of their authors' code, as numbers typed here.

No expected number is read from the package, so that one that moves fails a
test. Recipes have their own table, `configs/authors.json`, which also holds the
defaults of policies and of transfer; probabilities and ranges of augmentation
are measured in `views/`, parameters are counted in `encoders/`.

Papers: SR SimCLR, SC SupCon (supplement), IP Intriguing Properties of
Contrastive Losses, SI SINCERE.
"""

import hashlib
import json

import numpy as np
import pytest

from tf_contrastive import __main__, flags
from tf_contrastive.config import (
    dataset,
    fields,
    linear,
    loss,
    optimizer,
    pretrain,
    projection,
    protocols,
    schedule,
    views,
)
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.evaluation import (
    classification_metrics,
    corruptions,
    kmeans,
    logistic,
    projections,
    separation,
    statistics,
    transformations,
    tsne,
)

# ---- Defaults ----------------------------------------------------------------

_COMPONENTS = [
    # SR table 5 (l2, 64.4 % at 0.1); SC 6 (best for ResNet-50).
    (loss.NTXent, {"temperature": 0.1}),
    (loss.SupCon, {"temperature": 0.1}),
    # SC eq. 21.
    (loss.NPairs, {"temperature": 1.0}),
    # The authors' revised_losses.py, one of the three of SI J.
    (loss.EpsSupInfoNCE, {"epsilon": 0.25, "epsilon_in": "logit"}),
    # Of the grids that SR B.10 tunes on, which prints no best values.
    (loss.Margin, {"margin": 0.4, "negatives": "other_view"}),
    (loss.NTLogistic, {"temperature": 0.1, "negatives": "other_view"}),
    # Schroff et al. 2015 (FaceNet), 5: alpha.
    (loss.Triplet, {"margin": 0.2}),
    # Wang and Isola 2020: exp(-2 |x - y|^2) has a temperature of 1/2.
    (loss.AlignUniform, {"temperature": 0.5, "weight": 1.0}),
    # IP A: lambda, and the factor of losses of normalized vectors.
    (loss.SWDHypersphere, {"weight": 5.0, "scale": 1000.0, "normalize": True}),
    (loss.SWDNormal, {"weight": 5.0, "scale": 1.0, "normalize": False}),
    (loss.SWDHypercube, {"weight": 5.0, "scale": 1.0, "normalize": False}),
    (loss.CrossEntropy, {"label_smoothing": 0.0}),
    # SR 2.2 and lars_optimizer.py of its code.
    (optimizer.LARS, {"learning_rate": 0.3, "weight_decay": 1e-6}),
    (optimizer.LARS, {"trust_coefficient": 0.001}),
    (optimizer.SGD, {"learning_rate": 0.1, "momentum": 0.9}),
    # hparams.py of SupCon's code: of the first stage.
    (optimizer.RMSProp, {"learning_rate": 0.05, "momentum": 0.9}),
    (optimizer.RMSProp, {"rho": 0.9, "epsilon": 1.0}),
    # Kingma and Ba 2015, algorithm 1.
    (optimizer.Adam, {"learning_rate": 0.001, "epsilon": 1e-8}),
    (optimizer.Adam, {"beta_1": 0.9, "beta_2": 0.999}),
    # PyTorch's decay.
    (optimizer.AdamW, {"learning_rate": 0.001, "weight_decay": 0.01}),
    # The linear stage of SupCon's code.
    (schedule.Exponential, {"decay_rate": 0.97, "decay_epochs": 0.5}),
    # He et al. 2016.
    (schedule.Piecewise, {"decay_rate": 0.1, "decay_epochs": (30, 60, 90)}),
    # SR 2.1 and 4.2.
    (projection.MLP, {"output": 128, "layers": 2, "hidden": None}),
    # SR B.6.
    (linear.Probe, {"probe_learning_rate": 0.1}),
]


# Whether a run's head has BatchNorm and a last bias: SR-code model.py; SC-code
# --use_projection_batch_norm=False; SI-code resnet_big.py.
_HEADS = {
    **dict.fromkeys(("ntxent", "moco", "align_uniform"), (True, False)),
    **dict.fromkeys(("supcon", "supcon_in"), (False, False)),
    **dict.fromkeys(("sincere", "eps_supinfonce"), (False, True)),
}


@pytest.mark.parametrize(("name", "head"), _HEADS.items(), ids=list(_HEADS))
def test_a_run_s_head_is_that_of_the_loss_s_authors(name, head):
    def resolved(**options):
        given = fields.replace(pretrain.Pretrain(), loss=name, **options)
        return pretrain.resolve(
            given, dataset="cifar10", image_shape=(32, 32, 3)
        ).projection

    for kind in ("mlp", "linear"):
        default = resolved(projection=kind)
        assert (default.batch_norm, default.bias) == head
        other = resolved(projection=kind, projection_batch_norm=not head[0])
        assert (other.batch_norm, other.bias) == (not head[0], head[1])
    assert resolved(projection="identity").arguments() == {}
    # Python's default is SimCLR's.
    assert projection.MLP().batch_norm


@pytest.mark.parametrize(
    ("declaration", "published"),
    _COMPONENTS,
    ids=lambda value: getattr(value, "name", ""),
)
def test_components_have_the_published_defaults(declaration, published):
    component = declaration()
    assert {name: getattr(component, name) for name in published} == published


_DEFAULTS = {
    "pretrain": {
        "loss": "ntxent",
        "optimizer": "lars",
        "schedule": "cosine",
        "views": 2,
        "epochs": 100,  # SR 2.2.
        "learning_rate_floor": 0.0,
        # He et al. 2020 (MoCo), 4.
        "key_momentum": 0.999,
        "queue_size": 65_536,
    },
    "evaluate": {
        # SR B.6.
        "linear_epochs": 90,
        "linear_batch_size": 4096,
        "linear_augmentation": "crop",
        "linear_warmup_epochs": 0.0,
        # SR B.5; the paper prints no epochs for all labels.
        "finetune_fractions": (0.01, 0.1, 1.0),
        "finetune_epochs": (60, 30, 30),
        "finetune_batch_size": 4096,
        "finetune_augmentation": "crop",
    },
}


def test_commands_have_the_published_defaults():
    for command, published in _DEFAULTS.items():
        values = fields.values(__main__.COMMANDS[command]())
        assert {name: values[name] for name in published} == published


def test_measures_have_the_published_numbers():
    # SR table 4: all images of a batch are candidates; SI J.
    assert (projections.TASK_BATCH, projections.BOUND_BATCH) == (4096, 512)
    # Guo et al. 2017, table 1.
    assert classification_metrics.BINS == 15
    assert tsne.CLASSES == 10  # SR B.4.
    assert kmeans.SCALE == 2  # IP 3.2: 448 pixels, of 224.
    # SR B.9, of CIFAR-10.
    small = {"color_jitter_strength": 0.5, "blur": False}
    assert small == views.SMALL_DEFAULTS
    # SR B.6; of RMSProp, hparams.py of SupCon's code has another epsilon.
    options = linear.LINEAR_OPTIMIZER_OPTIONS
    assert {o["weight_decay"] for o in options.values()} == {0.0}
    assert options["sgd"]["nesterov"] and options["rmsprop"]["epsilon"] == 1e-3
    # SR table 2: 80, 25, 50 and 50 %.
    tasks = transformations.TASKS.items()
    chance = {name: max(task.fractions) for name, task in tasks}
    half = {"noise": 0.5, "sobel": 0.5}
    assert chance == {"color": 0.8, "rotation": 0.25} | half
    # embed_stats.py of SINCERE's code: binrange and bins.
    found = separation.neighbor_histograms(np.ones(3), np.zeros(3))
    np.testing.assert_allclose(found["edges"], np.linspace(-0.1, 1, 101))
    # tf2/resnet.py and run.py of SR's code: batch_norm_decay.
    layer = BatchNormalization()
    assert (layer.momentum, layer.epsilon) == (0.9, 1e-5)


@pytest.mark.parametrize(
    ("recipe", "published"),
    [
        # SI J.
        ("sincere", ("sgd", 0.1, 1e-4, 0.0, 100, 128)),
        # SC 10.1, and the linear stage of SupCon's code.
        ("supcon", ("rmsprop", 0.05, 1e-6, 12.0, 350, 2048)),
    ],
)
def test_recipes_of_linear_classifiers(recipe, published):
    names = "optimizer learning_rate weight_decay warmup_epochs epochs"
    file = f"--flagfile=configs/shared/linear_{recipe}.flags"
    found = flags.parse(Scoring, [file]).linear.hyperparameters()
    found |= found["optimizer_options"]
    names = [*names.split(), "batch_size"]
    assert tuple(found[name] for name in names) == published


def test_comparisons_have_the_published_draws():
    """SI 4: 1,000 resamples; SR B.8: 100,000 permutations."""
    # Fractions: the distributions of accuracies are exact, without draws.
    a, b = np.random.default_rng(0).random([2, 99])
    found = statistics.compare(a, b)
    assert found == statistics.compare(a, b, resamples=1000, draws=100_000)
    for other in {"resamples": 999}, {"draws": 99_999}:
        assert found != statistics.compare(a, b, **other)


# ---- Grids and schedules -----------------------------------------------------


def test_penalties_are_a_quarter_of_a_decade_apart():
    """SR B.8: 45 of 1e-6 to 1e5."""
    path = logistic.path_of()
    assert path[0] == pytest.approx(1e5) and path[-1] == pytest.approx(1e-6)
    np.testing.assert_allclose(path[:-1] / path[1:], 1.778279, rtol=1e-6)


@pytest.mark.parametrize(
    ("grid", "rates", "decays"),
    [
        (
            "grid",
            [1e-4, 3.162e-4, 1e-3, 3.162e-3, 0.01, 0.03162, 0.1],
            [0, 1e-6, 3.162e-6, 1e-5, 3.162e-5, 1e-4, 3.162e-4, 1e-3],
        ),
        (
            "scratch_grid",
            [1e-3, 3.162e-3, 0.01, 0.03162, 0.1, 0.3162, 1.0],
            [1e-5, 3.162e-5, 1e-4, 3.162e-4, 1e-3, 3.162e-3, 0.01, 0.03162],
        ),
    ],
)
def test_transfer_searches_the_published_grids(grid, rates, decays):
    """SR B.8; three digits are kept."""
    found = protocols.Transfer().hyperparameters()[grid]
    np.testing.assert_allclose(found["learning_rates"], rates, rtol=2e-3)
    np.testing.assert_allclose(found["weight_decays"], decays, rtol=2e-3)


@pytest.mark.parametrize(
    ("scaling", "base"), [("linear", 0.3), ("sqrt", 0.075)]
)
def test_learning_rates_before_scaling(scaling, base):
    """SR 2.2 and B.1."""
    resolve, lars = optimizer.resolve_learning_rate, optimizer.LARS()
    assert resolve(None, lars, scaling) == base
    assert resolve(0.7, lars, scaling) == 0.7


@pytest.mark.parametrize(("epochs", "warmup"), [(1000, 10), (100, 10), (50, 5)])
def test_a_warm_up_has_ten_epochs(epochs, warmup):
    """SR 2.2; at most a tenth of a shorter run is a choice of this package."""
    assert schedule.resolve_warmup(None, epochs) == warmup


# ---- Data --------------------------------------------------------------------


def test_imagenet100_is_the_list_of_cmc():
    """The file imagenet100.txt of HobbitLong/CMC, byte by byte."""
    content = "".join(f"{name}\n" for name in dataset.ImageNet100.classes)
    assert hashlib.sha256(content.encode()).hexdigest() == (
        "79f3f1552ccc478ce24bd934b4573625db584ddc1f4643ae23c994a94cb11397"
    )


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        # torchvision's; the others are those of the training split.
        ("imagenet2012", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("cifar10", (0.49140, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)),
        ("cifar100", (0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)),
        ("mnist", (0.13066,) * 3, (0.30811,) * 3),
    ],
)
def test_colours_of_datasets(name, mean, std):
    found = dataset.facts(name).statistics
    np.testing.assert_allclose(found.mean, mean, atol=6e-5)
    np.testing.assert_allclose(found.std, std, atol=6e-5)


# ---- Corruptions -------------------------------------------------------------


def test_alexnet_has_the_published_errors():
    """ALEXNET_ERR of AugMix's imagenet.py, in its order of corruptions."""
    assert classification_metrics.ALEXNET == {
        "gaussian_noise": 0.886428,
        "shot_noise": 0.894468,
        "impulse_noise": 0.922640,
        "defocus_blur": 0.819880,
        "glass_blur": 0.826268,
        "motion_blur": 0.785948,
        "zoom_blur": 0.798360,
        "snow": 0.866816,
        "frost": 0.826572,
        "fog": 0.819324,
        "brightness": 0.564592,
        "contrast": 0.853204,
        "elastic_transform": 0.646056,
        "pixelate": 0.717840,
        "jpeg_compression": 0.606500,
    }
    # torchvision's AlexNet: 56.52 % right.
    assert classification_metrics.ALEXNET_CLEAN == 0.4348


@pytest.mark.parametrize(
    ("kind", "digest"),
    [("imagenet", "8e72acde84e869e0"), ("cifar", "6b0636c416c323fb")],
)
def test_corruptions_have_the_published_levels(kind, digest):
    """Of make_imagenet_c.py and make_cifar_c.py of hendrycks/robustness.

    The digests are of levels that were compared with these files, number by
    number.
    """
    found = {
        name: [np.round(np.ravel(level), 6).tolist() for level in levels]
        for name, levels in corruptions.LEVELS[kind].items()
    }
    content = json.dumps(found, sort_keys=True).encode()
    assert hashlib.sha256(content).hexdigest()[:16] == digest
