"""Words that are known: whatever was seen before, a text has the tokens that the library gives it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from hybrid.models import builtin
from hybrid.preprocess import words as module
from hybrid.preprocess.words import KnownWords

MAX_TOKENS = 12
USUAL = (
    "a",
    "boat",
    "The",
    "the",
    "unbelievably",
    "tokenised",
    "Zürich",
    "don't",
    "3.14",
    "x_y",
    "[SEP]",
    "[sep]",
    "[",
)
MARKS = (" ", "  ", "\t", "\n", "\v", "\x00", "\u00a0", "\u3000", "-", "!", "#", "\U0001f600", "中")


def tokenizer(max_tokens: int = MAX_TOKENS) -> Tokenizer:
    made = Tokenizer.from_file(str(Path(builtin.__file__).parent / "data" / "minilm" / "tokenizer.json"))
    made.no_padding()
    made.enable_truncation(max_tokens)
    return made


LIBRARY = tokenizer()
KNOWN = KnownWords(LIBRARY, MAX_TOKENS)  # shared: what one example has taught must not mislead the next


def ids(text: str, known: KnownWords = KNOWN, library: Tokenizer = LIBRARY) -> list[int]:
    """What a text preprocessor does."""
    words = known.split(text)
    found = known.ids(words) if words is not None else None
    if found is not None:
        return found
    encoding = library.encode_batch([text])[0]
    if words is not None:
        known.learn(words, encoding.ids, encoding.word_ids)
    made: list[int] = encoding.ids
    return made


texts = st.one_of(
    st.lists(st.sampled_from(USUAL + MARKS), max_size=14).map("".join),
    st.lists(st.sampled_from(USUAL), max_size=14).map(" ".join),
    st.text(st.characters(max_codepoint=0x7F), max_size=40),
    st.text(max_size=30),
)


@given(texts)
def test_known_or_not_the_tokens_are_those_of_the_library(text: str) -> None:
    expected = LIBRARY.encode(text).ids
    assert ids(text) == expected
    assert ids(text) == expected


def test_a_line_of_words_is_known_from_the_second_time_on() -> None:
    known = KnownWords(LIBRARY, MAX_TOKENS)
    assert known.ids(["A", "boat"]) is None
    ids("A small boat", known)
    words = known.split("boat A")
    assert words == ["boat", "A"]
    assert known.ids(words) == LIBRARY.encode("boat A").ids


@pytest.mark.parametrize("text", ["a [MASK] b", "h\u00e9llo", "a\x00b", "a\x0bb", "word " * 1000])
def test_what_only_the_library_can_tell_is_left_to_it(text: str) -> None:
    assert KNOWN.split(text) is None


def test_a_word_that_was_cut_off_is_not_learned() -> None:
    known, short = KnownWords(tokenizer(6), 6), tokenizer(6)
    for text in ("unbelievably unbelievably", "unbelievably", "a b c d", "a b c d e", "d"):
        assert ids(text, known, short) == short.encode(text).ids
        assert ids(text, known, short) == short.encode(text).ids


def test_only_so_many_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 50)
    known = KnownWords(LIBRARY, MAX_TOKENS)
    for number in range(500):
        text = f"boat {number} {'x' * 60}"
        assert ids(text, known) == LIBRARY.encode(text).ids
        assert len(known._known) <= 50
    assert not any(len(word) > 40 for word in known._known)


def test_a_tokenizer_of_another_kind_knows_no_words() -> None:
    other = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))  # type: ignore[call-arg]
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    assert KnownWords(other, 8).split("a") is None
    other.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    other.normalizer = normalizers.BertNormalizer()
    assert KnownWords(other, 8).split("a") == ["a"]
    other.add_special_tokens(["boat"])  # any text may have it in the middle of a word
    assert KnownWords(other, 8).split("a") is None


def test_one_that_turns_out_to_have_other_rules_is_asked_from_then_on() -> None:
    known = KnownWords(LIBRARY, MAX_TOKENS)
    known.learn(["a", "b"], [5], [0])
    assert known.split("a") is None
    assert known.ids(["a"]) is None
