"""Text to token ids, and ids to the padded tensors of a request. The only file that imports `tokenizers`."""

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from hybrid.config import TextSettings
from hybrid.errors import BadRequest, StartupError
from hybrid.messages import DTYPES, Signature, Tensor, TensorSpec
from hybrid.preprocess.base import Row
from hybrid.preprocess.words import KnownWords

#: Characters looked at first, per token wanted. English has about 5 per token, so one look nearly always suffices.
_CHARACTERS_PER_TOKEN: Final = 16
#: How far back from there a white space is searched, in characters.
_REACH: Final = 1024
#: Pre-tokenizers that never make a token across white space, so that a text may be cut there without changing tokens.
_CUT_AT_SPACE: Final = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
_KNOWN: Final = ("input_ids", "attention_mask", "token_type_ids")


class TextPreprocessor:
    """Tokenises UTF-8 text. A row is its int32 ids, cut to `max_tokens` with the special tokens kept."""

    def __init__(self, settings: TextSettings, signature: Signature) -> None:
        self._input = TensorSpec(settings.input, "BYTES", (-1,))
        self._max_tokens = settings.max_tokens
        self._pad_id = settings.pad_id
        self._tensors = _model_tensors(signature)
        self._tokenizer = _load(settings)
        self._words = KnownWords(self._tokenizer, settings.max_tokens)
        self._vocabulary: int = self._tokenizer.get_vocab_size()
        kind = type(self._tokenizer.pre_tokenizer).__name__
        self._first_look = settings.max_tokens * _CHARACTERS_PER_TOKEN if kind in _CUT_AT_SPACE else None

    @property
    def input(self) -> TensorSpec:
        """The text input that clients see."""
        return self._input

    def row(self, item: bytes) -> Row:
        """Return the ids of one text. An empty text is fine as long as the tokenizer adds special tokens.

        Raises:
            BadRequest: not UTF-8, or no tokens at all.
        """
        ids = self._ids(self._text(item))
        if not ids:
            raise BadRequest(f"input `{self._input.name}`: the text has no tokens")
        return (np.array(ids, np.int32),)

    def cheap_row(self, item: bytes) -> Row:
        """Return the ids of the beginning of a text: of 16 bytes for each token that the limit allows."""
        end = self._max_tokens * _CHARACTERS_PER_TOKEN
        if len(item) > end:
            first = end - 3  # a character has at most four bytes, and is not to be cut in two
            while end > first and item[end] & 0xC0 == 0x80:
                end -= 1
        return self.row(item[:end])

    def assemble(self, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Pad the rows to the longest of them, and make masks and token types."""
        if len(rows) == 1:
            return self._assemble_one(rows[0][0])
        longest = self.size(rows)
        shape = (len(rows), longest)
        ids, mask = np.full(shape, self._pad_id, np.int64), np.zeros(shape, np.int64)
        for index, (row,) in enumerate(rows):
            ids[index, : len(row)] = row
            mask[index, : len(row)] = 1
        made = {"input_ids": ids, "attention_mask": mask}
        return tuple(
            Tensor(name, datatype, _as(made[name] if name in made else np.zeros(shape, np.int64), datatype))
            for name, datatype in self._tensors
        )

    def _assemble_one(self, row: np.ndarray[Any, Any]) -> tuple[Tensor, ...]:
        """The same for one row, whose mask and token types all rows of its length share."""
        tensors = []
        for name, datatype in self._tensors:
            if name == "input_ids":
                array = _as(row, datatype).reshape(1, -1)
            else:
                array = _constant(len(row), datatype, int(name == "attention_mask"))
            tensors.append(Tensor(name, datatype, array))
        return tuple(tensors)

    def size(self, rows: Sequence[Row]) -> int:
        """Return the tokens of the longest row."""
        return max(len(row[0]) for row in rows)

    def tokens(self, rows: Sequence[Row]) -> int:
        """Return the tokens of all rows together."""
        return sum([len(row[0]) for row in rows])

    def row_of_ids(self, ids: Sequence[int]) -> Row:
        """Take the ids that a client sends, special tokens included; nothing is cut off.

        Raises:
            BadRequest: none at all, more than `max_tokens`, or one that the vocabulary does not have.
        """
        if not 0 < len(ids) <= self._max_tokens:
            raise BadRequest(f"expected 1 to {self._max_tokens} token ids, got {len(ids)}")
        if not 0 <= min(ids) <= max(ids) < self._vocabulary:
            wrong = next(token for token in ids if not 0 <= token < self._vocabulary)
            raise BadRequest(f"token id {wrong} is none of the vocabulary, which has {self._vocabulary}")
        return (np.array(ids, np.int32),)

    def _text(self, item: bytes) -> str:
        try:
            return str(item, "utf-8")
        except UnicodeDecodeError as error:
            raise BadRequest(
                f"input `{self._input.name}`: expected UTF-8 text, byte {error.start} is not ({error.reason})"
            ) from error

    def _ids(self, text: str) -> list[int]:
        """Tokenise only as much of the text as the limit leaves of it.

        Whatever follows the first `max_tokens` tokens is cut off anyway, but a tokenizer works through a text of
        megabytes first, which takes seconds. A prefix that ends before a white space and fills the limit has the same
        tokens as the whole text; one that does not is doubled.
        """
        look = self._first_look
        while look is not None and look < len(text):
            end = _last_space(text, look)
            if end > 0:
                ids = self._encode(text[:end])
                if len(ids) == self._max_tokens:
                    return ids
            look *= 2
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        ids = self._words.ids(text)
        if ids is None:
            # The fast one does not work out where in the text each token was, which nobody asks for.
            ids = self._tokenizer.encode_batch_fast([text])[0].ids
        return ids


def _load(settings: TextSettings) -> Tokenizer:
    # Its own thread pool would be sized to the host; the processes of the pool are the parallelism.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    path = settings.tokenizer
    if not os.path.isfile(path):
        raise StartupError(f"{path}: no such file; expected a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:
        raise StartupError(f"{path}: not a tokenizer.json that can be loaded: {error}") from error
    special = tokenizer.num_special_tokens_to_add(False)
    if settings.max_tokens <= special:
        raise StartupError(
            f"{path}: max_tokens is {settings.max_tokens}, and this tokenizer adds {special} special tokens to each "
            f"text; expected at least {special + 1}"
        )
    tokenizer.no_padding()
    tokenizer.enable_truncation(settings.max_tokens)
    return tokenizer


def _model_tensors(signature: Signature) -> tuple[tuple[str, str], ...]:
    """The id tensors that this model takes, with their datatypes, in its own order."""
    tensors = tuple((spec.name, spec.datatype) for spec in signature.inputs)
    names = [name for name, _ in tensors]
    wrong = [name for name, datatype in tensors if name not in _KNOWN or datatype not in ("INT64", "INT32")]
    if wrong or "input_ids" not in names:
        raise StartupError(
            f"preprocess text makes {', '.join(_KNOWN)} as INT64 or INT32; the model takes "
            + ", ".join(f"{name} {datatype}" for name, datatype in tensors)
        )
    return tensors


def _as(array: np.ndarray[Any, Any], datatype: str) -> np.ndarray[Any, Any]:
    return array.astype(DTYPES[datatype], copy=False)


@lru_cache(maxsize=256)
def _constant(length: int, datatype: str, value: int) -> np.ndarray[Any, Any]:
    array = np.full((1, length), value, DTYPES[datatype])
    array.flags.writeable = False
    return array


def _last_space(text: str, end: int) -> int:
    """Where to cut before `end`: the position of a white space, 0 when there is none within reach.

    Not `isspace()`: BERT's normalizer drops some of the characters that Python calls space, and joins their neighbours.
    """
    for position in range(end - 1, max(0, end - _REACH), -1):
        if text[position] in " \t\r\n":
            return position
    return 0
