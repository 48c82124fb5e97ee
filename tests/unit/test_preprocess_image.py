"""Images of every kind that people send, and of the kinds that they should not."""

import base64
import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from hybrid.config import ImageSettings, PreprocessSettings
from hybrid.errors import BadRequest, StartupError
from hybrid.messages import Signature, TensorSpec
from hybrid.preprocess.base import Preprocessor
from hybrid.preprocess.build import build
from hybrid.preprocess.image import decode_item

RED, WHITE = (255, 0, 0), (255, 255, 255)


def model(*shape: int, datatype: str = "FP32") -> Signature:
    return Signature((TensorSpec("pixels", datatype, shape),), ())


def step(signature: Signature | None = None, **settings: object) -> Preprocessor:
    image = ImageSettings(**{"width": 8, "height": 8, "layout": "nhwc", **settings})  # type: ignore[arg-type]
    shape = (image.height, image.width, 3) if image.layout == "nhwc" else (3, image.height, image.width)
    made = build(PreprocessSettings(image=image), signature or model(-1, *shape))
    assert made is not None
    return made


def encoded(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(item: bytes, **settings: object) -> np.ndarray:
    (row,) = step(**settings).row(item)
    assert row.dtype == np.uint8
    return row


def corner(item: bytes) -> tuple[int, ...]:
    return tuple(pixels(item)[0, 0].tolist())


def red(mode: str, *color: int) -> Image.Image:
    return Image.new(mode, (8, 8), color if len(color) > 1 else color[0])


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_lossless_formats(kind: str) -> None:
    item = encoded(red("RGB", *RED), kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert corner(item) == RED


def test_modes_become_rgb() -> None:
    assert corner(encoded(red("L", 77))) == (77, 77, 77)
    assert corner(encoded(red("1", 1))) == WHITE
    assert corner(encoded(red("P", 3).convert("RGB").quantize(4))) == tuple(red("P", 3).convert("RGB").getpixel((0, 0)))
    cmyk = corner(encoded(red("CMYK", 0, 255, 255, 0), "JPEG", quality=100))
    assert np.abs(np.subtract(cmyk, RED)).max() < 12


def test_transparency_lies_on_white() -> None:
    assert corner(encoded(red("RGBA", 255, 0, 0, 0))) == WHITE
    assert corner(encoded(red("RGBA", 255, 0, 0, 255))) == RED
    half = corner(encoded(red("RGBA", 255, 0, 0, 128)))
    assert half[0] == 255
    assert abs(half[1] - 127) <= 1
    assert corner(encoded(red("LA", 10, 0))) == WHITE
    palette = red("P", 0)
    palette.putpalette([255, 0, 0])
    assert corner(encoded(palette, transparency=0)) == WHITE
    assert corner(encoded(palette)) == RED


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (65_535, 255), (32_896, 128), (300, 1)])
def test_sixteen_bit_grey_is_scaled_not_clipped(value: int, expected: int) -> None:
    item = encoded(Image.fromarray(np.full((8, 8), value, np.uint16)))
    assert corner(item) == (expected,) * 3


def test_pixels_without_a_known_range_are_refused() -> None:
    for dtype, value in ((np.float32, 0.5), (np.int32, 100_000)):
        item = encoded(Image.fromarray(np.full((8, 8), value, dtype)), "TIFF")
        with pytest.raises(BadRequest, match="their range is not known"):
            pixels(item)


