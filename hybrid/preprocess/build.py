"""Makes the preprocess step that the settings ask for. Pure: no processes, no clock."""

from hybrid.config import PreprocessSettings
from hybrid.errors import StartupError
from hybrid.messages import Signature
from hybrid.preprocess.base import Preprocessor


def build(settings: PreprocessSettings, model_signature: Signature) -> Preprocessor | None:
    """Make the step that the settings ask for; None when they ask for none.

    Raises:
        StartupError: the tokenizer is broken, or the model does not take what the step makes.
    """
    # Imported here so that a server of images does not load the tokenizer library, and the reverse.
    if settings.text is not None and settings.image is not None:
        raise StartupError("preprocess: expected `text` or `image`, got both")
    if settings.text is not None:
        from hybrid.preprocess.text import TextPreprocessor

        return TextPreprocessor(settings.text, model_signature)
    if settings.image is not None:
        from hybrid.preprocess.image import ImagePreprocessor

        return ImagePreprocessor(settings.image, model_signature)
    return None
