"""Views: from images uint8 [h, w, 3] to float32 [S, S, 3] in [0, 1]."""

from tf_contrastive.views import prng
from tf_contrastive.views.host_and_device import RunViews, Views
from tf_contrastive.views.policies import (
    POLICIES,
    Ablation,
    AutoAugment,
    Broader,
    Crop,
    NoAugmentation,
    Policy,
    RandAugment,
    SimAugment,
    SimCLR,
    SimCLRPlus,
    StackedRandAugment,
    build,
)
from tf_contrastive.views.preprocessing import evaluation

__all__ = [
    "POLICIES",
    "Ablation",
    "AutoAugment",
    "Broader",
    "Crop",
    "NoAugmentation",
    "Policy",
    "RandAugment",
    "RunViews",
    "SimAugment",
    "SimCLR",
    "SimCLRPlus",
    "StackedRandAugment",
    "Views",
    "build",
    "evaluation",
    "prng",
]
