"""Packaging of tf_contrastive; the pinned versions are in constraints.txt."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).resolve().parent

# Ranges that pip resolves to a working set on its own.
INSTALL_REQUIRES = [
    # A range that admits the 2.15.0 wheel of TPU VMs.
    "tensorflow>=2.15,<2.16",
    "tensorflow-datasets>=4.9.4,<4.10",
    "tensorflow-addons>=0.23,<0.24",
    "keras-cv>=0.9,<0.10",
    "absl-py>=1.4",
    "tensorboard>=2.15,<2.16",
    "scikit-learn>=1.3,<2",
    "scipy>=1.10,<2",
    "matplotlib>=3.7,<4",
    # Required by scikit-learn and matplotlib, and also used directly: to limit
    # threads, and to corrupt images.
    "threadpoolctl>=2,<4",
    "Pillow>=10",
    "numpy>=1.24,<2",
    # tensorflow-metadata 1.17 and later need protobuf 5 without declaring it,
    # which TensorFlow 2.15 excludes: importing tensorflow_datasets would fail.
    "tensorflow-metadata>=1.14,<1.17",
    "protobuf>=3.20.3,<5",
    # Required by tensorflow-datasets. 1.14 needs Python 3.11, which old
    # versions of pip take very long to find out.
    'etils>=1.6,<1.14; python_version < "3.11"',
    # TensorBoard 2.15 imports pkg_resources, which later versions removed.
    "setuptools<81",
]

EXTRAS_REQUIRE = {
    # 2.15.0 names TensorRT packages that cannot be installed.
    "gpu": ["tensorflow[and-cuda]>=2.15.1,<2.16"],
    "beam": [
        "apache-beam>=2.60,<3",
        "tensorflow-hub>=0.16,<0.17",
        # Required by tensorflow-hub; later versions need a later TensorFlow.
        "tf-keras>=2.15,<2.16",
        "pyarrow>=14",
    ],
    "onnx": [
        "tf2onnx>=1.17,<1.18",
        "onnx>=1.15,<1.17",
        "onnxruntime>=1.17",
    ],
    "profile": ["tensorboard-plugin-profile>=2.15,<2.16"],
    "dev": [
        "pytest>=8",
        "pytest-xdist>=3.7",
        "ruff>=0.6",
        "mypy>=2.4",
        "pdoc>=16",
        "selenium>=4.20",
        # For examples/grpc_client.py and the tests of serving.
        "tensorflow-serving-api>=2.15,<2.16",
    ],
}


def version() -> str:
    text = (HERE / "tf_contrastive" / "__init__.py").read_text("utf-8")
    return re.search(r'^__version__ = "([^"]+)"', text, re.M).group(1)


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
    packages=setuptools.find_packages(
        include=["tf_contrastive", "tf_contrastive.*"]
    ),
    # The papers' claims and numbers.
    package_data={"tf_contrastive.papers.claims": ["*.json"]},
    python_requires=">=3.10,<3.12",
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
    entry_points={
        "console_scripts": ["tf-contrastive = tf_contrastive.__main__:main"],
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
    ],
)
