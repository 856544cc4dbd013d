"""The guard against a tokenizer class that segments differently from its own file (spec §2).

tokbridge itself encodes with `tokenizer.json`. Who uses the class that transformers builds for a folder (an inference
engine, the users of a trained student) gets other ids where transformers rebuilds a tokenizer by its class name.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from tokbridge.errors import TokenizerMismatchError

PROBES = (
    "def f(xs):\n    return [x**2 for x in xs if x != 0]  # squares\n\n\n\treturn None",
    "It's 12345678 o'clock, they'RE at http://example.org/a_b?c=d&e=%20f — isn’t it?",
    "cafe\u0301, nai\u0308ve, हिन्दी में, สวัสดี, e\u0301\u0323, 한국어, 日本語テキスト, emoji 👩‍🚀",
    "   leading,  double   and trailing spaces   \r\n\r\n",
    "<think>\nx\n</think>\n\n<tool_call>{}</tool_call>",
)


def check_tokenizer_class(source: str | Path, tokenizer_json: str | None = None) -> None:
    """Compare the tokenizer that transformers builds for `source` with its `tokenizer.json`.

    Args:
        source: a folder or a hub id.
        tokenizer_json: the file's text, if it has been read already; needed for a hub id.

    Raises:
        TokenizerMismatchError: they segment a probe text differently; says how to mend it.
    """
    from transformers import AutoTokenizer

    text = tokenizer_json or Path(source, "tokenizer.json").read_text(encoding="utf-8")
    from_file = Tokenizer.from_str(text)
    built = AutoTokenizer.from_pretrained(source)
    for probe in PROBES:
        expected = from_file.encode(probe, add_special_tokens=False).ids
        got = built.encode(probe, add_special_tokens=False)
        if got != expected:
            raise TokenizerMismatchError(_message(Path(source), type(built).__name__, probe, len(got), len(expected)))


def _message(folder: Path, class_name: str, probe: str, got: int, expected: int) -> str:
    found = "names the wrong model_type" if (folder / "config.json").is_file() else "is missing"
    return (
        f"transformers builds a {class_name} for {folder.name} that gives {got} ids where tokenizer.json gives "
        f"{expected} on {probe!r}. config.json {found}: put the model's own config.json beside tokenizer.json "
        '(its model_type is enough, such as {"model_type": "minimax_m2"} or {"model_type": "qwen3_5"})'
    )
