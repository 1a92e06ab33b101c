"""The Keras model that is pretrained, and the networks and model of a run."""

from tf_contrastive.model.contrastive_model import ContrastiveModel

__all__ = ["ContrastiveModel"]
