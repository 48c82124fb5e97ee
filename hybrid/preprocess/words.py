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
#: Words that are kept, some 200 bytes each. A text that is made up has no word twice: then all are forgotten, and the
#: usual ones are back soon.
_MOST: Final = 16_384
#: Longer ones are rare, and would make the bound one of words and not of bytes.
_LONGEST: Final = 40


class KnownWords:
    """Tokens of words, for a tokenizer of BERT's kind; for any other there are no words.

    Args:
        tokenizer: truncates to `max_tokens`, special tokens included.
        max_tokens: more than the special tokens.
    """

    def __init__(self, tokenizer: "Tokenizer", max_tokens: int) -> None:
        self._known: dict[str, list[int]] = {}
        self._before, self._after = _special_ids(tokenizer)
        self._room = max_tokens - len(self._before) - len(self._after)
        characters = _plain_characters(tokenizer) if _is_bert(tokenizer) else ""
        self._plain = re.compile(f"[{re.escape(characters)}]*") if characters else None

    def split(self, text: str) -> list[str] | None:
        """Return the words of a text, None where only the tokenizer can tell them."""
        plain = self._plain
        if plain is None or len(text) > _LONGEST_TEXT or plain.fullmatch(text) is None:
            return None
        return _WORD.findall(text)

    def ids(self, words: Sequence[str]) -> list[int] | None:
        """Return the token ids of a text, special tokens included; None when a word is not known yet."""
        known = self._known
        ids = self._before.copy()
        for word in words:
            found = known.get(word)
            if found is None:
                return None
            ids += found
        if len(ids) > self._room + len(self._before):
            del ids[self._room + len(self._before) :]
        ids += self._after
        return ids

    def learn(self, words: Sequence[str], ids: Sequence[int], places: Sequence[int | None]) -> None:
        """Take in what the tokenizer made of a text. `places`: of each token, which word it is of; None if special."""
        tokens: dict[int, list[int]] = {}
        for token, place in zip(ids, places, strict=True):
            if place is not None:
                tokens.setdefault(place, []).append(token)
        if sum(map(len, tokens.values())) >= self._room:
            tokens.popitem()  # the last word may have been cut off
        elif len(tokens) != len(words):
            self._plain = None  # it has other rules after all
            return
        if len(self._known) + len(tokens) > _MOST:
            self._known.clear()
        for place, made in tokens.items():
            if len(words[place]) <= _LONGEST:
                self._known[words[place]] = made


def _is_bert(tokenizer: "Tokenizer") -> bool:
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.model)
    return [type(part).__name__ for part in parts] == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]


def _special_ids(tokenizer: "Tokenizer") -> tuple[list[int], list[int]]:
    """What a tokenizer puts before and after the tokens of each text."""
    bare, whole = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    return [], []


def _plain_characters(tokenizer: "Tokenizer") -> str:
    """Those with which no special token begins, in either case: it counts as one wherever it stands in a text."""
    added = {token.content[:1] for token in tokenizer.get_added_tokens_decoder().values()}
    if added & {*string.ascii_letters, *string.digits, *string.whitespace, ""}:
        return ""
    return "".join(character for character in _PLAIN if character not in added)
