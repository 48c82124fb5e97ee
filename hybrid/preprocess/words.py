"""Words whose tokens are known already: most words of a text have been seen before, and looking one up is cheaper.

BERT's tokenizers make the tokens of a word from the word alone, and what a word is, for plain ASCII, is told by two
rules: letters and digits side by side belong together, each punctuation mark is a word, white space ends one. So the
tokens of such a text are those of its words, which the library has made once: a line of text takes 5 us instead of 30.
All else is for the library: other scripts, control characters, and texts in which a special token may be hidden.

Knows nothing of rows, batches and padding.
"""

import re
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WORD: Final = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_PLAIN: Final = "\t\n\r" + "".join(map(chr, range(0x20, 0x7F)))
#: Longer texts are cut first, and what is long in the library is not the looking up of words.
_LONGEST_TEXT: Final = 4096
#: Words that are kept, some 200 bytes each. Whoever sends no word twice makes them be forgotten, and the usual ones are
#: back soon.
_MOST: Final = 16_384
#: Longer ones are rare, and would make the bound one of words and not of bytes.
_LONGEST: Final = 40
#: A word alone takes the library twice as long as in a text. So of a text that is mostly new, only so many are learned
#: beside.
_NEW_AT_ONCE: Final = 4
_PROBE: Final = "Don't stop-believing: x_y, (3.14) unbelievably FAST~ and $#@!"


class KnownWords:
    """Tokens of words, for a tokenizer of BERT's kind; for any other there are none.

    Args:
        tokenizer: truncates to `max_tokens`, special tokens included.
        max_tokens: more than the special tokens.
    """

    def __init__(self, tokenizer: "Tokenizer", max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        self._before: list[int] = []
        self._after: list[int] = []
        self._longest = max_tokens
        self._plain: re.Pattern[str] | None = None
        characters = _plain_characters(tokenizer) if _is_bert(tokenizer) else ""
        if characters:
            self._before, self._after = _special_ids(tokenizer)
            self._longest -= len(self._after)
            self._plain = re.compile(f"[{re.escape(characters)}]*")
            if not self._is_right():
                self._plain = None

    def ids(self, text: str) -> list[int] | None:
        """Return the token ids of a text, special tokens included; None where the tokenizer is to be asked."""
        plain = self._plain
        if plain is None or len(text) > _LONGEST_TEXT or plain.fullmatch(text) is None:
            return None
        known = self._known
        words: list[str] = _WORD.findall(text)
        new = [word for word in words if word not in known]
        if new:
            few = 2 * len(new) < len(words)
            if not self._learn(new if few else new[:_NEW_AT_ONCE]) or not few:
                return None
        ids = self._before.copy()
        for word in words:
            ids += known[word]
        if len(ids) > self._longest:
            del ids[self._longest :]
        ids += self._after
        return ids

    def _learn(self, words: Sequence[str]) -> bool:
        """Ask for the tokens of words and keep them. False where one is not kept, or others had to go for them."""
        if max(map(len, words)) > _LONGEST:
            return False
        forgets = len(self._known) + len(words) > _MOST
        if forgets:
            self._known.clear()
        made = self._tokenizer.encode_batch_fast(list(words), add_special_tokens=False)
        for word, encoding in zip(words, made, strict=True):
            self._known[word] = encoding.ids
        return not forgets

    def _is_right(self) -> bool:
        """Whether the words of a text with everything in it have the tokens that the text has."""
        self._learn(_WORD.findall(_PROBE))
        return self.ids(_PROBE) == self._tokenizer.encode(_PROBE).ids


def _is_bert(tokenizer: "Tokenizer") -> bool:
    """Whether words are what BERT's are, and each has tokens: without one for what is unknown, some raise an error."""
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.model)
    if [type(part).__name__ for part in parts] != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
        return False
    return tokenizer.token_to_id(tokenizer.model.unk_token) is not None


def _special_ids(tokenizer: "Tokenizer") -> tuple[list[int], list[int]]:
    """What a tokenizer puts before and after the tokens of each text."""
    whole = tokenizer.encode("a")
    start = whole.special_tokens_mask.index(0)
    end = start + whole.special_tokens_mask.count(0)
    return whole.ids[:start], whole.ids[end:]


def _plain_characters(tokenizer: "Tokenizer") -> str:
    """Those with which no added token begins: it counts as one wherever it stands in a text.

    None of them where one begins with a letter, or with what may be made a letter, or nothing, before it is looked for.
    """
    added = {token.content[:1] for token in tokenizer.get_added_tokens_decoder().values()}
    if added - {*string.punctuation}:
        return ""
    return "".join(character for character in _PLAIN if character not in added)
