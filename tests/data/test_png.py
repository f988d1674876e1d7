"""Columns of PNG images: whichever way they are decoded, pixels and complaints are Pillow's."""

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import pfedbred
from pfedbred.data.sources import png
from pfedbred.data.sources.tables import Table

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
CHANNELS = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def header(width, height, colour=GREY, depth=8, packing=0, filtering=0, interlaced=0):
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, packing, filtering, interlaced))


def file_of(*chunks):
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


def rows_of(width, height, rng, colour=GREY, depth=8, filters=range(5)):
    """Rows as they are in a file: a filter's number, and any bytes; whatever they are, they mean some pixels."""
    rows = rng.integers(0, 256, (height, 1 + (width * CHANNELS[colour] * depth + 7) // 8), np.uint8)
    rows[:, 0] = rng.choice(list(filters), height)
    return rows.tobytes()


def plain(width=3, height=4, seed=0, colour=GREY, filters=range(5)):
    rows = rows_of(width, height, np.random.default_rng(seed), colour, filters=filters)
    return file_of(header(width, height, colour), chunk(b"IDAT", zlib.compress(rows)))


def by_pillow(files):
    return np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])


def table_of(files):
    return Table(pyarrow.table({"image": [{"bytes": file, "path": None} for file in files]}), ["x.parquet"], [0])


def outcome(files):
    """The pixels, or the complaint."""
    try:
        images = table_of(files).images("image")
    except pfedbred.SettingError as complaint:
        return str(complaint)
    assert images.flags.c_contiguous
    assert images.flags.writeable
    return images.dtype, images.shape, images.tobytes()


def same_by_pillow_alone(files):
    found = outcome(files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(png, "decoded", lambda files: None)
        assert found == outcome(files)
    return found


# Decoded here -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", [GREY, RGB])
@pytest.mark.parametrize("filters", [[0], [1], [2], [3], [4], range(5)])
def test_every_filter(colour, filters):
    for width, height in ((1, 1), (1, 6), (7, 1), (5, 6), (8, 3)):
        files = [plain(width, height, seed, colour, filters) for seed in range(40)]
        np.testing.assert_array_equal(png.decoded(files), by_pillow(files))
        same_by_pillow_alone(files)


@given(
    st.sampled_from([GREY, RGB]),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 4), min_size=1),
)
def test_any_rows(colour, width, height, seed, filters):
    files = [plain(width, height, seed + i, colour, filters) for i in range(width * height)]
    np.testing.assert_array_equal(png.decoded(files), by_pillow(files))


@pytest.mark.parametrize("shape", [(9, 11), (9, 11, 3)])
def test_what_pillow_writes(shape):
    """Smooth images, for which it takes filters of all kinds."""
    pixels = np.cumsum(np.random.default_rng(0).integers(0, 4, (120, *shape)), axis=1).astype(np.uint8)
    files = []
    for each in pixels:
        encoded = io.BytesIO()
        Image.fromarray(each).save(encoded, "png")
        files.append(encoded.getvalue())
    np.testing.assert_array_equal(png.decoded(files), pixels)
    np.testing.assert_array_equal(table_of(files).images("image"), pixels)


@pytest.mark.parametrize("at_a_time", [6, 7, 20, 21])
def test_many_at_a_time(monkeypatch, at_a_time):
    files = [plain(3, 2, seed, RGB) for seed in range(20)]
    monkeypatch.setattr(png, "_BYTES_AT_A_TIME", at_a_time * 2 * (1 + 3 * 3) + 1)
    np.testing.assert_array_equal(png.decoded(files), by_pillow(files))


# Left to Pillow -----------------------------------------------------------------------------------------------------


def damaged(file, at, byte):
    return file[:at] + bytes([byte]) + file[at:][1:]


