"""Columns of small PNG images, decoded thousands at a time.

Pillow takes 30 microseconds for an image of 28 x 28 pixels, nearly all of it to get ready, and a dataset has 70,000 of
them. Here files are only unpacked one by one; the filters, by which rows of pixels were made to pack well, are undone
for all images at once.

That is for the plainest of files. Whatever is unusual or wrong about one of them, all are left to Pillow: for the
pixels, or for its refusal.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_BEGIN = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR"
_END = struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
_IDAT = zlib.crc32(b"IDAT")
_CHANNELS = {0: 1, 2: 3}  # by PNG's number for grey and for RGB
_BYTES_AT_A_TIME = 2**24


def decoded(files: Sequence[Any]) -> np.ndarray | None:
    """The images in these files, as bytes; None if Pillow has to look at them.

    All files must have the same header, that of grey or RGB in 8 bits and not interlaced, then one chunk of pixels, and
    nothing else. There must be as many images as one has pixels: filters are undone pixel by pixel, and for fewer
    images Pillow is faster.
    """
    header = files[0][:33] if files and isinstance(files[0], bytes) else b""
    if len(header) < 33 or not header.startswith(_BEGIN):
        return None
    width, height, depth, colour, packing, filtering, interlaced, crc = struct.unpack(">IIBBBBBI", header[16:])
    if (depth, packing, filtering, interlaced) != (8, 0, 0, 0) or colour not in _CHANNELS or not width * height:
        return None
    channels = _CHANNELS[colour]
    size = height * (1 + width * channels)
    together = min(_BYTES_AT_A_TIME // size, len(files))
    if crc != zlib.crc32(header[12:29]) or together < width * height:
        return None
    parts = []
    for begin in range(0, len(files), together):
        packed = [_unpacked(file, header, size) for file in files[begin : begin + together]]
        rows = np.frombuffer(bytearray().join(packed), np.uint8)
        if len(rows) < size * len(packed):
            return None
        rows = rows.reshape(len(packed), height, -1)
        if rows[:, :, 0].max() >= len(_UNDO):
            return None
        parts.append(_unfiltered(rows, channels))
    shape = (len(files), height, width, channels) if channels > 1 else (len(files), height, width)
    return np.concatenate(parts).reshape(shape)


def _unpacked(file: Any, header: bytes, size: int) -> bytes:
    """The filtered rows in a file of that header; nothing if it is not as it should be to the last bit."""
    if not isinstance(file, bytes):
        return b""
    packed = file[41:-16]
    if (
        file[:33] != header
        or file[33:41] != struct.pack(">I", len(packed)) + b"IDAT"
        or file[-16:] != struct.pack(">I", zlib.crc32(packed, _IDAT)) + _END
    ):
        return b""
    unpacker = zlib.decompressobj()
    try:
        rows = unpacker.decompress(packed, size + 1)  # no more than that, whatever it would unpack into
    except zlib.error:
        return b""
    return rows if len(rows) == size and unpacker.eof and not unpacker.unused_data else b""


def _unfiltered(rows: np.ndarray, channels: int) -> np.ndarray:
    """The bytes of the pixels of all images, row by row; ``rows`` begin with the number of their filter."""
    above = np.zeros_like(rows[:, 0, 1:])
    for y in range(rows.shape[1]):
        row = rows[:, y, 1:]
        for number, undo in enumerate(_UNDO):
            which = np.flatnonzero(rows[:, y, 0] == number)
            if undo and len(which):
                row[which] = undo(row[which], above[which], channels)
        above = row
    return rows[:, :, 1:].copy()


def _sub(row: np.ndarray, above: np.ndarray, channels: int) -> np.ndarray:
    return np.cumsum(row.reshape(len(row), -1, channels), axis=1, dtype=np.uint8).reshape(row.shape)


def _up(row: np.ndarray, above: np.ndarray, channels: int) -> np.ndarray:
    return row + above


def _average(row: np.ndarray, above: np.ndarray, channels: int) -> np.ndarray:
    return _from_left_to_right(row, above, channels, lambda left, up, _: (left & up) + ((left ^ up) >> 1))


def _paeth(row: np.ndarray, above: np.ndarray, channels: int) -> np.ndarray:
    return _from_left_to_right(row, above, channels, _nearest)


def _from_left_to_right(
    row: np.ndarray,
    above: np.ndarray,
    channels: int,
    guess: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Adds to each pixel a guess from those to the left, above, and above to the left; outside the image is zero."""
    pixels, ups = (each.reshape(len(row), -1, channels).transpose(1, 2, 0).copy() for each in (row, above))
    left = corner = np.zeros_like(pixels[0])
    for pixel, up in zip(pixels, ups, strict=True):
        pixel += guess(left, up, corner)
        left, corner = pixel, up
    return pixels.transpose(2, 0, 1).reshape(row.shape)


def _nearest(left: np.ndarray, up: np.ndarray, corner: np.ndarray) -> np.ndarray:
    """Paeth's guess: of the three the one nearest to left + up - corner, the first of equals."""
    rise, run = up - corner.astype(np.int16), left - corner.astype(np.int16)
    to_left, to_up, to_corner = abs(rise), abs(run), abs(rise + run)
    return np.where((to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner))


_UNDO = (None, _sub, _up, _average, _paeth)  # by PNG's number
