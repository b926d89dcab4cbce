"""One thread per product; parallel work is over modules."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def single_threaded_products() -> Iterator[None]:
    """Keep BLAS and torch to one thread each.

    A sum split over threads would round differently for each number of them, and at these sizes threads that wait for each
    other cost more than they bring.
    """
    before = torch.get_num_threads()
    try:
        with threadpool_limits(1, user_api="blas"):
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(before)