def odd_files():
    rng = np.random.default_rng(1)
    rows = rows_of(3, 4, rng)
    packed, sound = zlib.compress(rows), plain(seed=1)
    start, data = header(3, 4), chunk(b"IDAT", packed)

    def of_type(colour, depth, *before, **more):
        content = zlib.compress(rows_of(3, 4, rng, colour, depth))
        return file_of(header(3, 4, colour, depth, **more), *before, chunk(b"IDAT", content))

    palette = chunk(b"PLTE", rng.bytes(3 * 256))
    jpeg = io.BytesIO()
    Image.fromarray(np.zeros((4, 3), np.uint8)).save(jpeg, "jpeg")
    yield "pixels in two chunks", file_of(start, chunk(b"IDAT", packed[:5]), chunk(b"IDAT", packed[5:]))
    yield "an empty chunk of pixels before", file_of(start, chunk(b"IDAT", b""), data)
    yield "no pixels", file_of(start)
    yield "an empty chunk of pixels", file_of(start, chunk(b"IDAT", b""))
    for name, kind, content in (
        ("text", b"tEXt", b"Title\0a day"),
        ("gamma", b"gAMA", struct.pack(">I", 45455)),
        ("transparent grey", b"tRNS", struct.pack(">H", 7)),
        ("an unknown chunk that may be passed over", b"xxXx", b"what"),
        ("an unknown chunk that may not", b"XXXX", b"what"),
        ("an animation", b"acTL", struct.pack(">II", 1, 0)),
    ):
        yield name, file_of(start, chunk(kind, content), data)
        yield f"{name}, behind", file_of(start, data, chunk(kind, content))
    yield "transparent RGB", of_type(RGB, 8, chunk(b"tRNS", struct.pack(">HHH", 7, 7, 7)))
    yield "RGB", of_type(RGB, 8)
    yield "grey and alpha", of_type(GREY_ALPHA, 8)
    yield "RGB and alpha", of_type(RGBA, 8)
    for depth in (1, 2, 4, 8):
        yield f"a palette, {depth} bits", of_type(PALETTE, depth, palette)
    yield "a palette that is not there", of_type(PALETTE, 8)
    for depth in (1, 2, 4, 16, 3):
        yield f"grey, {depth} bits", of_type(GREY, depth)
    yield "RGB, 16 bits", of_type(RGB, 16)
    yield "an unknown colour type", file_of(header(3, 4, 1), data)
    yield "interlaced", file_of(header(3, 4, interlaced=1), chunk(b"IDAT", zlib.compress(rows * 2)))
    yield "another packing", file_of(header(3, 4, packing=1), data)
    yield "other filters", file_of(header(3, 4, filtering=1), data)
    yield "a filter of no such number", file_of(start, chunk(b"IDAT", zlib.compress(b"\5" + rows[1:])))
    yield "no width", file_of(header(0, 4), data)
    yield "no height", file_of(header(3, 0), data)
    yield "another size", plain(4, 3)
    yield "too large", file_of(header(2**31 - 1, 2**31 - 1), data)
    yield "trailing bytes", sound + b"and more"
    yield "cut in the signature", sound[:6]
    yield "cut in the header", sound[:20]
    yield "cut in the pixels", sound[:50]
    yield "cut before the end", sound[:-12]
    yield "cut in the end", sound[:-5]
    yield "nothing", b""
    yield "None", None
    yield "not an image", b"no image"
    yield "jpeg", jpeg.getvalue()
    yield "wrong signature", damaged(sound, 1, 0)
    yield "wrong sum of the header", damaged(sound, 32, sound[32] ^ 1)
    yield "wrong sum of the pixels", damaged(sound, len(sound) - 13, sound[-13] ^ 1)
    yield "wrong sum of the end", damaged(sound, len(sound) - 1, sound[-1] ^ 1)
    yield "wrong length of the pixels", damaged(sound, 36, sound[36] + 1)
    yield "too few rows", file_of(start, chunk(b"IDAT", zlib.compress(rows[:-4])))
    yield "a byte too few", file_of(start, chunk(b"IDAT", zlib.compress(rows[:-1])))
    yield "a byte too many", file_of(start, chunk(b"IDAT", zlib.compress(rows + b"\0")))
    yield "rows too many", file_of(start, chunk(b"IDAT", zlib.compress(rows * 3)))
    yield "packed without an end", file_of(start, chunk(b"IDAT", packed[:-4]))
    yield "packed with a wrong sum", file_of(start, chunk(b"IDAT", packed[:-1] + bytes([packed[-1] ^ 1])))
    yield "packed, and bytes behind", file_of(start, chunk(b"IDAT", packed + b"\0\0"))
    yield "not packed", file_of(start, chunk(b"IDAT", rows))


ODD = dict(odd_files())


@pytest.mark.parametrize("name", ODD)
def test_odd_files_go_to_pillow(name):
    sound, odd = [plain(seed=seed) for seed in range(15)], [ODD[name]]
    for files in (odd + sound, sound + odd, odd * 16):
        assert (png.decoded(files) is None) == (files != odd * 16 or name not in ("RGB", "another size"))
        same_by_pillow_alone(files)


@pytest.mark.parametrize("odd", [{"depth": 1}, {"depth": 2}, {"depth": 4}, {"interlaced": 1}])
def test_other_layouts_of_as_many_bytes(odd):
    """In images of one column, only the header tells them from plain ones."""
    rows = [rows_of(1, 4, np.random.default_rng(seed)) for seed in range(8)]
    files = [file_of(header(1, 4, **odd), chunk(b"IDAT", zlib.compress(each))) for each in rows]
    assert png.decoded(files) is None
    same_by_pillow_alone(files)


@given(st.data())
def test_a_changed_byte_anywhere(data):
    """Also with sums that agree with it: of a chunk, by which it could go unseen."""
    files = [plain(3, 4, seed) for seed in range(12)]
    at, row = data.draw(st.integers(0, len(files[0]) - 1)), data.draw(st.integers(0, 11))
    changed = damaged(files[row], min(at, len(files[row]) - 1), data.draw(st.integers(0, 255)))
    if data.draw(st.booleans()):
        begin, body = changed[:8], changed[8:-12]
        changed = begin + chunk(body[4:8], body[8:21]) + chunk(body[29:33], body[33:-4]) + changed[-12:]
    files[row] = changed
    same_by_pillow_alone(files)


def test_columns_without_files_of_images():
    columns = {
        "numbers": [1, 2, 3],
        "texts": ["a", "b", "c"],
        "other": [{"pixels": b"a"}] * 3,
        "texts inside": [{"bytes": "a"}] * 3,
        "lists inside": [{"bytes": [1, 2]}] * 3,
    }
    table = Table(pyarrow.table(columns), ["x.parquet"], [0])
    for column in columns:
        with pytest.raises(pfedbred.SettingError, match=r"x\.parquet, row 0 does not hold an image"):
            table.images(column)
    assert png.decoded([]) is None


def test_few_or_large_images_go_to_pillow():
    """For them it is the faster way."""
    files = [plain(5, 5, seed) for seed in range(25)]
    assert png.decoded(files) is not None
    assert png.decoded(files[1:]) is None
    same_by_pillow_alone(files[1:])
    large = plain(80, 80)
    assert png.decoded([large] * 80**2) is None


def test_little_that_unpacks_into_much_takes_no_memory():
    bomb = file_of(header(3, 4), chunk(b"IDAT", zlib.compress(bytes(2**26))))
    assert len(bomb) < 2**17
    files = [bomb] * 20
    tracemalloc.start()
    try:
        assert png.decoded(files) is None
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    same_by_pillow_alone(files)
