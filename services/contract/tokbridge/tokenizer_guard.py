"""The guard against a tokenizer class that segments differently from its own file (spec §2).

tokbridge itself encodes with `tokenizer.json`. Who uses the class that transformers builds for a folder (an inference
engine, the users of a trained student) gets other ids where transformers rebuilds a tokenizer by its class name.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from tokbridge.errors import TokenizerMismatchError
from tokbridge.hub import local_folder

PROBES = (
    "def f(xs):\n    return [x**2 for x in xs if x != 0]  # squares\n\n\n\treturn None",
    "It's 12345678 o'clock, they'RE at http://example.org/a_b?c=d&e=%20f — isn’t it?",
    "cafe\u0301, nai\u0308ve, हिन्दी में, สวัสดี, e\u0301\u0323, 한국어, 日本語テキスト, emoji 👩‍🚀",
    "   leading,  double   and trailing spaces   \r\n\r\n",
    "<think>\nx\n</think>\n\n<tool_call>{}</tool_call>",
)


def check_tokenizer_class(source: str | Path) -> None:
    """Compare the tokenizer that transformers builds for `source` with its `tokenizer.json`.

    Args:
        source: a folder with a `tokenizer.json`, or a hub id.

    Raises:
        HubError: a hub id that cannot be fetched.
        TokenizerMismatchError: they segment a probe text differently; says how to mend it.
    """
    from transformers import AutoTokenizer

    folder = local_folder(source)
    from_file = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
    built = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    for probe in PROBES:
        expected = from_file.encode(probe, add_special_tokens=False).ids
        got = built.encode(probe, add_special_tokens=False)
        if got != expected:
            found = "names the wrong model_type" if (folder / "config.json").is_file() else "is missing"
            raise TokenizerMismatchError(
                f"transformers builds a {type(built).__name__} for {Path(source).name} that gives {len(got)} ids where "
                f"tokenizer.json gives {len(expected)} on {probe!r}. config.json {found}: put the model's own "
                "config.json beside tokenizer.json (its model_type is enough, such as "
                '{"model_type": "minimax_m2"} or {"model_type": "qwen3_5"})'
            )
