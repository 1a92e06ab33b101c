"""The encoder's weights for torchvision's and timm's networks of PyTorch.

Those compute the same as the encoders here: convolutions of stride 2 are padded
at both ends, a bottleneck strides in its 3x3 convolution, and normalization has
the same epsilon. Code that loads the file replaces a stem that differs.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.encoder import ENCODERS, ResNet, ViT
from tf_contrastive.encoders import vit
from tf_contrastive.encoders.published import reading, tables
from tf_contrastive.exporting.paths import standardization, unseen_options

FILE = "encoder.safetensors"
_CODE = """\
import torch
from safetensors.torch import load_file
{network}
model.load_state_dict(load_file("{file}"))
model.eval()
mean = torch.tensor([{mean}]).reshape(-1, 1, 1)
std = torch.tensor([{std}]).reshape(-1, 1, 1)
# images: float32 [N, {channels}, {size}, {size}], colours in [0, 1].
features = model((images - mean) / std)"""
# Names of variables here -> there, other tensors, and code that makes `model`.
_Network = tuple[Mapping[str, str], Mapping[str, np.ndarray], str]


def file_for_pytorch(encoder: tf.keras.Model) -> tuple[bytes, dict[str, Any]]:
    """Returns a safetensors file of an encoder of `encoders.build`.

    And its description, as in `saved_model.details`.

    Raises:
      UserError: if no network of torchvision or timm computes the same.
    """
    family = ENCODERS.get(encoder.name)
    standardize = standardization(encoder)
    if family not in (ResNet, ViT) or standardize is None:
        raise _refused(encoder.name)
    layers = {layer.name: layer for layer in encoder.layers}
    network = _torchvision if family is ResNet else _timm
    names, others, code = network(encoder, layers)
    axes, arrays = tuple(np.argsort(tables.TORCHVISION.kernel_axes)), {}
    for variable in encoder.variables:
        if variable.name not in names:
            raise _refused(f"{encoder.name} with {variable.name}")
        values = variable.numpy()
        # Kernels as they are read, backwards; matrices are transposed.
        values = values.transpose(axes if values.ndim == 4 else None)
        arrays[names[variable.name]] = values
    _, size, _, channels = encoder.input_shape
    # For the reader of this package.
    options = {"size": size, "standardize": standardize}
    options |= unseen_options(encoder)
    content = _safetensors({**arrays, **others}, options)
    mean, std = standardize.replace(",", ", ").split("/")
    code = _CODE.format(
        network=code,
        file=FILE,
        mean=mean,
        std=std,
        size=size,
        channels=channels,
    )
    return content, {
        "format": "pytorch",
        "file": FILE,
        "reader": "PyTorch, by the code in README.md",
        "bytes": len(content),
        "code": code,
    }


def _refused(given: str) -> errors.UserError:
    return errors.UserError(
        f"{errors.arg('format', 'pytorch')}: PyTorch's libraries do not have"
        f" {given}: must be a ResNet of width 1 without project_first, or a"
        " vision transformer: leave pytorch out, or use onnx"
    )


def _torchvision(encoder: tf.keras.Model, layers: Mapping) -> _Network:
    blocks, stem = ResNet.networks[encoder.name], layers["stem_conv"]
    kind = "Bottleneck" if blocks.bottleneck else "BasicBlock"
    side, _, channels, filters = stem.kernel.shape
    if filters != 64:
        raise _refused(f"{encoder.name} of width {filters / 64:g}")
    code = [
        f"from torchvision.models.resnet import {kind}, ResNet\n",
        f"model = ResNet({kind}, {[*blocks.repeats]})  # {encoder.name}",
    ]
    if (side, channels) != (7, 3):
        options = f"{side}, {stem.strides[0]}, {side // 2}, bias=False"
        code.append(f"model.conv1 = torch.nn.Conv2d({channels}, 64, {options})")
    pool = layers.get("stem_pool")
    if pool is None:
        code.append("model.maxpool = torch.nn.Identity()")
    elif pool.padding == "same" and pool.input_shape[1] % 2 == 0:
        # A pixel at the end alone, while "same" of an odd side is symmetric.
        code.append("model.maxpool = torch.nn.MaxPool2d(3, 2, ceil_mode=True)")
    code.append("model.fc = torch.nn.Identity()")
    return tables.TORCHVISION.variables(blocks), {}, "\n".join(code)


def _timm(encoder: tf.keras.Model, layers: Mapping) -> _Network:
    attentions = [x for x in encoder.layers if isinstance(x, vit.Attention)]
    patches, tokens = layers["patches"], layers["tokens"]
    positions = vit.positions(*patches.output_shape[1:])[np.newaxis]
    others, pooling = {"pos_embed": positions}, ""
    if tokens.class_token:  # It comes first, without a position.
        others["pos_embed"] = np.pad(positions, [[0, 0], [1, 0], [0, 0]])
        others["cls_token"] = tokens.token.numpy()[np.newaxis, np.newaxis]
    else:  # The mean of norms, while timm's default is the norm of the mean.
        pooling = ', class_token=False, global_pool="avg", fc_norm=False'
    size, channels = encoder.input_shape[2:]
    code = f"""\
from timm.models.vision_transformer import VisionTransformer

model = VisionTransformer(  # {encoder.name}
    img_size={size}, patch_size={patches.kernel_size[0]}, in_chans={channels},
    embed_dim={positions.shape[-1]}, depth={len(attentions)},
    num_heads={attentions[0].heads}, num_classes=0{pooling},
)"""
    return tables.timm(len(attentions)), others, code


def _safetensors(
    arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]
) -> bytes:
    """Returns a file as `reading.read` and the package safetensors take it."""
    metadata = {"format": "pt", reading.OPTIONS: json.dumps(options)}
    header: dict[str, Any] = {"__metadata__": metadata}
    content = bytearray()
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": array.shape}
        ends = [len(content), len(content) + 4 * array.size]
        header[name]["data_offsets"] = ends
        content += array.astype("<f4").tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content
