"""Encoded images to pixels, and pixels to the model's tensor.

Only formats that everybody sends are decoded: each further decoder of Pillow's forty is one more parser for hostile
bytes, and some of them start other programs.
"""

import base64
import binascii
import io
import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from hybrid.config import ImageSettings
from hybrid.errors import BadRequest, StartupError
from hybrid.messages import DTYPES, Signature, Tensor, TensorSpec
from hybrid.preprocess.base import Row

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_MAGIC: Final = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
_URLSAFE: Final = bytes.maketrans(b"-_", b"+/")
_BILINEAR: Final = Image.Resampling.BILINEAR
_WHOLE: Final = 0  # as a side: not smaller than it is
_SIXTEEN_BIT: Final = ("I;16", "I;16B", "I;16L", "I;16N", "I")


class ImagePreprocessor:
    """Decodes one image per row. A row is its 8-bit pixels in the model's layout and channel order."""

    def __init__(self, settings: ImageSettings, signature: Signature) -> None:
        self._settings = settings
        self._input = TensorSpec(settings.input, "BYTES", (-1,))
        _check_settings(settings)
        self._model_input = _model_input(settings, signature)
        self._scale, self._shift = _scaling(settings)
        self._plain = self._model_input.datatype == "UINT8"
        if self._plain and not (self._scale is None and self._shift is None):
            raise StartupError("preprocess image: the model takes UINT8, so scale, mean and std must stay 1, 0 and 1")

    @property
    def input(self) -> TensorSpec:
        """The image input that clients see."""
        return self._input

    def row(self, item: bytes) -> Row:
        """Decode, turn upright (EXIF), make RGB, resize.

        Raises:
            BadRequest: no image, a truncated or broken one, too many pixels, or a pixel format without a meaning here.
        """
        return self._row(item, _WHOLE)

    def cheap_row(self, item: bytes) -> Row:
        """Return `row` of the image at a size near the one that is wanted.

        JPEG is decoded at that size, which costs a fraction. Other formats must be decoded whole; single pixels are
        picked from them before anything else is done.
        """
        s = self._settings
        return self._row(item, max(s.width, s.height, s.resize_to or 0))

    def _row(self, item: bytes, side: int) -> Row:
        s = self._settings
        try:
            picture = _resized(_to_rgb(_decoded(decode_item(item), s.max_pixels, side)), s)
            if s.jpeg_round_trip:
                picture = _through_jpeg(picture)
        except MemoryError:
            raise  # the machine's fault, not the client's
        except BadRequest as error:
            raise BadRequest(f"input `{s.input}`: {error}") from error
        except Exception as error:
            # Pillow's parsers let out nearly anything on hostile bytes: SyntaxError, struct.error, KeyError, EOFError.
            raise BadRequest(f"input `{s.input}`: the image cannot be decoded: {error}") from error
        pixels = np.asarray(picture)
        if s.channels == "bgr":
            pixels = pixels[:, :, ::-1]
        return (np.ascontiguousarray(pixels if s.layout == "nhwc" else pixels.transpose(2, 0, 1)),)

    def assemble(self, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Stack and normalise: pixel * scale, minus mean, over std."""
        spec = self._model_input
        pixels = np.stack([row[0] for row in rows])
        if not self._plain:
            pixels = pixels.astype(np.float32)
            if self._scale is not None:
                pixels *= self._scale
            if self._shift is not None:
                pixels += self._shift
            pixels = pixels.astype(DTYPES[spec.datatype], copy=False)
        return (Tensor(spec.name, spec.datatype, pixels),)

    def size(self, rows: Sequence[Row]) -> int:
        """Return the pixels of a row, which are the same for all."""
        return self._settings.width * self._settings.height

    def tokens(self, rows: Sequence[Row]) -> int:
        """Return 0: an image has none."""
        return 0


def decode_item(item: bytes) -> bytes:
    """Return the encoded image itself: what came, or the bytes behind base64 text or a `data:` URL.

    JSON has no other way to carry an image. Bytes that begin like an image are never taken for base64.

    Raises:
        BadRequest: empty, or a `data:` URL that is not base64.
    """
    if not item:
        raise BadRequest("expected an encoded image, got nothing")
    if item.startswith(_MAGIC):
        return item
    if item[:5].lower() == b"data:":
        header, comma, payload = item.partition(b",")
        if not comma or not header.lower().endswith(b";base64"):
            raise BadRequest("expected a data: URL with ;base64 and a comma")
        decoded = _from_base64(payload)
        if decoded is None:
            raise BadRequest("the data: URL does not hold valid base64")
        return decoded
    decoded = _from_base64(item)
    return item if decoded is None else decoded


def _from_base64(text: bytes) -> bytes | None:
    """Decode standard or URL-safe base64, padded or not, with line breaks; None when it is something else."""
    compact = b"".join(text.split()).translate(_URLSAFE).rstrip(b"=")
    try:
        return base64.b64decode(compact + b"=" * (-len(compact) % 4), validate=True) or None
    except binascii.Error:
        return None


def _decoded(data: bytes, max_pixels: int, side: int) -> Image.Image:
    """Open and decode the first frame, upright. The size is checked before any pixel is decoded.

    With a `side` the result may be smaller than the image, but no side of it gets smaller than that.
    """
    with warnings.catch_warnings():
        # Doubtful metadata is Pillow's to warn about and ours to ignore, but a bomb stays an error at any depth.
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            picture: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:
            raise BadRequest(f"not an image; expected {', '.join(FORMATS)}, raw or as base64 text") from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise BadRequest(f"the image has far too many pixels; at most {max_pixels} are taken") from None
        width, height = picture.size
        if width * height > max_pixels:
            raise BadRequest(f"the image has {width} x {height} pixels; at most {max_pixels} are taken")
        if side:
            picture.draft(None, (side, side))
        picture.load()
        factor = min(picture.size) // side if side else 1
        if factor > 1:
            picture = picture.resize((picture.width // factor, picture.height // factor), Image.Resampling.NEAREST)
        ImageOps.exif_transpose(picture, in_place=True)
        return picture


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode in _SIXTEEN_BIT:
        picture = _eight_bit(picture)
    elif picture.mode == "F":
        raise BadRequest("images of floating-point pixels are not taken, their range is not known")
    if picture.has_transparency_data:
        # On white, as a page shows it. Dropping alpha would bring out whatever colour lies under invisible pixels.
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _eight_bit(picture: Image.Image) -> Image.Image:
    """Scale 16-bit grey down; Pillow's own conversion clips it at 255, which makes nearly everything white."""
    values = np.asarray(picture).astype(np.int64)
    if values.size and (values.min() < 0 or values.max() > 65_535):
        raise BadRequest("images of 32-bit pixels are not taken, their range is not known")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def _resized(picture: Image.Image, s: ImageSettings) -> Image.Image:
    target = (s.width, s.height)
    if s.resize == "stretch":
        return picture.resize(target, _BILINEAR)
    if s.resize == "fit":
        # ImageOps.pad would do, but fails where the short side rounds to 0.
        zoom = min(s.width / picture.width, s.height / picture.height)
        inner = max(1, round(picture.width * zoom)), max(1, round(picture.height * zoom))
        canvas = Image.new("RGB", target)
        canvas.paste(picture.resize(inner, _BILINEAR), ((s.width - inner[0]) // 2, (s.height - inner[1]) // 2))
        return canvas
    side = s.resize_to or max(target)
    if s.resize == "stretch_crop":
        x, y = (side - s.width) // 2, (side - s.height) // 2
        return picture.resize((side, side), _BILINEAR).crop((x, y, x + s.width, y + s.height))
    # crop: only the part that is kept is scaled. Scaling the whole picture first would make millions of pixels of a
    # picture that is 60000 wide and 1 high.
    zoom = min(picture.size) / side
    wide, high = s.width * zoom, s.height * zoom
    left, top = max(0.0, (picture.width - wide) / 2), max(0.0, (picture.height - high) / 2)
    right, bottom = min(left + wide, picture.width), min(top + high, picture.height)
    return picture.resize(target, _BILINEAR, (left, top, right, bottom))


def _through_jpeg(picture: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG")
    return Image.open(buffer)


def _scaling(s: ImageSettings) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any] | None]:
    """(pixel * scale - mean) / std as pixel * a + b, shaped for the layout; None where it would do nothing."""
    std = np.array(s.std, np.float64)
    factor, shift = s.scale / std, -np.array(s.mean, np.float64) / std
    shape = (3,) if s.layout == "nhwc" else (3, 1, 1)
    return (
        None if np.all(factor == 1.0) else factor.reshape(shape).astype(np.float32),
        None if np.all(shift == 0.0) else shift.reshape(shape).astype(np.float32),
    )


def _check_settings(s: ImageSettings) -> None:
    """What the types of the settings cannot say."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and s.max_pixels > limit:
        raise StartupError(f"preprocess image: max_pixels is {s.max_pixels}, Pillow takes at most {limit}")
    if len(s.mean) != 3 or len(s.std) != 3 or 0.0 in s.std:
        raise StartupError("preprocess image: expected 3 numbers for mean and 3 for std, none of std 0")
    if s.resize in ("crop", "stretch_crop") and s.resize_to is not None and s.resize_to < max(s.width, s.height):
        raise StartupError(
            f"preprocess image: resize_to is {s.resize_to}, less than the {s.width} x {s.height} that are cut from it"
        )


def _model_input(s: ImageSettings, signature: Signature) -> TensorSpec:
    """The one input of the model, which must take pictures as the settings make them."""
    if len(signature.inputs) != 1:
        names = ", ".join(spec.name for spec in signature.inputs)
        raise StartupError(f"preprocess image makes one tensor; the model takes {names}")
    spec = signature.inputs[0]
    wanted = (s.height, s.width, 3) if s.layout == "nhwc" else (3, s.height, s.width)
    fits = len(spec.shape) == 4 and all(d in (-1, w) for d, w in zip(spec.shape[1:], wanted, strict=True))
    if not fits or spec.datatype not in ("FP32", "FP16", "UINT8"):
        raise StartupError(
            f"preprocess image makes FP32, FP16 or UINT8 [-1, {', '.join(map(str, wanted))}] ({s.layout}); the model's "
            f"input `{spec.name}` is {spec.datatype} {list(spec.shape)}"
        )
    return spec
