"""What a server of exports serves, where, and its limits."""

from tf_contrastive.config.checks import matching
from tf_contrastive.config.command import Group
from tf_contrastive.config.fields import option

# Name of the model in requests.
MODEL = "encoder"


class Serving(Group):
    """What `serve` serves, where, and what it refuses."""

    saved_model: str = option(
        "",
        "folder of an export's versions, such as RUN/export: the newest is"
        " served, also one that is written later; or folder of one of them; its"
        " program is run",
        required=True,
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
    max_batch_size: int = option(
        32,
        "rows, such as images, that are computed together, of one or several"
        " requests; larger requests are divided; 1: no joining",
        minimum=1,
        maximum=65536,
    )
    max_body_bytes: int = option(
        2**25,
        "largest body of a request in bytes; all requests together may hold"
        " eight times as much",
        minimum=1,
    )
    max_queue: int = option(
        128,
        "predictions that wait or are computed at a time, at most; others get"
        " 503",
        minimum=1,
    )
    request_seconds: float = option(
        30.0,
        "seconds to compute a request once it was read; afterwards it gets 504;"
        " also seconds to finish the current requests after SIGTERM or SIGINT",
        above=0,
        maximum=86400,
    )