def test_the_first_frame_of_an_animation_counts() -> None:
    frames = [red("RGB", *RED), red("RGB", 0, 0, 255)]
    for kind in ("GIF", "PNG", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        item = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert corner(item) == RED, kind


def test_exif_orientation_is_honoured() -> None:
    picture = Image.new("RGB", (16, 8), "black")
    picture.paste(RED, (0, 0, 4, 4))  # upper left
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees clockwise
    upright = pixels(encoded(picture, exif=exif), width=8, height=16)
    assert tuple(upright[1, 6]) == RED  # upper right
    assert tuple(upright[1, 1]) == (0, 0, 0)


def test_channel_order_layout_and_normalisation() -> None:
    item = encoded(red("RGB", 10, 20, 30))
    made = step(channels="bgr", layout="nchw", scale=0.5, mean=(1, 2, 3), std=(1, 2, 4))
    (row,) = made.row(item)
    assert row.shape == (3, 8, 8)
    assert row.flags.c_contiguous
    (tensor,) = made.assemble([(row,), (row,)])
    assert (tensor.name, tensor.datatype, tensor.array.shape) == ("pixels", "FP32", (2, 3, 8, 8))
    assert tensor.array.dtype == np.float32
    np.testing.assert_allclose(tensor.array[1, :, 0, 0], [14.0, 4.0, 0.5])
    assert made.size([(row,)]) == 64
    assert made.input == TensorSpec("image", "BYTES", (-1,))


def test_half_precision_and_byte_models() -> None:
    item = encoded(red("RGB", 10, 20, 30))
    half = step(model(-1, 8, 8, 3, datatype="FP16"), scale=0.1)
    assert half.assemble([half.row(item)])[0].array.dtype == np.float16
    raw = step(model(-1, -1, -1, 3, datatype="UINT8"))
    assert raw.assemble([raw.row(item)])[0].array[0, 0, 0].tolist() == [10, 20, 30]


def stripes() -> bytes:
    """40 x 20: red on the left and right quarter, blue between."""
    picture = Image.new("RGB", (40, 20), (0, 0, 255))
    picture.paste(RED, (0, 0, 10, 20))
    picture.paste(RED, (30, 0, 40, 20))
    return encoded(picture)


def test_resize_kinds() -> None:
    is_red = {
        kind: [int(v) for v in pixels(stripes(), resize=kind, resize_to=to)[4, :, 0] > 128]
        for kind, to in (("stretch", None), ("crop", None), ("stretch_crop", 16), ("fit", None))
    }
    assert is_red["stretch"] == [1, 1, 0, 0, 0, 0, 1, 1]
    assert is_red["crop"] == [0] * 8  # the middle 20 x 20
    assert is_red["stretch_crop"] == [0] * 8  # the middle half of the stretched picture
    assert is_red["fit"] == [1, 1, 0, 0, 0, 0, 1, 1]
    fitted = pixels(stripes(), resize="fit")
    assert fitted[0].max() == 0  # a black bar above
    assert fitted[3].max() > 0


def test_crop_keeps_the_middle_of_the_scaled_picture() -> None:
    y, x = np.mgrid[0:64, 0:128]
    item = encoded(Image.fromarray(np.stack([x, y, x], -1).astype(np.uint8)))
    row = pixels(item, resize="crop", resize_to=16)
    assert abs(row[..., 0].mean() - 63.5) < 1  # centre of 0..127
    assert abs(row[..., 1].mean() - 31.5) < 1
    assert np.ptp(row[..., 1].astype(int)) == pytest.approx(28, abs=1)  # 8 of 16 steps of 4


@pytest.mark.parametrize("kind", ["stretch", "crop", "stretch_crop", "fit"])
@pytest.mark.parametrize("size", [(1, 1), (6000, 1), (1, 6000), (3, 2)])
def test_extreme_shapes(kind: str, size: tuple[int, int]) -> None:
    assert pixels(encoded(Image.new("RGB", size, RED)), resize=kind).shape == (8, 8, 3)


def test_broken_images_are_bad_requests() -> None:
    rng = np.random.default_rng(0)
    whole = encoded(Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)), "JPEG")
    png = encoded(Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)))
    for item in (
        b"",
        b"hello, no image",
        whole[:200],
        whole[:-400],
        png[:100],
        png[:-300],
        b"GIF89a",
        b"BM" + b"\0" * 60,
    ):
        with pytest.raises(BadRequest, match="input `image`: "):
            pixels(item)


def test_hostile_bytes_never_raise_anything_else() -> None:
    rng = np.random.default_rng(1)
    made = step()
    seeds = [encoded(Image.new("RGB", (8, 8), RED), kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")]
    whole, refused = made.row(seeds[0])[0].shape, []
    for round_ in range(600):
        data = bytearray(seeds[round_ % len(seeds)])
        for at in rng.integers(0, len(data), 4):
            data[at] = rng.integers(0, 256)
        try:
            assert made.row(bytes(data))[0].shape == whole
        except BadRequest as error:
            refused.append(str(error))
    assert 50 < len(refused) < 550, "nothing was broken, or nothing was left whole"
    assert all(text.startswith("input `image`: ") for text in refused)


def test_bombs_are_refused_before_they_are_decoded() -> None:
    with pytest.raises(BadRequest, match="100 x 101 pixels; at most 10000 are taken"):
        pixels(encoded(Image.new("1", (100, 101))), max_pixels=10_000)
    item = bytearray(encoded(Image.new("L", (8, 8))))
    item[16:24] = struct.pack(">II", 20_000, 10_000)  # over Pillow's own limit too
    item[29:33] = struct.pack(">I", zlib.crc32(item[12:29]))
    with pytest.raises(BadRequest, match="far too many pixels; at most 64000000"):
        pixels(bytes(item))


def test_programs_and_documents_are_not_images() -> None:
    for item in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", b"P6 1 1 255\n\0\0\0", b"#define x_width 8\n"):
        with pytest.raises(BadRequest, match="not an image; expected JPEG, PNG"):
            pixels(item)


def gradient(mode: str, width: int = 640, height: int = 480) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], 2).astype(np.uint8)).convert(mode)


