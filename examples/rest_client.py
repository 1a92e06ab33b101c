"""Requests embeddings from TensorFlow Serving over REST without any package.

Use: python examples/rest_client.py [--url=http://localhost:8501] FILE...

FILE: JPEG or PNG. The server is that of `launch/serve`, or of
`python -m tf_contrastive serve`. Prints a line of JSON for each file: its name,
whether it could be decoded, its embedding.
"""

import argparse
import base64
import json
import pathlib
import sys
import urllib.error
import urllib.request


def embed(
    url: str, files: list[bytes], model: str = "encoder"
) -> list[dict[str, object]]:
    """Embeds encoded images.

    Args:
      url: address of the server, such as http://localhost:8501.
      files: contents of image files.
      model: name of the model on the server.

    Returns:
      {"embedding": list of float, "ok": bool} for each file.
    """
    request = {
        "signature_name": "serving_bytes",
        "instances": [
            {"bytes": {"b64": base64.b64encode(data).decode()}}
            for data in files
        ],
    }
    # For pixels: "signature_name": "serving_default", "instances": [{"images":
    # [[[r, g, b], ...], ...]}, ...], each a number from 0 to 255.
    answer = urllib.request.urlopen(
        urllib.request.Request(
            f"{url}/v1/models/{model}:predict",
            json.dumps(request).encode(),
            {"Content-Type": "application/json"},
        ),
        timeout=60,
    )
    with answer:
        return json.load(answer)["predictions"]


def main() -> int:
    """Embeds the files named on the command line and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://localhost:8501")
    parser.add_argument("--model", default="encoder")
    parser.add_argument("files", nargs="+", metavar="FILE", type=pathlib.Path)
    options = parser.parse_args()
    try:
        contents = [file.read_bytes() for file in options.files]
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        results = embed(options.url, contents, options.model)
    except urllib.error.URLError as error:
        # An HTTPError's body is the server's own message.
        reason = (
            error.read().decode() if hasattr(error, "read") else error.reason
        )
        print(f"{options.url}: {reason}", file=sys.stderr)
        return 1
    for file, result in zip(options.files, results, strict=True):
        print(json.dumps({"file": str(file), **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
