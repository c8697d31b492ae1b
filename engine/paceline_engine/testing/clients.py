"""Clients that ask a server again and again, for tests of what shows under load."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def clients(count: int, ask: Callable[[int], object]) -> Iterator[None]:
    """So many threads call `ask(number)` again and again until the block ends."""
    is_over = threading.Event()

    def go_on(number: int) -> None:
        while not is_over.is_set():
            ask(number)

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
