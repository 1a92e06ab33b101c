"""Small images of every format and subtype, and their pixels by Pillow."""

import io
import re
import struct
import warnings
import zlib

import numpy as np
import PIL.features
from dataset_helpers import encoded
from PIL import Image, ImageOps


def is_native(name):
    """Whether TensorFlow decodes an image, by its name in `files`."""
    return name.startswith(("JPEG ", "PNG ")) and not re.search(
        "CMYK|YCCK", name
    )


_WIDTH, _HEIGHT = 14, 11
_generator = np.random.default_rng(0)


def _random(*shape: int, high: int = 256, kind: type = np.uint8) -> np.ndarray:
    return _generator.integers(0, high, [_HEIGHT, _WIDTH, *shape]).astype(kind)


def _smooth(channels: int) -> np.ndarray:
    """Slow changes, which lossy formats keep; no axis is symmetric."""
    y, x = np.mgrid[:_HEIGHT, :_WIDTH]
    planes = [60 + 9 * x + 4 * y, 200 - 8 * x, 30 + 17 * y, 90 + 5 * x + 3 * y]
    return np.stack(planes[:channels], -1).astype(np.uint8)


_PIXELS, _DEEP = _random(3), _random(3, high=1 << 16, kind=np.uint16)
_RGB = Image.fromarray(_PIXELS)
_GREY, _ONE = _RGB.convert("L"), _RGB.convert("1")
_PALETTE = _RGB.convert("P", palette=Image.Palette.ADAPTIVE)
_RGBA = Image.fromarray(_random(4), "RGBA")
_LA = _RGBA.convert("LA")
_GREY16 = Image.fromarray(_DEEP[..., 0])
_PHOTO, _CMYK = Image.fromarray(_smooth(3)), Image.fromarray(_smooth(4), "CMYK")
_FRAMES = [Image.fromarray(_random(3)) for _ in range(3)]
_MORE = {"save_all": True, "append_images": _FRAMES[1:]}


def exif_of(orientation: int, endian: str = "<") -> bytes:
    """TIFF's structure of one orientation, after another entry."""
    mark = b"II*\0" if endian == "<" else b"MM\0*"
    first = struct.pack(endian + "HHI4s", 0x0100, 4, 1, bytes(4))
    second = struct.pack(endian + "HHIHH", 0x0112, 3, 1, orientation, 0)
    directory = struct.pack(endian + "IH", 8, 2) + first + second
    return mark + directory + bytes(4)


def _xmp(orientation: int) -> bytes:
    text = f'<rdf:Description tiff:Orientation="{orientation}"/>'
    return f"<x:xmpmeta>{text}</x:xmpmeta>".encode()


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def _with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    """Puts segments directly after a JPEG's first two bytes."""
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def _jpegs() -> dict[str, bytes]:
    photo = encoded(_PHOTO, "JPEG", quality=95)
    cmyk = encoded(_CMYK, "JPEG", quality=95)
    start = photo.index(b"\xff\xe0")
    end = start + 2 + int.from_bytes(photo[start + 2 : start + 4])
    bare = photo[:start] + photo[end:]
    adobe = b"Adobe\0\x64\0\0\0\0"
    exif = {n: segment(0xE1, b"Exif\0\0" + exif_of(n)) for n in (1, 3, 6, 8)}
    xmp = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + _xmp(6))
    mpo = encoded(_PHOTO, "MPO", save_all=True, append_images=[_PHOTO])
    cut = segment(0xE1, b"Exif\0\0" + exif_of(6)[:20])
    long = segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(60_000))
    files = {
        "plain": photo,
        "progressive": encoded(_PHOTO, "JPEG", quality=95, progressive=True),
        "4:2:2": encoded(_PHOTO, "JPEG", quality=95, subsampling=1),
        "grey": encoded(_PHOTO.convert("L"), "JPEG", quality=95),
        "CMYK of Adobe": cmyk,
        "YCCK": cmyk.replace(adobe + b"\0", adobe + b"\2"),
        "RGB of Adobe": _with_segments(bare, segment(0xEE, adobe + b"\0")),
        "MPO, EXIF 6": _with_segments(mpo, exif[6]),
        "EXIF in the second segment": _with_segments(photo, long, exif[8]),
        "EXIF 1, XMP 6": _with_segments(photo, exif[1], xmp),
        "XMP": _with_segments(photo, xmp),
        "two EXIF segments": _with_segments(photo, exif[3], exif[6]),
        "trailing bytes": photo + bytes(100) + b"Exif\0\0" + exif_of(6),
        "EXIF cut off": _with_segments(photo, cut),
    }
    for n in range(10):
        for endian, name in ("<", "little"), (">", "big"):
            block = segment(0xE1, b"Exif\0\0" + exif_of(n, endian))
            files[f"EXIF {n}, {name} endian"] = _with_segments(photo, block)
    return files


