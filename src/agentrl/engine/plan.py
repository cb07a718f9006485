"""What a step computes: the next tokens of prompts and of conversations, with room made for them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from agentrl.engine.requests import Request
from agentrl.engine.store import ConversationStore, Opening
from agentrl.policy.cache import Piece
from agentrl.policy.slots import CacheFull

MakeRoom = Callable[[Collection[Opening]], None]
"""Drops something, these prompts apart, or takes the request that came last out of the batch."""


class Plan(NamedTuple):
    """Of prompts, and of the tails of requests."""

    openings: dict[Opening, Piece]
    pieces: list[Piece]
    tails: list[Request]


def plan(running: Collection[Request], store: ConversationStore, chunk_tokens: int, make_room: MakeRoom) -> Plan:
    """What to compute in the next step.

    Args:
        running: those that are sampled, in the order in which they came; ``make_room`` may take the last away.
        store: what is cached of them.
        chunk_tokens: the most to compute beside one token for each.
        make_room: called when there is no memory for a piece, until there is.
    """
    left = chunk_tokens
    planned = Plan({}, [], [])

    def placed(request: Request, compute: Callable[[], Piece]) -> Piece | None:
        while request in running:
            try:
                return compute()
            except CacheFull:
                make_room(planned.openings)
        return None

    for request in list(running):
        if request not in running:  # it had to go for one before it
            continue
        conversation = request.session.conversation
        opening = conversation.opening or store.attach(conversation)
        is_prompt = opening.logits_V is None
        if is_prompt:
            opening = store.next_opening(opening)
        elif not conversation.num_missing:
            continue
        if (left <= 0 and (is_prompt or conversation.num_missing > 1)) or opening in planned.openings:
            continue
        most = max(1, left)
        compute = (
            partial(store.prompt_piece, opening, most) if is_prompt else partial(store.tail_piece, conversation, most)
        )
        piece = placed(request, compute)
        if piece is None:
            continue
        if is_prompt:
            planned.openings[opening] = piece
        else:
            planned.pieces.append(piece)
            planned.tails.append(request)
        left -= len(piece.token_ids) if is_prompt or len(piece.token_ids) > 1 else 0
    return planned
