"""The operations, by the functions of the plugin's library.

The file takes the place of cuimgops' own, which opens six libraries when it is imported.
"""
# ruff: noqa: INP001 (a file of another package)

from __future__ import annotations

import ctypes

import numpy as np
from PIL import Image

from ._archsplit import load


def horizontal_flip(image: Image.Image) -> Image.Image:
    """Return the image with left and right exchanged."""
    return _convert(image, "horizontal_flip")


def vertical_flip(image: Image.Image) -> Image.Image:
    """Return the image with top and bottom exchanged."""
    return _convert(image, "vertical_flip")


def edge_detection(image: Image.Image) -> Image.Image:
    """Return the edges of the image."""
    return _convert(image, "edge_detection")


def blur_conv(image: Image.Image) -> Image.Image:
    """Return the image, smoothed over 3x3 pixels."""
    return _convert(image, "blur_conv")


def sharpening_conv(image: Image.Image) -> Image.Image:
    """Return the image, sharpened over 3x3 pixels."""
    return _convert(image, "sharpening_conv")


def gaussian_noise(image: Image.Image, mean: float = 0.0, stddev: float = 10.0) -> Image.Image:
    """Return the image with normally distributed noise added to it."""
    pixels = np.array(image.convert("RGB"), dtype=np.uint8)
    noise = ctypes.c_float(mean), ctypes.c_float(stddev)
    load().add_gaussian_noise(_address(pixels), *_shape(pixels), *noise)
    return Image.fromarray(pixels)


def _convert(image: Image.Image, function: str) -> Image.Image:
    pixels = np.array(image.convert("RGB"), dtype=np.uint8)
    result = np.zeros_like(pixels)
    # The library is opened here, not at the import, which works without a GPU.
    getattr(load(), function)(_address(pixels), _address(result), *_shape(pixels))
    return Image.fromarray(result)


def _address(pixels: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(pixels.ctypes.data)


def _shape(pixels: np.ndarray) -> tuple[int, int, int]:
    height, width, channels = pixels.shape
    return width, height, channels
