"""Words that are known: whatever was seen before, a text has the tokens that the library gives it."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

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
    made = known.ids(text)
    return library.encode_batch_fast([text])[0].ids if made is None else made


texts = st.one_of(
    st.lists(st.sampled_from(USUAL + MARKS), max_size=14).map("".join),
    st.lists(st.sampled_from(USUAL), max_size=14).map(" ".join),
    st.text(st.characters(max_codepoint=0x7F), max_size=40),
    st.text(max_size=30),
)


@given(texts)
def test_known_or_not_the_tokens_are_those_of_the_library(text: str) -> None:
    expected = LIBRARY.encode(text).ids
    for _ in range(3):
        assert ids(text) == expected


def test_words_that_were_seen_are_known_in_any_order() -> None:
    known = KnownWords(LIBRARY, MAX_TOKENS)
    assert known.ids("A small boat") is None  # all of it is new
    assert known.ids("boat A") == LIBRARY.encode("boat A").ids


def test_a_few_new_words_among_known_ones_are_learned_at_once() -> None:
    known = KnownWords(LIBRARY, MAX_TOKENS)
    known.ids("A small boat")
    assert known.ids("A small boat sails") == LIBRARY.encode("A small boat sails").ids
    assert known.ids("sails") is not None


def test_of_a_text_that_is_all_new_a_part_is_learned_each_time() -> None:
    text = "over the quiet lake two birds follow it home"
    known, found = KnownWords(LIBRARY, MAX_TOKENS), []
    while not found or found[-1] is None:
        found.append(known.ids(text))
    assert found == [None, None, LIBRARY.encode(text).ids][-len(found) :]


@pytest.mark.parametrize("text", ["a [MASK] b", "h\u00e9llo", "a\x00b", "a\x0bb", "word " * 1000, "x" * 41])
def test_what_only_the_library_can_tell_is_left_to_it(text: str) -> None:
    assert KNOWN.ids(text) is None
    assert KNOWN.ids(text) is None


def test_no_more_tokens_than_the_limit_however_they_are_known() -> None:
    known, short = KnownWords(tokenizer(6), 6), tokenizer(6)
    for text in ("unbelievably unbelievably", "unbelievably", "a b c d", "a b c d e", "d", "a b c unbelievably"):
        for _ in range(3):
            assert ids(text, known, short) == short.encode(text).ids


def test_only_so_many_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 50)
    known = KnownWords(LIBRARY, MAX_TOKENS)
    for number in range(500):
        text = f"a boat on the lake {number} {'x' * 30}"
        assert ids(text, known) == LIBRARY.encode(text).ids
        assert len(known._known) <= 50


def test_a_tokenizer_of_another_kind_knows_no_words() -> None:
    other = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))  # type: ignore[call-arg]
    other.enable_truncation(8)
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    known = KnownWords(other, 8)
    known.ids("a")
    assert known.ids("a a a") is None
    other.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    other.normalizer = normalizers.BertNormalizer()
    known = KnownWords(other, 8)
    known.ids("a")
    assert known.ids("a a a") == [1, 1, 1]
    other.add_special_tokens(["boat"])  # any text may have it in the middle of a word
    known = KnownWords(other, 8)
    known.ids("a")
    assert known.ids("a a a") is None


@pytest.mark.parametrize(
    "content", ["\u00cele de France", "\u00c9-mail", "\u00a0foo", "\u2260", "\x00foo", " foo", "the"]
)
def test_an_added_token_that_plain_text_may_become_leaves_all_to_the_library(content: str) -> None:
    library = tokenizer()
    library.add_tokens([AddedToken(content, normalized=True)])
    known = KnownWords(library, MAX_TOKENS)
    for text in ("ile de france", "e-mail", "a foo", "a=b", "the boat"):
        for _ in range(3):
            assert known.ids(text) is None


def test_without_a_token_for_the_unknown_the_library_says_what_is_wrong() -> None:
    bare = Tokenizer(models.WordPiece({"a": 0, "boat": 1}, unk_token="[UNK]"))  # type: ignore[call-arg]
    bare.normalizer, bare.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    assert KnownWords(bare, 8).ids("boat") is None


def test_special_tokens_are_told_from_a_word_that_looks_like_one() -> None:
    odd = Tokenizer(models.WordPiece({"a": 0, "[SEP]": 1, "boat": 2}, unk_token="a"))  # type: ignore[call-arg]
    odd.normalizer, odd.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    odd.post_processor = processors.TemplateProcessing(single="a $A [SEP]", special_tokens=[("a", 0), ("[SEP]", 1)])
    odd.enable_truncation(3)
    known = KnownWords(odd, 3)
    known.ids("boat boat")
    assert known.ids("boat boat boat") == odd.encode("boat boat boat").ids == [0, 2, 1]


def test_one_that_turns_out_to_have_other_rules_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORD", re.compile(r"\w+"))
    known = KnownWords(LIBRARY, MAX_TOKENS)
    known.ids("boat")
    assert known.ids("boat") is None
