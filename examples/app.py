"""Handlers for the README's first five minutes: `shinar worker app:handlers --url phpmq://localhost:9100/emails`."""

from __future__ import annotations

from shinar import Context, GiveUp, Handlers, Message, Retry

handlers = Handlers()


@handlers.handler("urn:babel:users:registered")
def welcome(message: Message) -> None:
    print(f"welcome, user {message.data['user_id']} (trace {message.trace_id})", flush=True)


@handlers.handler("urn:babel:users:invited")
def invite(message: Message, context: Context) -> Retry | GiveUp | None:
    if "email" not in message.data:
        return GiveUp("an invitation needs an e-mail address")  # a dead letter at once
    if context.attempt == 1:
        return Retry(delay_s=1.0, error="the mail server is busy")
    print(f"invited {message.data['email']} at attempt {context.attempt}", flush=True)
    return None
