"""Limits of the application that need many clients at one moment."""

import asyncio

from tf_contrastive.config.serving import Batching, Limits
from tf_contrastive.serving.app import App


async def _statuses(sizes):
    """Answers to clients that have sent so many bytes, and go on sending.

    Those that are still read have none.
    """
    limits = Limits(max_body_bytes=100, max_queue=20)
    app = App("encoder", None, Batching(), limits)
    path = "/v1/models/encoder:predict"
    statuses = [None] * len(sizes)

    async def client(i):
        parts = [sizes[i]]

        async def receive():
            if not parts:
                await asyncio.sleep(60)
            body = bytes(parts.pop())
            return {"type": "http.request", "body": body, "more_body": True}

        async def send(message):
            statuses[i] = statuses[i] or message["status"]

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "headers": [],
        }
        await app.asgi(scope, receive, send)

    clients = [asyncio.create_task(client(i)) for i in range(len(sizes))]
    await asyncio.sleep(0.2)
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    app.close()
    return statuses


def test_all_bodies_together_are_eight_of_the_largest():
    assert asyncio.run(_statuses(8 * [100])) == 8 * [None]
    assert asyncio.run(_statuses([*8 * [100], 1])) == [*8 * [None], 503]
    assert asyncio.run(_statuses([100, 101])) == [None, 413]


def test_the_queue_counts_requests_that_are_read():
    assert asyncio.run(_statuses(20 * [1])) == 20 * [None]
    assert asyncio.run(_statuses(21 * [1])) == [*20 * [None], 503]
