"""What a line, a folder and an array become: rows, or faults in their place."""

import base64
import json
import os
from pathlib import Path

import numpy as np
import pytest

from hybrid.errors import ConfigError
from hybrid.messages import Signature, TensorSpec
from hybrid.offline.array_file import ArrayReader, header
from hybrid.offline.json_rows import JsonRows
from hybrid.offline.rows import Fault, InputRow, Picture, Tensors, Text
from hybrid.offline.source import open_source

MODEL = Signature((TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "FP32", (-1, 3)),))


def row(line: str | bytes, folder: Path = Path()) -> InputRow:
    return JsonRows(folder).read(4, line if isinstance(line, bytes) else line.encode(), 7)


def rows(name: Path, kind: str | None = None, start: int = 0) -> list[InputRow]:
    source = open_source(str(name), kind)  # type: ignore[arg-type]
    try:
        return [found for found, _ in source.read(start)]
    finally:
        source.close()


def test_the_three_kinds_of_json_rows(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    assert row('{"id": "k", "text": "héllo", "other": [1]}') == InputRow(4, Text("héllo".encode()), "k", 6)
    assert row('{"id": 9, "text": ""}') == InputRow(4, Text(b""), 9, 0)
    assert row('{"image": "a.png"}', tmp_path) == InputRow(4, Picture(b"\x89PNG"), None, 4)
    encoded = base64.b64encode(b"x" * 3000).decode()
    assert row(json.dumps({"image": encoded})).content == Picture(encoded.encode())
    found = row('{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2.5]}]}')
    assert isinstance(found.content, Tensors)
    assert found.content.tensors[0].array.tolist() == [[1.0, 2.5]]
    assert found.nbytes == 8


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 7: not JSON"),
        ("[1]", "line 7: expected `object`, got `array`"),
        ('{"text": 5}', "line 7: expected `str | null`, got `int` - at `$.text`"),
        ("{}", "line 7: expected one of `text`, `image` and `inputs`, got none"),
        ('{"text": "a", "image": "b"}', "got text and image"),
        ('{"text": "\\ud800"}', "line 7: not JSON"),
        (b'{"text": "\xff"}', "line 7: not JSON"),
        ('{"id": 1.5, "text": "a"}', "at `$.id`"),
        ('{"id": 99999999999999999999, "text": "a"}', "line 7: `id`: expected a string or a number of 64 bits"),
        ('{"image": "no/such.jpg"}', "image 'no/such.jpg': no such file"),
        (
            '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1]}]}',
            "line 7: input 'x': data has 1 elements",
        ),
        ('{"inputs": ' + "[" * 2000 + "]" * 2000 + "}", "line 7: "),
    ],
)
def test_what_is_wrong_with_a_line(line, words):
    found = row(line)
    assert isinstance(found.content, Fault)
    assert words in found.content.text
    assert found.index == 4


def test_the_id_of_a_bad_line_is_kept_where_it_can_be_read():
    assert row('{"id": "k", "text": 5}').id == "k"
    assert row('{"id": "k"}').id == "k"
    assert row('{"id": "k", "text"').id is None


def test_names_that_no_file_can_have_are_base64(tmp_path):
    for value in ("A" * 300, "a/" * 2000, "a\0b"):
        assert row(json.dumps({"image": value}), tmp_path).content == Picture(value.encode())


