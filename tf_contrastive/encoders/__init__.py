"""Encoders: images [N, H, W, K] in [0, 1] to features h [N, D].

Residual networks, and the backbones of Keras and KerasCV with synchronized
batch normalization. Every encoder standardises its input in its first layer.
"""

from tf_contrastive.encoders.build import build
from tf_contrastive.encoders.checked_input import Encoder

__all__ = ["Encoder", "build"]
