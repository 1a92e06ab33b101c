"""Packaging of tf_contrastive; the pinned versions are in tools/pins."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).resolve().parent

# Ranges that pip resolves to a working set on its own, one of two stacks: the
# last TensorFlow with tensorflow-addons, and the current one.
_CARD = 'python_version < "3.12"'
_CURRENT = 'python_version >= "3.12"'
MARKERS = {"card": _CARD, "current": _CURRENT}
INSTALL_REQUIRES = [
    # A range that admits the 2.15.0 wheel of TPU VMs.
    f"tensorflow>=2.15,<2.16; {_CARD}",
    f"tensorflow-addons>=0.23,<0.24; {_CARD}",
    f"tensorboard>=2.15,<2.16; {_CARD}",
    f"numpy>=1.24,<2; {_CARD}",
    # tensorflow-metadata 1.17 and later need protobuf 5 without declaring it,
    # which TensorFlow 2.15 excludes: importing tensorflow_datasets would fail.
    f"tensorflow-metadata>=1.14,<1.17; {_CARD}",
    f"protobuf>=3.20.3,<5; {_CARD}",
    # Required by tensorflow-datasets. 1.14 needs Python 3.11, which old
    # versions of pip take very long to find out.
    'etils>=1.6,<1.14; python_version < "3.11"',
    f"tensorflow>=2.16,<2.22; {_CURRENT}",
    # Requires the same minor version of TensorFlow.
    f"tf-keras>=2.16,<2.22; {_CURRENT}",
    f"tensorboard>=2.16,<2.22; {_CURRENT}",
    f"numpy>=1.26; {_CURRENT}",
    # Older versions fit any protobuf, and fail with it.
    f"tensorflow-metadata>=1.17; {_CURRENT}",
    # Required by tensorflow-datasets 4.9.10 without bounds, and also used
    # directly. 26 needs NumPy 2, which TensorFlow 2.15 excludes.
    f"pyarrow>=14,<26; {_CARD}",
    f"pyarrow>=18,<27; {_CURRENT}",
    "tensorflow-datasets>=4.9.4,<4.10",
    "keras-cv>=0.9,<0.10",
    "absl-py>=1.4",
    # Imported by tensorflow-datasets, which not always requires it.
    "importlib-resources>=5",
    "scikit-learn>=1.3,<2",
    "scipy>=1.10,<2",
    "matplotlib>=3.7,<4",
    # Required by scikit-learn, matplotlib and tensorflow-datasets, and also
    # used directly: to limit threads, read images and measure memory.
    "threadpoolctl>=2,<4",
    "Pillow>=10",
    "psutil>=5",
    # Required by tensorflow, and also used directly, when it is imported.
    "wrapt>=1.11",
    "typing_extensions>=4.1",
    # TensorBoard imports pkg_resources, which later versions removed.
    "setuptools>=78.1.1,<81",
]

EXTRAS_REQUIRE = {
    "gpu": [
        # 2.15.0 names TensorRT packages that cannot be installed.
        f"tensorflow[and-cuda]>=2.15.1,<2.16; {_CARD}",
        f"tensorflow[and-cuda]>=2.16,<2.22; {_CURRENT}",
    ],
    "beam": ["apache-beam>=2.60,<3"],
    # The same version as the cluster's; 4 needs Java 17.
    "spark": ["pyspark>=3.5,<5"],
    "heic": ["pillow-heif>=0.16,<2"],
    "onnx": [
        "tf2onnx>=1.16.1,<1.18",
        # 1.18 needs a newer protobuf than tensorflow-metadata on Python 3.10.
        # 1.19 needs a newer ml_dtypes than TensorFlow 2.15, and its first
        # release does not declare that.
        f"onnx>=1.15,<1.18; {_CARD}",
        f"onnx>=1.17,<2; {_CURRENT}",
        f"onnxruntime>=1.17,<2; {_CARD}",
        f"onnxruntime>=1.20,<2; {_CURRENT}",
    ],
    "profile": [
        f"tensorboard-plugin-profile>=2.15,<2.16; {_CARD}",
        f"tensorboard-plugin-profile>=2.16,<2.25; {_CURRENT}",
    ],
    # For `doctor --compile_for`. It needs Python 3.12: launch/install
    # --tpu-compile installs it in an environment of its own.
    "tpu-compile": ["jax>=0.10,<0.13", "libtpu>=0.0.52,<0.1"],
    # `serve` depends on how uvicorn handles a connection.
    "serve": [
        "uvicorn>=0.54,<0.60",
        "starlette>=0.46,<2",
        "prometheus_client>=0.20,<1",
    ],
    # For published checkpoints in files of PyTorch. Older versions execute some
    # files despite `weights_only` (CVE-2025-32434).
    "torch": ["torch>=2.6,<3"],
    "dev": [
        "pytest>=8",
        "pytest-rerunfailures>=15",
        "pytest-xdist>=3.7",
        "ruff>=0.6",
        "mypy>=2.4",
        "mkdocs-material>=9.6,<10",
        "mkdocstrings-python>=2,<3",
        # mkdocstrings for Python 3.10 fails with later versions.
        'pymdown-extensions<12; python_version < "3.11"',
        "selenium>=4.20",
        # For examples/grpc_client.py and the tests of serving.
        f"tensorflow-serving-api>=2.15,<2.16; {_CARD}",
        f"tensorflow-serving-api>=2.16,<2.22; {_CURRENT}",
    ],
}


def version() -> str:
    path = HERE / "tf_contrastive" / "base" / "installation.py"
    text = path.read_text("utf-8")
    return re.search(r'^VERSION = "([^"]+)"', text, re.M).group(1)


def long_description() -> str:
    readme = HERE / "README.md"
    return readme.read_text("utf-8") if readme.exists() else ""


setuptools.setup(
    name="tf_contrastive",
    version=version(),
    description=(
        "Contrastive pretraining of image encoders in TensorFlow and Keras"
    ),
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=[
        *setuptools.find_packages(include=["tf_contrastive*"]),
        "tf_contrastive.configs",
    ],
    # Recipes are beside the package in a clone, and in it when it is installed.
    package_dir={"tf_contrastive.configs": "configs"},
    package_data={
        "tf_contrastive.config": ["*.json", "*.txt"],
        "tf_contrastive.configs": ["*.flags", "shared/*.flags"],
        "tf_contrastive.encoders.pretrained": ["*/*"],
        "tf_contrastive.encoders.published": ["tables.json"],
        "tf_contrastive.exporting": ["batching_parameters.txt", "card.md"],
        # The template of a page.
        "tf_contrastive.evaluation.explore": ["page.*"],
    },
    # A path in a .pth file. The finder that setuptools writes otherwise comes
    # after a folder named tf_contrastive in the current folder: any clone.
    options={"editable_wheel": {"mode": "compat"}},
    python_requires=">=3.10,<3.14",
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
    entry_points={
        "console_scripts": ["tf-contrastive = tf_contrastive.__main__:main"],
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
)
