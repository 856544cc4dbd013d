"""The prompts of the quickstart: one short question about one topic, made on the spot.

Training and evaluation share no topic, so that an evaluation prompt was not seen in any wording.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

THINGS = """
anchor apple bakery balloon bamboo banana battery beach bee bicycle bird book bread bridge butter butterfly cactus
camera candle carrot castle cat chair cheese chess chicken clock cloud coconut coffee compass computer copper coral
cotton cow crocodile desert diamond dog dolphin drum eagle earthquake egg elephant eclipse farm feather fire fish
flower forest fox frog garden giraffe glacier glass gold grape guitar hammer honey horse hospital hurricane ice insect
island jellyfish kangaroo kettle kitchen kite ladder lake lamp lemon library lighthouse lightning lion magnet map
market microscope milk mirror monkey moon mosquito mountain mushroom museum newspaper notebook ocean octopus olive
onion orange orchestra owl oxygen paint panda paper parrot peach pencil penguin pepper piano pillow pilot pizza planet
potato pumpkin pyramid rabbit radio rainbow rice river robot rocket rose salt sandwich school sculpture shark sheep
ship silver snail snow soap spider spoon star strawberry sugar sun swan table tea telescope theater thunder tiger
tomato train tree tulip turtle umbrella university village violin volcano water whale wheat wind window wolf zebra
"""

WORDS = """
ancient angry begin brave bright broken calm careful cheap clever cold cruel dangerous difficult dirty distant dry
early empty enormous famous fast finish gentle grateful happy hard heavy honest huge hungry large lazy lonely loud
lucky modern narrow noisy old patient polite poor proud quick quiet rare rich rough sad safe sharp shiny short shy
silent simple slow smart smooth soft sour strange strong sweet tall thick tiny tired ugly warm weak wet wide wild wise
young
"""

COUNTRIES = """
Argentina Australia Austria Bangladesh Belgium Brazil Bulgaria Canada Chile China Colombia Croatia Cuba Denmark Egypt
Ethiopia Finland France Germany Ghana Greece Hungary Iceland India Indonesia Iran Iraq Ireland Israel Italy Jamaica
Japan Kenya Malaysia Mexico Morocco Nepal Netherlands Nigeria Norway Pakistan Peru Poland Portugal Romania Russia
Spain Sudan Sweden Switzerland Thailand Turkey Ukraine Uruguay Vietnam
"""

QUESTIONS: tuple[tuple[str, Sequence[str]], ...] = (
    (
        THINGS,
        (
            "What is {a_topic}? Answer in one short sentence.",
            "Write one short sentence about {a_topic}.",
            "What is {a_topic} used for or known for? One sentence, please.",
            "Name one place where you can find {a_topic}.",
            "Explain to a child what {a_topic} is, in one sentence.",
        ),
    ),
    (
        WORDS,
        (
            'What is the opposite of "{topic}"? Answer with one word.',
            'Use the word "{topic}" in one short sentence.',
            'Give one synonym of "{topic}".',
        ),
    ),
    (
        COUNTRIES,
        (
            "What is the capital of {topic}?",
            "On which continent is {topic}? Answer briefly.",
            "Name one food from {topic}.",
            "Tell me one fact about {topic} in one sentence.",
        ),
    ),
)


def write_prompts(folder: Path, *, evaluation_topics: float = 0.15, seed: int = 0) -> tuple[Path, Path]:
    """Write `train.jsonl` and `evaluation.jsonl` (a `messages` column each), both shuffled."""
    rng = random.Random(seed)
    train: list[str] = []
    evaluation: list[str] = []
    for topics, templates in QUESTIONS:
        shuffled = topics.split()
        rng.shuffle(shuffled)
        held_out = round(len(shuffled) * evaluation_topics)
        evaluation += _fill(templates, shuffled[:held_out])
        train += _fill(templates, shuffled[held_out:])
    rng.shuffle(train)
    rng.shuffle(evaluation)
    folder.mkdir(parents=True, exist_ok=True)
    return _write(folder / "train.jsonl", train), _write(folder / "evaluation.jsonl", evaluation)


def _fill(templates: Sequence[str], topics: Sequence[str]) -> list[str]:
    return [template.format(topic=topic, a_topic=_article(topic)) for template in templates for topic in topics]


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _write(path: Path, questions: Sequence[str]) -> Path:
    rows = [json.dumps({"messages": [{"role": "user", "content": question}]}) for question in questions]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
