"""Made-up pictures for the image model."""

import io

import numpy as np
from PIL import Image


def picture(kind: str, seed: int = 0, size: tuple[int, int] = (320, 200)) -> bytes:
    """A smooth coloured picture, encoded as `kind` (JPEG, PNG); each seed gives another."""
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    planes = [np.sin(x / (20 + seed * 7 + plane * 5)) * np.cos(y / (15 + seed * 3 + plane)) for plane in range(3)]
    pixels = ((np.stack(planes, axis=-1) + 1) * 127).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()
