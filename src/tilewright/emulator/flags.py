"""Words of memory through which threads hand on what they did: by release and acquire, or by fences and relaxed words.

The last write to a word is what a read sees, so each word keeps one message.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.emulator.clocks import CtaClocks, Message, Threads, View, is_wide
from tilewright.emulator.events import Addresses

ANY_CTA = -1  # of global words: whoever wrote


class Flags:
    """Messages by (space, address)."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, int], Message] = {}

    def forget(self, first: int, num_bytes: int) -> None:
        """Shared memory of a new CTA."""
        for key in [k for k in self.messages if k[0] == "shared" and first <= k[1] < first + num_bytes]:
            del self.messages[key]

    def read(
        self, state: CtaClocks, threads: Threads, space: str, addresses: Addresses
    ) -> Iterator[tuple[View, Message]]:
        """Views of the threads that see a message, with it."""
        if not self.messages:
            return
        for address in np.unique(addresses).tolist():
            message = self.messages.get((space, address))
            if message is not None:
                for view, _ in state.separate(threads[addresses == address]):
                    yield view, message

    def write(
        self,
        state: CtaClocks,
        threads: Threads,
        space: str,
        addresses: Addresses,
        now: int,
        scope: str,
        is_atomic: bool,
    ) -> None:
        """A strong write; `now` 0: relaxed. An atomic adds to the message that is there, another write replaces it."""
        told = now > 0 or any(view.published is not None for view, _, _ in state.parts(threads))
        if not told and (is_atomic or not self.messages):
            return
        source = state.cta if space == "shared" or not is_wide(scope) else ANY_CTA
        for address in np.unique(addresses).tolist():
            writers = threads[addresses == address]
            key = (space, address)
            message = self.messages.get(key) if is_atomic else None
            if message is None:
                if not told:
                    self.messages.pop(key, None)
                    continue
                message = self.messages[key] = Message()
            part = message.part(source, is_wide(scope))
            if now:
                state.tell(part, writers, now)
            else:
                state.tell_published(part, writers)
