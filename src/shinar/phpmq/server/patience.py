"""When a client has used up the broker's patience. Decides; cuts nobody off."""

from __future__ import annotations

from shinar.phpmq.engine import Options
from shinar.phpmq.server.connection import Connection


def overdue(client: Connection, options: Options, now_s: float) -> str | None:
    """Why this client has to go; None while it may stay."""
    if client.closing_since_s is not None:
        over = now_s - client.closing_since_s > options.stop_s
        return "it does not take its last frame" if over else None
    if client.frame_since_s is not None and client.pending_bytes:
        allowed_s = options.frame_s + client.pending_bytes / options.slowest_bytes_s
        if now_s - client.frame_since_s > allowed_s:
            return "a frame was begun and not finished in time"
    if client.frames == 0 and now_s - client.since_s > options.first_frame_s:
        return "it connected and said nothing"
    # A plain consumer may be busy for as long as it may hold a message.
    unread_s = options.unread_s if client.extended else options.plain_lease_s
    if client.unread_since_s is not None and now_s - client.unread_since_s > unread_s:
        return "it does not read what it asked for"
    return None
