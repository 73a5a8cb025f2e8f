"""What keeps a fork out of a library that threads are in: a child would find the library's locks held for ever.

Knows threads and forks; nothing of compilers. A fork waits for the threads inside, and threads that come meanwhile wait
for the fork.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ForkGate:
    """One library's gate. Its three hooks are for os.register_at_fork.

    Units: a fork waits `wait_seconds` at most: then it goes on, and in the child `is_broken` says that the library must
    not be entered there.
    """

    def __init__(self, wait_seconds: float) -> None:
        self.wait_seconds = wait_seconds
        self.is_broken = False
        self._inside: dict[int, int] = {}  # thread -> how often it has entered
        self._num_forks = 0
        # A condition's lock can be taken again by its thread: a signal's handler may fork while that thread is in here.
        self._changed = threading.Condition()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside of the library for the length of the block; a thread may enter again."""
        thread = threading.get_ident()
        with self._changed:
            while self._num_forks and thread not in self._inside:
                self._changed.wait()
            self._inside[thread] = self._inside.get(thread, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[thread] -= 1
                if not self._inside[thread]:
                    del self._inside[thread]
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Waits until no other thread is inside, and keeps further ones out."""
        with self._changed:
            self._num_forks += 1
            self._changed.wait_for(lambda: not self._others(), self.wait_seconds)

    def after_in_parent(self) -> None:
        """Lets threads in again."""
        with self._changed:
            self._num_forks = max(0, self._num_forks - 1)
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Forgets the parent's other threads, which do not exist here."""
        others = self._others()
        self.is_broken = self.is_broken or bool(others)
        for thread in others:
            del self._inside[thread]
        self._num_forks = 0
        self._changed = threading.Condition()

    def _others(self) -> set[int]:
        return self._inside.keys() - {threading.get_ident()}
