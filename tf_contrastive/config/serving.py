"""What a server of exports serves, where, and its limits."""

import dataclasses

from tf_contrastive.config.checks import matching
from tf_contrastive.config.fields import option


@dataclasses.dataclass(frozen=True)
class Serving:
    """What `serve` serves, and where."""

    saved_model: str = option(
        "",
        "folder of an export's versions, such as RUN/export, or of one of them;"
        " its program is run",
        required=True,
    )
    model_name: str = option(
        "encoder",
        "name of the model in requests",
        check=matching(r"[\w.-]+", "letters, digits, and the characters _ . -"),
    )
    versions: str = option(
        "latest",
        "versions to serve: latest, all, or numbers such as 1,3; new ones are"
        " loaded while the server runs, and the former then unloaded",
        check=matching(
            r"latest|all|\d{1,18}(,\d{1,18})*",
            "latest, all, or numbers such as 1,3",
        ),
    )
    poll_seconds: float = option(
        1.0,
        "seconds between two searches for new versions",
        above=0,
        maximum=86400,
    )
    host: str = option(
        "127.0.0.1",
        "address to listen at; 0.0.0.0 or :: for all, where a firewall or a"
        " proxy decides who may call",
        check=matching(r"[\w.:%-]+", "an address or a name"),
    )
    port: int = option(
        8501,
        "port to listen at; 0: a free one, which is printed",
        maximum=65535,
    )


@dataclasses.dataclass(frozen=True)
class Batching:
    """How `serve` joins requests."""

    max_batch_size: int = option(
        32,
        "rows, such as images, that are computed together, of one or several"
        " requests; larger requests are divided; 1: no joining",
        minimum=1,
        maximum=65536,
    )
    batch_timeout_ms: float = option(
        0.0,
        "milliseconds that a request waits for others; 0: only while all of"
        " --batch_threads compute",
        maximum=60000,
    )
    batch_threads: int = option(
        2, "batches that are computed at a time", minimum=1, maximum=1024
    )


@dataclasses.dataclass(frozen=True)
class Limits:
    """What `serve` refuses."""

    max_body_bytes: int = option(
        2**25,
        "bytes of a request's body, at most; those of all requests together:"
        " eight times as many",
        minimum=1,
    )
    max_queue: int = option(
        128,
        "requests that are read or computed at a time, at most; others get 503"
        " at once",
        minimum=1,
    )
    max_connections: int = option(
        512, "open connections, at most; others get 503", minimum=1
    )
    read_seconds: float = option(
        10.0,
        "seconds for a client to send its headers, and for its body; also of"
        " an idle connection",
        above=0,
        maximum=86400,
    )
    request_seconds: float = option(
        30.0,
        "seconds to compute a request once it was read; afterwards it gets 504",
        above=0,
        maximum=86400,
    )
    stop_seconds: float = option(
        30.0,
        "seconds after SIGTERM or SIGINT to finish the requests at hand",
        above=0,
        maximum=86400,
    )
