"""Messages to clients, and waiting for their answers until a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode

from pfedbred.errors import SettingError, printable
from pfedbred.flower import wire

_NOBODY = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""What Flower answers in the place of a client that is gone; not an answer of the client's."""
_OFTEN, _SELDOM = 0.2, 1.0  # seconds between looks for answers, at first and later


def say(text: str) -> None:
    """A line in the server's log."""
    print(f"pfedbred: {text}", flush=True)


class Grid(Protocol):
    """What is used of Flower's Grid."""

    def get_node_ids(self) -> Iterable[int]:
        """Who is connected."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages; gives the number of each."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that have come."""


class Question(NamedTuple):
    """What a node is asked: a kind of message, as the ClientApp knows it, and its content."""

    kind: str
    content: RecordDict


class Answer(NamedTuple):
    """What came back from a node: a message, or what went wrong there."""

    content: RecordDict | None
    problem: str = ""


def ask(grid: Grid, questions: Mapping[int, Question], *, group: str, deadline: float) -> dict[int, Answer]:
    """Asks each node its question, and waits for the answers for ``deadline`` seconds. Who is late has none."""
    end = time.monotonic() + deadline
    messages = [
        Message(question.content, node, question.kind, ttl=deadline, group_id=group)
        for node, question in questions.items()
    ]
    sent = {number: node for number, node in zip(grid.push_messages(messages), questions, strict=False) if number}
    answers: dict[int, Answer] = {}
    pause = _OFTEN
    while sent and time.monotonic() < end:
        for reply in grid.pull_messages(list(sent)):
            node = sent.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error() and reply.error.code in _NOBODY:
                continue
            if reply.has_error():
                answers[node] = Answer(None, printable(" ".join(str(reply.error.reason).split()), 500))
            else:
                answers[node] = Answer(reply.content)
        if sent:
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(1.1 * pause, _SELDOM)
    return answers


def facts_of(answer: Answer, shape: Any, sender: str) -> Any:
    """What an answer says; raises SettingError if it is no answer."""
    if answer.content is None:
        raise SettingError(answer.problem)
    problem = wire.facts(answer.content, {}, sender).get("problem")
    if problem is not None:
        raise SettingError(str(problem))
    return wire.facts(answer.content, shape, sender)


def has_trained(answer: Answer) -> bool:
    """Whether a client has done the round, however its upload came out."""
    try:
        return "problem" not in wire.facts(answer.content, {}, "it") if answer.content else False
    except SettingError:
        return True  # it says something, though nobody knows what


def name_of(answer: Answer) -> str | None:
    """What a client is called that cannot take part, if it says so."""
    try:
        name = wire.facts(answer.content, {"name": str}, "it")["name"] if answer.content else None
    except SettingError:
        return None
    return printable(name, 100) if name else None
