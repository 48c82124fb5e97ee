"""Text to ids and tensors, with the vendored tokenizer and with broken ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from hybrid.config import ImageSettings, PreprocessSettings, TextSettings
from hybrid.errors import BadRequest, StartupError
from hybrid.messages import Signature, TensorSpec
from hybrid.models import builtin
from hybrid.preprocess.base import Preprocessor
from hybrid.preprocess.build import build
from hybrid.preprocess.text import TextPreprocessor

TOKENIZER = str(Path(builtin.__file__).parent / "data" / "minilm" / "tokenizer.json")
NAMES = ("input_ids", "attention_mask", "token_type_ids")
CLS, SEP = 101, 102


def signature(*names: str, datatype: str = "INT64") -> Signature:
    return Signature(tuple(TensorSpec(n, datatype, (-1, -1)) for n in names or NAMES), ())


def step(
    max_tokens: int = 16, model: Signature | None = None, tokenizer: str = TOKENIZER, pad_id: int = 0
) -> Preprocessor:
    text = TextSettings(tokenizer=tokenizer, max_tokens=max_tokens, pad_id=pad_id)
    made = build(PreprocessSettings(text=text), model or signature())
    assert made is not None
    return made


@pytest.fixture(scope="module")
def plain() -> Preprocessor:
    return step()


def ids(made: Preprocessor, text: str) -> list[int]:
    (row,) = made.row(text.encode())
    assert row.dtype == np.int32
    return row.tolist()


def test_known_ids(plain: Preprocessor) -> None:
    assert plain.input == TensorSpec("text", "BYTES", (-1,))
    assert ids(plain, "Hello world!") == [CLS, 7592, 2088, 999, SEP]
    assert ids(plain, "") == [CLS, SEP]
    assert ids(plain, "héllo WORLD !") == ids(plain, "hello world!")


def test_long_text_is_cut_with_its_special_tokens_kept(plain: Preprocessor) -> None:
    row = ids(plain, "word " * 100)
    assert len(row) == 16
    assert (row[0], row[-1]) == (CLS, SEP)


@pytest.mark.parametrize(
    "text",
    [
        "one two three " * 2000,
        "x" * 5000 + " end",
        " " * 5000 + "late words after white space " * 50,
        "   " + "y" * 300 + " z" * 3000,
        "漢字" * 3000,
        "a\x1cb\tc\nd " * 2000,
        ("word" * 60 + " ") * 100,
    ],
)
def test_looking_at_a_prefix_changes_nothing(plain: Preprocessor, text: str) -> None:
    whole = Tokenizer.from_file(TOKENIZER)
    whole.enable_truncation(16)
    assert ids(plain, text) == whole.encode(text).ids


def test_of_a_text_of_megabytes_only_the_start_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    made = step()
    seen: list[int] = []
    encode = TextPreprocessor._encode
    monkeypatch.setattr(TextPreprocessor, "_encode", lambda self, text: seen.append(len(text)) or encode(self, text))
    assert len(ids(made, "lorem ipsum dolor " * 500_000)) == 16
    assert sum(seen) <= 16 * 16
    seen.clear()
    ids(made, "\n" * 1000 + "lorem ipsum dolor " * 500_000)
    assert sum(seen) < 5000


def test_bad_utf8_names_the_byte(plain: Preprocessor) -> None:
    with pytest.raises(BadRequest, match="input `text`: expected UTF-8 text, byte 2 is not"):
        plain.row(b"ab\xff")
    with pytest.raises(BadRequest, match="byte 0 is not"):
        plain.row(b"\xc3")


def test_the_cheap_form_looks_at_the_beginning_only() -> None:
    made = step()
    text = "long words without any end " * 5000
    assert made.cheap_row(text.encode())[0].tolist() == ids(made, text)
    assert made.cheap_row(b"short")[0].tolist() == ids(made, "short")


@pytest.mark.parametrize("character", ["e", "é", "漢", "\U0001f600"])
@pytest.mark.parametrize("shift", range(4))
def test_the_cheap_form_cuts_no_character_in_two(character: str, shift: int) -> None:
    made = step()
    (row,) = made.cheap_row(("x" * shift + character * 500).encode())
    assert (row[0], row[-1]) == (CLS, SEP)
    with pytest.raises(BadRequest, match="expected UTF-8"):
        made.cheap_row(b"\x80" * 5000)


def test_assemble_pads_to_the_longest_of_the_request() -> None:
    made = step(pad_id=7)
    rows = [made.row(b"hello"), made.row(b"hello big world")]
    tensors = {t.name: t for t in made.assemble(rows)}
    assert list(tensors) == list(NAMES)
    assert {t.datatype for t in tensors.values()} == {"INT64"}
    assert tensors["input_ids"].array.tolist() == [[CLS, 7592, SEP, 7, 7], [CLS, 7592, 2502, 2088, SEP]]
    assert tensors["attention_mask"].array.tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert tensors["token_type_ids"].array.tolist() == [[0] * 5] * 2
    assert made.size(rows) == 5
    assert made.size(rows[:1]) == 3


def test_only_what_the_model_takes_is_made_in_its_type() -> None:
    made = step(model=signature("attention_mask", "input_ids", datatype="INT32"))
    tensors = made.assemble([made.row(b"a")])
    assert [(t.name, t.array.dtype.name) for t in tensors] == [("attention_mask", "int32"), ("input_ids", "int32")]


@pytest.mark.parametrize(
    "model",
    [signature("input_ids", "pixels"), signature("attention_mask"), signature("input_ids", datatype="FP32")],
)
def test_a_model_that_takes_something_else(model: Signature) -> None:
    with pytest.raises(StartupError, match="preprocess text makes input_ids"):
        step(model=model)


def test_broken_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no such file; expected a tokenizer"):
        step(tokenizer=str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{]")
    with pytest.raises(StartupError, match=r"bad\.json: not a tokenizer\.json"):
        step(tokenizer=str(tmp_path / "bad.json"))
    with pytest.raises(StartupError, match="max_tokens is 2, and this tokenizer adds 2 special tokens"):
        step(max_tokens=2)


def test_settings_inside_the_file_do_not_count(tmp_path: Path) -> None:
    data = json.loads(Path(TOKENIZER).read_text())
    data["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    data["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (tmp_path / "t.json").write_text(json.dumps(data))
    assert ids(step(tokenizer=str(tmp_path / "t.json")), "hello big world") == [CLS, 7592, 2502, 2088, SEP]


def test_no_tokens_at_all(tmp_path: Path) -> None:
    data = json.loads(Path(TOKENIZER).read_text())
    data["post_processor"] = None
    (tmp_path / "t.json").write_text(json.dumps(data))
    with pytest.raises(BadRequest, match="the text has no tokens"):
        step(tokenizer=str(tmp_path / "t.json")).row(b" ")


def test_none_and_both() -> None:
    assert build(PreprocessSettings(), signature()) is None
    with pytest.raises(StartupError, match="got both"):
        build(PreprocessSettings(text=TextSettings(), image=ImageSettings()), signature())


def test_ids_that_a_client_sends(plain: Preprocessor) -> None:
    (row,) = plain.row_of_ids([CLS, 7592, SEP])
    assert (row.dtype, row.tolist()) == (np.int32, [CLS, 7592, SEP])
    assert plain.tokens([(row,), plain.row(b"hello world")]) == 3 + 4
    assert plain.row_of_ids([30521] * 16)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "expected 1 to 16 token ids, got 0"),
        ([1] * 17, "expected 1 to 16 token ids, got 17"),
        ([1, 30522], "token id 30522 is none of the vocabulary, which has 30522"),
        ([-1], "token id -1 is none of the vocabulary"),
    ],
)
def test_ids_that_cannot_be(plain: Preprocessor, given: list[int], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        plain.row_of_ids(given)