def chunk(name: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check


def png(size, data=b"", depth=8, color=2, before=b"", after=b"") -> bytes:
    """A PNG of any declared (width, height), and of any data."""
    header = struct.pack(">IIBBBBB", *size, depth, color, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(data))
    parts = chunk(b"IHDR", header), before, data, after
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def _png(depth, color, rows, before=b"", after=b"") -> bytes:
    data = b"".join(b"\0" + row for row in rows)
    return png((_WIDTH, _HEIGHT), data, depth, color, before, after)


def _packed(values: np.ndarray, bits: int) -> list[bytes]:
    """Rows of numbers of 1, 2, 4 or 8 bits."""
    places = np.arange(bits)[::-1]
    rows = (values[..., np.newaxis] >> places & 1).reshape(len(values), -1)
    return [np.packbits(row).tobytes() for row in rows]


def _pngs() -> dict[str, bytes]:
    plain = encoded(_RGB, "PNG")
    rgb = [row.tobytes() for row in _PIXELS]
    exif = chunk(b"eXIf", exif_of(6, ">"))
    xmp = b"XML:com.adobe.xmp\0\0\0\0\0" + _xmp(6)
    files = {
        "rgb": plain,
        "grey": encoded(_GREY, "PNG"),
        "palette": encoded(_PALETTE, "PNG"),
        "palette, transparent": encoded(_PALETTE, "PNG", transparency=0),
        "rgba": encoded(_RGBA, "PNG"),
        "grey and alpha": encoded(_LA, "PNG"),
        "EXIF after the data": _png(8, 2, rgb, after=exif),
        "EXIF in a text": _png(8, 2, rgb, _raw_profile(False)),
        "EXIF in a compressed text": _png(8, 2, rgb, _raw_profile(True)),
        "XMP": _png(8, 2, rgb, chunk(b"iTXt", xmp)),
        "trailing EXIF": plain + b"Exif\0\0" + exif_of(6),
    }
    for channels, color in ((1, 0), (2, 4), (3, 2), (4, 6)):
        deep = _random(channels, high=1 << 16, kind=">u2")
        rows = [row.tobytes() for row in deep]
        files[f"16 bits, {channels} channels"] = _png(16, color, rows)
    files["12 of 16 bits"] = encoded(Image.fromarray(_DEEP[..., 0] >> 4), "PNG")
    for bits in (1, 2, 4):
        rows = _packed(_random(high=1 << bits), bits)
        palette = chunk(b"PLTE", _generator.bytes(3 << bits))
        files[f"grey of {bits} bits"] = _png(bits, 0, rows)
        files[f"palette of {bits} bits"] = _png(bits, 3, rows, palette)
    for n in range(1, 9):
        before = chunk(b"eXIf", exif_of(n, "<>"[n % 2]))
        files[f"EXIF {n}"] = _png(8, 2, rgb, before)
    return files


def _raw_profile(compressed: bool) -> bytes:
    """EXIF data as ImageMagick writes them."""
    block = b"Exif\0\0" + exif_of(6, ">")
    digits = block.hex()
    lines = "\n".join(digits[i : i + 72] for i in range(0, len(digits), 72))
    text = f"\nexif\n{len(block):8}\n{lines}\n".encode()
    name = b"Raw profile type exif\0"
    if compressed:
        return chunk(b"zTXt", name + b"\0" + zlib.compress(text))
    return chunk(b"tEXt", name + text)


def _bmps() -> dict[str, bytes]:
    deep = bytearray(encoded(_RGB, "BMP"))
    deep[28:30] = struct.pack("<H", 2)  # No such number of bits.
    others = {
        "palette": encoded(_PALETTE, "BMP"),
        "32 bits": encoded(_RGBA, "BMP"),
    }
    return {"24 bits": encoded(_RGB, "BMP"), **others, "2 bits": bytes(deep)}


def _tiff(pixels, endian="<", form=1, white_first=False) -> bytes:
    """Uncompressed grey; `form`: 1 unsigned, 2 signed, 3 float."""
    data = pixels.astype(pixels.dtype.newbyteorder(endian)).tobytes()
    bits = 8 * pixels.dtype.itemsize
    entries = {0x100: _WIDTH, 0x101: _HEIGHT, 0x102: bits, 0x103: 1}
    entries |= {0x106: 0 if white_first else 1, 0x111: 8, 0x115: 1}
    entries |= {0x116: _HEIGHT, 0x117: len(data), 0x153: form}
    table = [(tag, 4, 1, value) for tag, value in entries.items()]
    return tiff(data, table, endian)


def tiff(data: bytes, entries: list[tuple], endian: str = "<") -> bytes:
    """A file of data, and of entries (tag, type, count, value)."""
    mark = b"II*\0" if endian == "<" else b"MM\0*"
    out = mark + struct.pack(endian + "I", 8 + len(data)) + data
    out += struct.pack(endian + "H", len(entries))
    parts = (struct.pack(endian + "HHII", *entry) for entry in entries)
    return out + b"".join(parts) + bytes(4)


def _planes(pixels: np.ndarray) -> bytes:
    """Uncompressed colours of 16 bits [h, w, 3], plane after plane."""
    size = 2 * _WIDTH * _HEIGHT
    strips = [8 + size * plane for plane in range(3)]
    data = np.moveaxis(pixels, -1, 0).astype("<u2").tobytes()
    place = 8 + len(data)
    data += struct.pack("<6I3H", *strips, *[size] * 3, *[16] * 3)
    numbers = {0x100: _WIDTH, 0x101: _HEIGHT, 0x103: 1, 0x106: 2, 0x115: 3}
    numbers |= {0x116: _HEIGHT, 0x11C: 2}
    entries = [(tag, 4, 1, value) for tag, value in numbers.items()]
    entries += [(0x102, 3, 3, place + 24), (0x111, 4, 3, place)]
    return tiff(data, sorted([*entries, (0x117, 4, 3, place + 12)]))


def _tiffs() -> dict[str, bytes]:
    deep = _DEEP[..., 0]
    files = {
        "16 bits, big endian": _tiff(deep, ">"),
        "16 bits, white first": _tiff(deep, white_first=True),
        "16 bits, signed": _tiff(deep.astype(np.int16), form=2),
        "16 bits in planes": _planes(_DEEP),
        "8 bits, signed": _tiff(_PIXELS[..., 0], form=2),
        "32 bits": _tiff(deep.astype(np.uint32) << 16),
        "float": _tiff(deep.astype(np.float32), form=3),
        "YCbCr": encoded(_PHOTO.convert("YCbCr"), "TIFF"),
        "16 bits": encoded(_GREY16, "TIFF"),
        "in deflate": encoded(_RGB, "TIFF", compression="tiff_adobe_deflate"),
        "in JPEG": encoded(_PHOTO, "TIFF", compression="jpeg", quality=95),
        "pages": encoded(_FRAMES[0], "TIFF", **_MORE),
    }
    for n in range(1, 9):
        files[f"orientation {n}"] = encoded(_RGB, "TIFF", tiffinfo={0x112: n})
    return files


def _pnms() -> dict[str, bytes]:
    size = f"{_WIDTH} {_HEIGHT}\n"

    def raw(kind: str, top: int, values: np.ndarray) -> bytes:
        form = ">u2" if top > 255 else "u1"
        head = f"{kind}\n{size}{top}\n".encode()
        return head + values.astype(form).tobytes()

    floats = _random(kind=np.float32).tobytes()
    files = {
        "rgb": encoded(_RGB, "PPM"),
        "1 bit": encoded(_ONE, "PPM"),
        "float": f"Pf\n{size}-1.0\n".encode() + floats,
    }
    for top in (1, 255, 256, 65535):
        grey, rgb = (_random(*c, high=top + 1, kind=int) for c in ((), (3,)))
        files[f"grey to {top}"] = raw("P5", top, grey)
        files[f"rgb to {top}"] = raw("P6", top, rgb)
    return files


def _others() -> dict[str, bytes]:
    kinds = {
        "WEBP lossless": encoded(_RGB, "WEBP", lossless=True),
        "WEBP lossy": encoded(_PHOTO, "WEBP"),
        "WEBP rgba": encoded(_RGBA, "WEBP", lossless=True),
        "WEBP XMP": encoded(_RGB, "WEBP", lossless=True, xmp=_xmp(6)),
    }
    for n in (1, 6, 7):
        exif = Image.Exif()
        exif[0x112] = n
        kinds[f"WEBP EXIF {n}"] = encoded(
            _RGB, "WEBP", exif=exif, lossless=True
        )
        if PIL.features.check("avif"):
            kinds[f"AVIF EXIF {n}"] = encoded(_PHOTO, "AVIF", exif=exif)
    return kinds


_ENDINGS = {"JPEG": "jpg", "TIFF": "tif", "PPM": "ppm"}


def files() -> dict[str, tuple[str, bytes]]:
    """All images: format and subtype -> (ending of the file's name, bytes)."""
    gifs = {
        "plain": encoded(_PALETTE, "GIF", interlace=0),
        "transparent": encoded(_PALETTE, "GIF", transparency=5, interlace=0),
        "animated": encoded(_FRAMES[0], "GIF", loop=0, **_MORE),
    }
    tables = {"JPEG": _jpegs(), "PNG": _pngs(), "GIF": gifs}
    tables |= {"BMP": _bmps(), "TIFF": _tiffs(), "PPM": _pnms()}
    named = {f"{k} {n}": b for k, t in tables.items() for n, b in t.items()}
    named |= _others()
    found = {}
    for name, content in named.items():
        kind = name.split()[0]
        found[name] = _ENDINGS.get(kind, kind.lower()), content
    return found


def by_pillow(content: bytes, upright: bool = True) -> np.ndarray | None:
    """The pixels, uint8 [h, w, 3], or None; of 16 bits the upper 8."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(content))
            is_pgm = image.mode == "I" and image.format == "PPM"
            is_deep = is_pgm or image.mode.startswith("I;16")
            if image.mode in ("I", "F") and not is_deep:
                return None
            turned = ImageOps.exif_transpose(image) if upright else image
            if is_deep:
                upper = (np.asarray(turned) >> 8).astype(np.uint8)
                return np.repeat(upper[..., np.newaxis], 3, -1)
            return np.asarray(turned.convert("RGB"))
    except Exception:
        return None