def test_blank_lines_are_rows_of_text_and_none_of_json(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\r\n")
    assert [r.content for r in rows(tmp_path / "a.txt")] == [Text(b"one"), Text(b""), Text(b"two")]
    (tmp_path / "a.jsonl").write_bytes(b'\n{"text":"one"}\n  \n{"text":"two"}\n\n')
    found = rows(tmp_path / "a.jsonl")
    assert [(r.index, r.content) for r in found] == [(0, Text(b"one")), (1, Text(b"two"))]
    assert rows(tmp_path / "a.jsonl", start=1) == found[1:]
    assert rows(tmp_path / "a.jsonl", start=2) == []


def test_a_folder_is_its_images_in_order_of_their_paths(tmp_path):
    for name in ("b.JPG", "a.png", "sub/c.webp", "notes.txt", ".hidden.png", ".git/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    found = rows(tmp_path)
    assert [(r.index, r.id, r.content) for r in found] == [
        (0, "a.png", Picture(b"a.png")),
        (1, "b.JPG", Picture(b"b.JPG")),
        (2, "sub/c.webp", Picture(b"sub/c.webp")),
    ]
    assert rows(tmp_path, start=2) == found[2:]


def test_a_folder_without_images_is_refused_by_name(tmp_path):
    for name in ("rows.jsonl", ".hidden.png", ".git/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ConfigError) as refused:
        open_source(str(tmp_path), None)
    assert str(refused.value) == (
        f"{tmp_path}: no images in this folder or below; expected files that end with "
        ".jpg, .jpeg, .png, .webp, .gif, .bmp, .tif, .tiff"
    )


def test_an_image_that_went_away_is_a_fault(tmp_path):
    (tmp_path / "a.png").write_bytes(b"a")
    source = open_source(str(tmp_path), None)
    (tmp_path / "a.png").unlink()
    ((found, _),) = source.read(0)
    assert found.content == Fault("cannot be read: No such file or directory")


def test_a_folder_knows_its_content(tmp_path):
    (tmp_path / "a.png").write_bytes(b"a")
    before = open_source(str(tmp_path), None).facts()
    assert open_source(str(tmp_path), None).facts() == before
    (tmp_path / "a.png").rename(tmp_path / "b.png")
    assert open_source(str(tmp_path), None).facts() != before


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("none.jsonl", None, "no such file"),
        ("a.csv", None, "the suffix says nothing of the format"),
        (".", "text", "is a folder, which cannot be read as text"),
        ("-", "npy", "standard input cannot be read as npy"),
        ("a.csv", "npy", "expected a .npy file"),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, name, kind, words):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("1,2\n")
    with pytest.raises(ConfigError, match=words):
        open_source(name, kind)


# Arrays ------------------------------------------------------------------------------------------------------------


def reader(path: Path, array: np.ndarray) -> ArrayReader:
    np.save(path, array)
    return ArrayReader(os.open(path, os.O_RDONLY), str(path))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_rows_of_an_array_are_tensors_of_the_models_input(tmp_path, dtype):
    array = np.arange(15, dtype=dtype).reshape(5, 3)
    source = reader(tmp_path / "a.npy", array)
    source.fit(MODEL, "m")
    found = [r for r, _ in source.read(2)]
    source.close()
    assert [r.index for r in found] == [2, 3, 4]
    tensors = [r.content.tensors[0] for r in found]
    assert all((t.name, t.datatype, t.array.dtype, t.array.shape) == ("x", "FP32", np.float32, (1, 3)) for t in tensors)
    assert np.concatenate([t.array for t in tensors]).tolist() == array[2:].tolist()


def test_blocks_of_an_array_join(tmp_path, monkeypatch):
    monkeypatch.setattr("hybrid.offline.array_file._BLOCK_BYTES", 30)
    array = np.random.default_rng(1).random((11, 3)).astype(np.float32)
    source = reader(tmp_path / "a.npy", array)
    source.fit(MODEL, "m")
    assert np.concatenate([r.content.tensors[0].array for r, _ in source.read(0)]).tobytes() == array.tobytes()
    source.close()


@pytest.mark.parametrize(
    ("array", "signature"),
    [
        (np.zeros((2, 4), np.float32), MODEL),
        (np.zeros((2, 3), np.int64), MODEL),
        (np.zeros(3, np.float32), MODEL),
        (np.zeros((2, 3), np.float32), Signature(MODEL.inputs * 2, MODEL.outputs)),
    ],
)
def test_an_array_that_does_not_fit_the_model_is_refused(tmp_path, array, signature):
    source = reader(tmp_path / "a.npy", array)
    with pytest.raises(ConfigError, match="`x` FP32"):
        source.fit(signature, "m")
    source.close()


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.zeros((2, 3))),
        np.zeros(3, np.complex64),
        np.array(["a"]),
        np.zeros(3, ">f4"),
        np.float32(1),
        np.zeros(2, [("a", "f4")]),
    ],
)
def test_an_array_that_has_no_rows_for_a_model_is_refused(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ConfigError, match=r"expected a \.npy file"):
        open_source(str(tmp_path / "a.npy"), None)


def test_pickled_and_torn_arrays_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ConfigError, match="holds object"):
        open_source(str(tmp_path / "a.npy"), None)
    np.save(tmp_path / "b.npy", np.zeros((100, 3)))
    os.truncate(tmp_path / "b.npy", 1000)
    with pytest.raises(ConfigError, match="too few for the shape"):
        open_source(str(tmp_path / "b.npy"), None)
    (tmp_path / "c.npy").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"expected a \.npy file"):
        open_source(str(tmp_path / "c.npy"), None)


def test_the_header_has_room_for_any_number_of_rows(tmp_path):
    for dtype, shape in ((np.dtype(np.float32), (384,)), (np.dtype(np.int8), ()), (np.dtype(np.float16), (2, 3, 4))):
        lengths = {len(header(dtype, shape, n)) for n in (0, 1, 10**6, 10**15)}
        assert len(lengths) == 1


def test_an_image_that_is_gone_or_a_pipe_is_a_fault_of_its_own_row(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "b.png").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "c.png")
    found = [one.content for one in rows(tmp_path)]
    assert found == [
        Picture(b"\x89PNG"),
        Fault("cannot be read: No such file or directory"),
        Fault("cannot be read: it is a pipe"),
    ]
    assert open_source(str(tmp_path), None).facts() is not None


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "inner").mkdir()
    scandir = os.scandir

    def refused(path):
        if os.path.basename(path) == "inner":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ConfigError, match="inner: cannot be read: Permission denied"):
        open_source(str(tmp_path), None)
