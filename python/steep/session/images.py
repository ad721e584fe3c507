"""``ImageFolder``: images in folders, as data of ``TrainingSession.fit``."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from steep import _steep
from steep.errors import DataError, OutOfRangeError, counted
from steep.inspection import StrPath

log = logging.getLogger("steep")


class ImageFolder:
    """Images, .jpg and .png, in folders: one folder for each class, as ``steep train --data``.

    ``fit`` reads them batch by batch, and gives them to the input of four axes: floats from 0 to 1,
    or uint8, with the channels first or last, as that input has them.

    >>> session.fit(steep.ImageFolder("photos", size=32), validation=0.2, metrics=["accuracy"])

    Args:
        paths: folders, or files of images without classes.
        size: the side to resize images to, or height and width; by default those of the input.
        mean: subtracted from the numbers of images: one number, or one for each channel.
        std: what they are divided by then.
        classes: names of folders in the order of the labels; by default all, sorted.

    Attributes:
        files: the paths of the images, a row each.
        labels: the number of each image's class; empty if the images have no classes.
        classes: names of the classes, in the order of the labels.

    Raises:
        DataError: there are no images, or one cannot be read, or folders and classes do not agree.
        IoError: a folder cannot be read.

    Warns:
        The logger ``steep`` warns if EXIF asks to turn images, which is not done.
    """

    def __init__(
        self,
        *paths: StrPath,
        size: int | tuple[int, int] | None = None,
        mean: float | Sequence[float] = (),
        std: float | Sequence[float] = (),
        classes: Sequence[str] = (),
    ) -> None:
        self._paths = [os.fspath(path) for path in paths]
        self._size = _sides(size)
        self._mean, self._std = _numbers("mean", mean), _numbers("std", std)
        if any(number <= 0 for number in self._std):
            raise DataError("std is not positive.", node="std", received=repr(std))
        self._given = list(classes)
        self._set = _steep.find_images(self._paths, self._given)
        if self._set.turned:
            log.warning(
                "EXIF asks to turn %d of %d images, which is not done, as in torchvision; the "
                "first is %s",
                self._set.turned,
                len(self),
                self._set.first_turned,
            )

    @property
    def files(self) -> list[str]:
        """The paths of the images, a row each."""
        return [os.fspath(path) for path in self._set.files]

    @property
    def labels(self) -> list[int]:
        """The number of each image's class; empty if the images have no classes."""
        return self._set.labels

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of the labels."""
        return self._set.classes

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._set.files)

    def __repr__(self) -> str:
        """Return the paths, and how many images and classes they have."""
        paths = ", ".join(map(repr, self._paths))
        images, classes = counted(len(self), "image"), counted(len(self.classes), "class")
        return f"ImageFolder({paths}): {images}, {classes}"

    def read(self, input: _steep.TensorInfo, rows: Sequence[int] | None = None) -> _steep.Tensor:
        """Return images as an input of a model takes them.

        >>> session.eval(folder.read(session.input_info()[0], rows=range(8)))

        Args:
            input: an element of ``input_info()``.
            rows: which of the images; all by default.

        Raises:
            ShapeError: the input does not take images, or not of this size.
            DataError: ``mean`` or ``std`` do not suit it; a file cannot be decoded.
            OutOfRangeError: there is no such row.
        """
        chosen = range(len(self)) if rows is None else [*rows]
        if not all(0 <= row < len(self) for row in chosen):
            raise OutOfRangeError(
                "There is no such image.",
                node="rows",
                expected=f"0 to {len(self) - 1}",
                received=repr(rows),
            )
        return self._set.load(chosen, self._form(input))

    def arrays(
        self, inputs: Sequence[_steep.TensorInfo], label: str, classes: Sequence[str] = ()
    ) -> dict[str, object]:
        """Return the data of ``fit``: a table of images, and the labels, by the names of inputs.

        Args:
            inputs: those of the session.
            label: the name of the label input; "" for none.
            classes: of the training data, for which these are validation data.

        Raises:
            ShapeError: no input, or more than one, could take images.
            DataError: images have no classes, but there is an input for labels.
        """
        import numpy as np

        if classes and not self._given and list(classes) != self.classes:
            other = ImageFolder(
                *self._paths, size=self._size, mean=self._mean, std=self._std, classes=classes
            )
            return other.arrays(inputs, label)
        images = [info for info in inputs if info.name != label]
        if len(images) != 1:
            raise DataError(
                "ImageFolder feeds a model of one input.",
                expected="one input beside the labels",
                received=", ".join(info.name for info in images) or "none",
                remedy="Make the batches, with ImageFolder.read.",
            )
        arrays: dict[str, object] = {images[0].name: ImageTable(self._set, self._form(images[0]))}
        if label:
            if not self.labels:
                raise DataError(
                    "The images have no classes.",
                    node=self._paths[0],
                    expected="a folder of images for each class",
                )
            arrays[label] = np.array(self.labels, dtype=np.int64)
        return arrays

    def _form(self, input: _steep.TensorInfo) -> _steep.ImageForm:
        height, width = self._size or (0, 0)
        return _steep.image_form(input, height, width, self._mean, self._std)


class ImageTable:
    """An array of images, of which each access reads some."""

    def __init__(self, images: _steep.ImageSet, form: _steep.ImageForm) -> None:
        self._images, self._form, self._count = images, form, len(images.files)

    def __len__(self) -> int:
        """Return the number of images."""
        return self._count

    def __getitem__(self, rows: object) -> _steep.Tensor:
        """Return images of a slice, or of an array of numbers."""
        if isinstance(rows, slice):
            return self._images.load(range(*rows.indices(self._count)), self._form)
        import numpy as np

        return self._images.load(np.asarray(rows).tolist(), self._form)


def _sides(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    most = 65_535
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else (*size,)
    if len(sides) != 2 or not all(isinstance(s, int) and 0 < s <= most for s in sides):
        raise DataError(
            "size is not that of images.",
            node="size",
            expected=f"a side, or height and width, from 1 to {most}",
            received=repr(size),
        )
    return sides


def _numbers(name: str, values: float | Sequence[float]) -> list[float]:
    numbers = [values] if isinstance(values, (int, float)) else list(values)
    if all(abs(float(number)) <= 1e6 for number in numbers):  # NaN is not
        return [float(number) for number in numbers]
    raise DataError(f"{name} is not finite.", node=name, received=repr(values))