@pytest.mark.parametrize("resize", ["stretch", "crop", "stretch_crop", "fit"])
@pytest.mark.parametrize(("kind", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "RGBA")])
def test_the_cheap_form_shows_the_same_picture(kind: str, mode: str, resize: str) -> None:
    item = encoded(gradient(mode), kind)
    made = step(resize=resize, resize_to=10)
    (whole,), (cheap,) = made.row(item), made.cheap_row(item)
    assert (cheap.shape, cheap.dtype) == (whole.shape, whole.dtype)
    assert np.abs(whole.astype(int) - cheap).mean() < 8


@pytest.mark.parametrize(("mode", "tolerance"), [("1", 60), ("L", 16), ("P", 16), ("LA", 16), ("I;16", 16)])
def test_the_cheap_form_takes_every_mode(mode: str, tolerance: int) -> None:
    grey = gradient("L", 200, 100)
    picture = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257) if mode == "I;16" else grey.convert(mode)
    assert picture.mode == mode
    (whole,), (cheap,) = step().row(encoded(picture)), step().cheap_row(encoded(picture))
    assert np.abs(whole.astype(int) - cheap).mean() < tolerance


def test_the_cheap_form_is_upright_and_on_white() -> None:
    picture = Image.new("RGBA", (160, 80), (0, 0, 0, 0))
    picture.paste((255, 0, 0, 255), (0, 0, 40, 40))  # upper left
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("PNG", "WEBP", "TIFF"):
        (row,) = step(width=8, height=16).cheap_row(encoded(picture, kind, exif=exif))
        assert row[1, 6][0] > 200 > 100 > row[1, 6][1], kind  # upper right
        assert tuple(row[12, 1]) == WHITE, kind


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_cheap_form_works_on_few_pixels(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(ImageOps, "exif_transpose", lambda picture, in_place: seen.append(picture.size))
    made = step(width=60, height=30)
    made.cheap_row(encoded(gradient("RGB"), kind))
    made.row(encoded(gradient("RGB"), kind))
    assert seen == [(80, 60), (640, 480)]


def test_the_cheap_form_refuses_the_same() -> None:
    for item in (b"nope", encoded(red("RGB", *RED))[:40], b""):
        with pytest.raises(BadRequest):
            step().cheap_row(item)
    with pytest.raises(BadRequest, match="at most 100 are taken"):
        step(max_pixels=100).cheap_row(encoded(gradient("RGB"), "JPEG"))


def test_base64_and_data_urls() -> None:
    item = encoded(red("RGB", 251, 239, 190))
    text = base64.b64encode(item)
    url = base64.urlsafe_b64encode(item).rstrip(b"=")
    lines = b"\n".join(text[i : i + 20] for i in range(0, len(text), 20))
    for form in (item, text, url, lines, b"data:image/png;base64," + text, b"DATA:;BASE64," + url):
        assert decode_item(form) == item
    for wrong in (b"data:image/png," + text, b"data:image/png;base64", b"data:image/png;base64,@@@", b""):
        with pytest.raises(BadRequest):
            decode_item(wrong)
    assert decode_item(b"plain text!") == b"plain text!"


def test_doubtful_metadata_does_not_warn() -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\xff\x7f\0\0\0\0"
    item = encoded(red("RGB", *RED), "JPEG", exif=exif)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        step().row(item)
    assert seen == []


@pytest.mark.parametrize(
    ("settings", "signature", "message"),
    [
        (
            {},
            model(-1, 3, 8, 8),
            r"makes FP32, FP16 or UINT8 \[-1, 8, 8, 3\] \(nhwc\); the model's input `pixels` is FP32",
        ),
        ({}, model(-1, 8, 8, 3, datatype="INT64"), "is INT64"),
        ({}, model(-1, 8, 3), "makes FP32"),
        ({}, Signature((), ()), "makes one tensor"),
        ({"scale": 0.5}, model(-1, 8, 8, 3, datatype="UINT8"), "takes UINT8, so scale, mean and std must stay"),
        ({"mean": (1.0,)}, None, "expected 3 numbers for mean"),
        ({"resize": "crop", "resize_to": 4}, None, "resize_to is 4, less than the 8 x 8"),
        ({"max_pixels": 10**9}, None, "Pillow takes at most"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, object], signature: Signature | None, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        step(signature, **settings)
