"""The responses of a soak, each with the rows it has when nothing else goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from support.fuzzed_teacher import TOOL
from support.requests_for import request_for
from tokbridge.client import ScoreRequest, StudentRegistration, TeacherClient
from tokbridge.errors import ErrorCode
from tokbridge.modes import Routing, Spanning
from tokbridge.targets import TargetRows
from tokbridge.tokenizer_profile import TokenizerProfile

LONG_TOKENS = 1500
_WORDS = (
    "she sells sea shells by the shore the answer is forty-two def add(first, second): return 12 345 東京 🙂 naïve \n"
)
_MODES = ((Routing.GREEDY, Spanning.REALIZED), (Routing.BPE, Spanning.REALIZED), (Routing.BPE, Spanning.LOOKAHEAD))


@dataclass(frozen=True)
class Scored:
    """A request and its rows."""

    request: ScoreRequest
    rows: TargetRows


@dataclass(frozen=True)
class Wrong:
    """A request that no service takes, and the error it meets."""

    request: ScoreRequest
    code: ErrorCode


@dataclass(frozen=True)
class Pool:
    """Requests of one student by length; the long ones are above the service's `batch_tokens`."""

    student: StudentRegistration
    short: Sequence[Scored]
    medium: Sequence[Scored]
    long: Sequence[Scored]
    wrong: Sequence[Wrong]

    def draw(self, random: Random) -> Scored:
        """Mixed lengths, most of them short."""
        return random.choice(random.choices((self.short, self.medium, self.long), (60, 35, 5))[0])


async def build_pool(client: TeacherClient, profile: TokenizerProfile, student: StudentRegistration) -> Pool:
    """Score each request alone, one after the other, on a connected client."""
    random = Random(5)
    short, medium, long = (
        [_request(profile, random, number, words) for number in range(count)]
        for count, words in ((12, (1, 12)), (8, (30, 120)), (3, (1, 1)))
    )
    long = [_longest(profile, request, number) for number, request in enumerate(long)]

    async def scored(requests: list[ScoreRequest]) -> list[Scored]:
        return [Scored(request, (await client.score(request)).rows) for request in requests]

    return Pool(student, await scored(short), await scored(medium), await scored(long), _wrong(short[0], long[0]))


def _request(profile: TokenizerProfile, random: Random, number: int, words: tuple[int, int]) -> ScoreRequest:
    text = " ".join(random.choices(_WORDS.split(" "), k=random.randint(*words))) or "a"
    routing, spanning = _MODES[number % len(_MODES)]
    changes = {} if number % 4 else {"tools": [TOOL], "stop_id": None}
    question = [{"role": "user", "content": f"Question {number % 3}: how many shells?"}]
    top_k, mass = ((0, 0.0), (400, 1.0), (7, 0.9))[number % 3]
    return request_for(
        profile,
        text,
        messages=question,
        routing=routing,
        spanning=spanning,
        top_k=top_k,
        mass=mass,
        request_id="",
        **changes,
    )


def _longest(profile: TokenizerProfile, like: ScoreRequest, number: int) -> ScoreRequest:
    """A finished response of about `LONG_TOKENS` student tokens; the first with all its cells."""
    text = f"{number} she sells sea shells, 12 of them; " * (LONG_TOKENS // 12)
    fields = {"messages": like.messages, "routing": like.routing, "spanning": like.spanning, "request_id": ""}
    return request_for(profile, text, **fields, top_k=400 if number == 0 else 0, mass=1.0 if number == 0 else 0.0)


def _wrong(short: ScoreRequest, long: ScoreRequest) -> list[Wrong]:
    ids, endless = short.token_ids, [{"role": "user", "content": "long " * 5000}]
    return [
        Wrong(replace(short, response=short.response + b"x"), ErrorCode.TOKENS_DO_NOT_SPELL_RESPONSE),
        Wrong(replace(short, token_ids=ids + 100_000), ErrorCode.TOKEN_ID_OUT_OF_RANGE),
        Wrong(replace(short, stop_id=1), ErrorCode.STOP_TOKEN_NOT_IN_STOP_SET),
        Wrong(replace(short, messages=endless), ErrorCode.CONTEXT_LENGTH_EXCEEDED),
        Wrong(replace(short, messages=[{"role": "nobody", "content": "x"}]), ErrorCode.CHAT_TEMPLATE_FAILED),
        Wrong(replace(long, top_k=5000), ErrorCode.LIMIT_EXCEEDED),
    ]
