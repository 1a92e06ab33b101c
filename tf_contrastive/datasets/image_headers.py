"""What the header of an encoded image says, read before it is decoded.

A file of a few bytes can declare 100,000 x 100,000 pixels, for which a decoder
would allocate 30 GB. A progressive JPEG can have thousands of scans, and each
takes as long as the whole image. Of some subtypes TensorFlow returns other
pixels than Pillow. The functions are TensorFlow operations on the bytes of one
file. They fail if the bytes are not such a file; the caller drops it.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import tensorflow as tf

_P = ParamSpec("_P")
_T = TypeVar("_T")

_HOST = "/device:CPU:0"

# Limit of the steps over the parts of a GIF before its first image, and over
# the metadata of a JPEG. Ordinary files take some dozens; a malicious one must
# not keep the server busy.
_MAX_STEPS = 1000
# Scans of a JPEG. Encoders write at most about a dozen; a thumbnail in the
# metadata has its own.
_MAX_SCANS = 20
_SCAN = b"\xff\xda"  # Starts a scan; it cannot occur within one.
_JPEG, _PNG, _GIF, _BMP = b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM"
_FULL = 255  # Bytes of a full block of a GIF.
_XMP_ORIENTATION = b"tiff:Orientation"
# Bytes at the start and at the end of a file that may have these data.
_METADATA_PLACE = 1 << 17
# What such data start with in a JPEG, and in a PNG, in which ImageMagick writes
# EXIF data as a text.
_MARKS = (
    _EXIF_MARK := b"Exif\0\0",
    _XMP_MARK := b"http://ns.adobe.com/xap/1.0/\0",
    _PNG_EXIF := b"eXIf",
    _PNG_TEXT := b"Raw profile type exif\0",
    _PNG_XMP := b"XML:com.adobe.xmp\0",
)
_MAX_METADATA = 1 << 16  # Bytes, as a JPEG can have in a segment.
_ORIENTATION = 0x0112  # Its tag.
# Types of its value, of 16 and of 32 bits, and what TIFF starts with.
_SHORTS, _LONGS, _TIFF = (3, 8), (4, 9), 42
_ABSENT = -1
_ADOBE = b"\xff\xee\0\x0eAdobe"  # Its segment of a JPEG.
_SCAN_MARKER = 0xFFDA
# Of a BMP: sizes of its second header; masks of its colours, if they are in
# this order or not given, and the compression that has them.
_BMP_HEADERS = (40, 52, 56, 64, 108, 124)
_BGR, _NO_MASKS = b"\0\0\xff\0\0\xff\0\0\xff\0\0\0", bytes(12)
_MASKED = 3
_MAX_COLORS = 256  # In the palette of a BMP with 8 bits per pixel.
# Of a JPEG: what it starts with if it has JFIF's segment, of 16 bytes; the
# marker of a table of numbers, and the one of a byte that fills a gap.
_JFIF, _TABLE, _FILL = b"\xff\xd8\xff\xe0\0\x10", b"\xff\xdb", 0xFFFF


def on_host(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Keeps a function's operations on the CPU.

    TensorFlow would place some on a GPU, each with copies of a few bytes; and
    beside an H200 a few PNGs were turned otherwise than their EXIF data say.
    """

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if tf.executing_eagerly():
            scope = tf.device(_HOST)
        else:  # The branches of `tf.cond` inherit only a function.
            scope = tf.compat.v1.device(lambda _: _HOST)
        with scope:
            return function(*args, **kwargs)

    return run


@on_host
def check(data: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Returns an image file's bytes, string [], if they may be decoded.

    Those of a GIF are of its first image alone; see `first_image`.

    Raises:
      InvalidArgumentError: for what is not `is_native`, an incomplete header,
        more pixels, or a JPEG of too many scans.
    """
    checked, pixels, is_same = _examined(data)
    # One after the other: what runs while another fails is cancelled, and
    # TensorFlow might report that, which no dataset ignores.
    with tf.control_dependencies([pixels]):
        scans = tf.cond(
            _starts(data, _JPEG),
            lambda: tf.size(tf.strings.split(data, _SCAN)) - 1,
            lambda: 0,
        )
    fits = tf.debugging.Assert(
        is_same & (pixels > 0) & (pixels <= max_pixels) & (scans <= _MAX_SCANS),
        ["not a usual JPEG, PNG, GIF or BMP, or too much; pixels:", pixels],
    )
    # Decoding must take the result as its input: stateless operations do not
    # wait for an earlier assertion.
    with tf.control_dependencies([fits]):
        return tf.identity(checked)


@on_host
def first_image(data: tf.Tensor) -> tf.Tensor:
    """Reduces the bytes, string [], of a GIF to its first image.

    TensorFlow decodes all images of a GIF, also where it returns only one, and
    paints transparent pixels black; the result has no transparent colour.
    Bytes of other formats are returned unchanged.
    """
    return tf.cond(
        _starts(data, _GIF), lambda: _first_of_gif(data)[0], lambda: data
    )


@on_host
def decode(data: tf.Tensor, halvings: tf.Tensor | None = None) -> tf.Tensor:
    """Decodes the bytes, string [], of a file that `is_native`.

    Args:
      data: the bytes, those of a GIF of its first image alone.
      halvings: how often to halve a JPEG, 0 to 3, int32 [].

    Returns:
      uint8 [h, w, 3].
    """

    def of_jpeg(number: int = 0) -> tf.Tensor:
        # As Pillow does. The faster transform overflows, from white to black,
        # where neighbours are black and white.
        return tf.io.decode_jpeg(
            data,
            channels=3,
            ratio=2**number,
            dct_method="INTEGER_ACCURATE",
        )

    def halved() -> tf.Tensor:
        sizes = [functools.partial(of_jpeg, number) for number in range(4)]
        return tf.switch_case(halvings, sizes)

    image = tf.cond(
        _starts(data, _JPEG),
        of_jpeg if halvings is None else halved,
        lambda: tf.io.decode_image(data, channels=3, expand_animations=False),
    )
    image.set_shape([None, None, 3])
    return image


@on_host
def is_native(data: tf.Tensor) -> tf.Tensor:
    """Whether TensorFlow decodes a file's bytes, string [], as Pillow does.

    Returns:
      bool []; False for another format, and for what TensorFlow reads
      differently: a JPEG in CMYK that Adobe's marker does not explain, a GIF
      whose first image does not fill its canvas or has no colours, a BMP with
      a palette of other than grey values, with other than 8 bits per colour,
      or with bytes after its pixels.
    """

    def other() -> tf.Tensor:
        return _examined(data)[2]

    def of_jpeg() -> tf.Tensor:
        channels = tf.io.extract_jpeg_shape(data)[2]
        return tf.cond(channels < 4, lambda: True, other)

    return tf.case(
        [
            (_starts(data, _PNG), lambda: tf.constant(True)),
            (_starts(data, _JPEG), of_jpeg),
        ],
        default=other,
    )


def is_native_file(contents: bytes) -> bool:
    """Returns `is_native` of bytes, of a usual file without its operations.

    Raises:
      InvalidArgumentError: for a JPEG of a kind that TensorFlow does not read.
    """
    is_usual = contents.startswith(_PNG) or (
        contents.startswith(_JPEG)
        and tf.io.extract_jpeg_shape(contents).numpy()[2] < 4
    )
    return is_usual or bool(is_native(contents))


@on_host
def native(data: tf.Tensor) -> tf.Tensor:
    """Returns the bytes, string [], of a file that `is_native`, for `decode`.

    Raises:
      InvalidArgumentError: for others.
    """

    def checked() -> tf.Tensor:
        first, _, is_same = _examined(data)
        text = "TensorFlow does not decode this image, or not as Pillow does"
        with tf.control_dependencies([tf.debugging.Assert(is_same, [text])]):
            return tf.identity(first)

    def of_jpeg() -> tf.Tensor:
        channels = tf.io.extract_jpeg_shape(data)[2]
        return tf.cond(channels < 4, lambda: data, checked)

    # Without more for usual files: each operation takes time.
    return tf.case(
        [(_starts(data, _PNG), lambda: data), (_starts(data, _JPEG), of_jpeg)],
        default=checked,
    )


@on_host
def is_lossy(data: tf.Tensor) -> tf.Tensor:
    """Whether a file's bytes, string [], are of a lossy format; bool [].

    Those are JPEG, AVIF, HEIC, and WebP but for its lossless kind. JPEG 2000
    and TIFF count as lossless.
    """
    start = tf.strings.substr(data, 0, 12)
    is_heif = tf.strings.regex_full_match(start, r"\C{4}ftyp\C*")
    is_webp = tf.strings.regex_full_match(start, r"RIFF\C{4}WEBP")
    head = tf.strings.substr(data, 0, _MAX_METADATA)
    return _starts(data, _JPEG) | is_heif | (is_webp & ~_has(head, b"VP8L"))


@on_host
def orientation(data: tf.Tensor) -> tf.Tensor:
    """Reads the orientation of a JPEG's or PNG's bytes, string [].

    It is in the EXIF data or, if those lack it, in the XMP data.

    Returns:
      1 to 8, int32 []; 1, which is upright, if there is none.
    """

    def of_jpeg() -> tf.Tensor:
        # Most have no metadata but JFIF's.
        follows = tf.strings.substr(data, len(_JFIF) + _JFIF[-1] - 2, 2)
        return tf.cond(
            _starts(data, _JFIF) & (follows == _TABLE),
            lambda: 1,
            lambda: _jpeg_orientation(data),
        )

    def of_png() -> tf.Tensor:
        size = _METADATA_PLACE
        end = tf.maximum(tf.strings.length(data) - size, 0)
        edges = [tf.strings.substr(data, at, size) for at in (0, end)]
        edges = tf.strings.join(edges)
        marks = (_PNG_EXIF, _PNG_TEXT, _XMP_ORIENTATION)
        return tf.cond(
            tf.reduce_any([_has(edges, mark) for mark in marks]),
            lambda: _png_orientation(data),
            lambda: 1,
        )

    value = tf.case(
        [(_starts(data, _JPEG), of_jpeg), (_starts(data, _PNG), of_png)],
        default=lambda: tf.constant(1),
    )
    return tf.where((value >= 1) & (value <= 8), value, 1)


def may_be_turned(contents: bytes) -> bool:
    """Whether the bytes of a JPEG or PNG may have an `orientation` but 1.

    Those of its pixels can equal a mark, but those that equal none have none.
    """
    return any(mark in contents for mark in _MARKS)


@on_host
def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turns an image [h, w, K] to the orientation of its EXIF data, 1 to 8."""

    def turned() -> tf.Tensor:
        across = tf.cond(
            orientation >= 5,
            lambda: tf.transpose(image, [1, 0, 2]),
            lambda: image,
        )
        vertical = tf.reduce_any(orientation == [3, 4, 7, 8])
        horizontal = tf.reduce_any(orientation == [2, 3, 6, 7])
        return tf.raw_ops.Reverse(
            tensor=across, dims=tf.stack([vertical, horizontal, False])
        )

    turned_image = tf.cond(orientation > 1, turned, lambda: image)
    turned_image.set_shape([None, None, image.shape[-1]])
    return turned_image


def has_too_many_scans(contents: bytes) -> bool:
    """Whether the bytes of a JPEG have more scans than an encoder makes."""
    return contents.count(_SCAN) > _MAX_SCANS


# Not inlined: what few files need would cost all others time, since operations
# take some even if they are not executed.
def _on_bytes(function: Callable) -> Callable:
    return tf.function(
        on_host(function),
        input_signature=[tf.TensorSpec([], tf.string)],
        autograph=False,
        experimental_attributes={"_noinline": True},
    )


def _starts(data: tf.Tensor, magic: bytes) -> tf.Tensor:
    return tf.strings.substr(data, 0, len(magic)) == magic


def _has(data: tf.Tensor, mark: bytes) -> tf.Tensor:
    # Fewer operations than those of `tf.strings.split`.
    parts = tf.raw_ops.StringSplitV2(input=[data], sep=mark, maxsplit=1)
    return tf.size(parts.values) > 1


def _number(
    data: tf.Tensor, at: int | tf.Tensor, little_endian: bool = True
) -> tf.Tensor:
    """Returns the unsigned number of 4 bytes at byte `at`, int64 []."""
    text = tf.strings.substr(data, at, 4)
    value = tf.io.decode_raw(text, tf.int32, little_endian)
    # Fails if the file is too short.
    value = tf.reshape(value, [])
    return tf.cast(tf.bitcast(value, tf.uint32), tf.int64)


# ---- Subtypes ----------------------------------------------------------------


@_on_bytes
def _examined(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns a file, of a GIF the first image, its pixels and `is_native`.

    The pixels are -1 for other formats.
    """

    def of_jpeg() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        height, width, channels = tf.unstack(
            tf.io.extract_jpeg_shape(data, tf.int64)
        )
        adobe = tf.cond(
            channels == 4,
            lambda: _has_adobe(data),
            lambda: True,
        )
        return data, height * width, adobe

    def of_png() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        pixels = _number(data, 16, False) * _number(data, 20, False)
        return data, pixels, tf.constant(True)

    def of_bmp() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        height = _number(data, 22)  # Signed: negative from the top down.
        height = tf.where(height >= 2**31, 2**32 - height, height)
        return data, _number(data, 18) * height, _is_native_bmp(data)

    return tf.case(
        [
            (_starts(data, _JPEG), of_jpeg),
            (_starts(data, _PNG), of_png),
            (_starts(data, _GIF), lambda: _first_of_gif(data)),
            (_starts(data, _BMP), of_bmp),
        ],
        default=lambda: (data, tf.constant(-1, tf.int64), tf.constant(False)),
    )


def _is_native_bmp(data: tf.Tensor) -> tf.Tensor:
    start, header, height = (_number(data, at) for at in (10, 14, 22))
    bits = _number(data, 26) // 2**16  # After the number of planes.
    compression, end = _number(data, 30), 14 + header
    row = (bits // 8 * _number(data, 18) + 3) // 4 * 4
    pixels = row * tf.where(height >= 2**31, 2**32 - height, height)
    length = tf.strings.length(data)
    # TensorFlow refuses what follows, such as two bytes of Photoshop.
    is_whole = start + pixels == tf.cast(length, tf.int64)

    def is_grey() -> tf.Tensor:
        colors = _number(data, 46)
        colors = tf.where(colors > 0, colors, _MAX_COLORS)
        fits = colors <= _MAX_COLORS  # Of 2**32, a ramp would take 32 GiB.
        colors = tf.minimum(colors, _MAX_COLORS)
        table = tf.strings.substr(data, end, 4 * colors)
        table = tf.reshape(tf.io.decode_raw(table, tf.uint8), [colors, 4])
        ramp = tf.range(colors)[:, tf.newaxis]
        is_ramp = tf.reduce_all(tf.cast(table[:, :3], tf.int64) == ramp)
        is_ramp &= fits & (compression == 0)
        return is_ramp & (start >= end + 4 * colors)

    def is_color() -> tf.Tensor:
        masks = tf.strings.substr(data, 54, 12)
        usual = (masks == _BGR) | (masks == _NO_MASKS) & (bits == 32)
        usual = (compression == 0) | (compression == _MASKED) & usual
        return usual & ((bits == 24) | (bits == 32)) & (start >= end)

    known = tf.reduce_any(header == _BMP_HEADERS)
    return known & is_whole & tf.cond(bits == 8, is_grey, is_color)


@_on_bytes
def _first_of_gif(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns a GIF of the first image alone.

    Also the pixels of that image, or -1 if it is not complete, and whether it
    fills the canvas and has colours.
    """
    parts = tf.cast(tf.io.decode_raw(data, tf.uint8), tf.int32)

    def pair(at: tf.Tensor) -> tf.Tensor:
        return tf.cast(parts[at] + 256 * parts[at + 1], tf.int64)

    def color_bytes(flags: tf.Tensor) -> tf.Tensor:
        """Returns the size of the colour table that the flags announce."""
        size = 3 * tf.bitwise.left_shift(2, tf.bitwise.bitwise_and(flags, 7))
        return tf.where(flags >= 128, size, 0)

    def skip_blocks(at: tf.Tensor, steps: tf.Tensor) -> list[tf.Tensor]:
        """Skips the blocks from `at` on, including the empty last one."""

        def body(at: tf.Tensor, steps: tf.Tensor) -> list[tf.Tensor]:
            # A run of full blocks is one step.
            sizes = parts[at :: _FULL + 1]
            full = tf.concat([tf.cast(sizes == _FULL, tf.int32), [0]], 0)
            run = tf.argmin(full, output_type=tf.int32)
            size = tf.where(run > 0, run * (_FULL + 1), parts[at] + 1)
            return [at + size, steps + 1]

        def more(at: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
            return (parts[at] > 0) & (steps < _MAX_STEPS)

        at, steps = tf.while_loop(more, body, [at, steps])
        return [at + 1, steps]

    colors = color_bytes(parts[10])
    at, steps = tf.while_loop(
        lambda at, steps: (parts[at] == 0x21) & (steps < _MAX_STEPS),
        lambda at, steps: skip_blocks(at + 2, steps),
        [13 + colors, 0],
    )
    is_image = parts[at] == 0x2C
    left, top, width, height = (pair(at + i) for i in (1, 3, 5, 7))
    fills = (left + top == 0) & (width >= pair(6)) & (height >= pair(8))
    pixels = tf.maximum(pair(6), width) * tf.maximum(pair(8), height)
    local_colors = color_bytes(parts[at + 9])
    end, steps = skip_blocks(at + 10 + local_colors + 1, steps)
    whole = is_image & (steps < _MAX_STEPS) & (end <= tf.size(parts))
    # Without the extensions, which make a colour transparent.
    places = [(0, 13 + colors), (at, end - at)]
    kept = [tf.strings.substr(data, *place) for place in places]
    return (
        tf.strings.join([*kept, b"\x3b"]),
        tf.where(whole, pixels, -1),
        fills & (colors + local_colors > 0),
    )


# ---- Orientation -------------------------------------------------------------


def _segment(data: tf.Tensor, at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the marker of a JPEG's segment at a byte, and the segment's end.

    Beyond the file's end the marker is 0.
    """
    text = tf.strings.substr(data, tf.minimum(at, tf.strings.length(data)), 4)
    parts = tf.io.decode_raw(tf.strings.join([text, bytes(4)]), tf.uint8)
    parts = tf.cast(parts, tf.int32)
    marker = 256 * parts[0] + parts[1]
    end = at + 2 + 256 * parts[2] + parts[3]
    return marker, tf.where(marker == _FILL, at + 1, end)


def _is_metadata(marker: tf.Tensor) -> tf.Tensor:
    """Whether a marker is of an application, a comment, or fills a gap."""
    return (marker // 16 == 0xFFE) | (marker == 0xFFFE) | (marker == _FILL)


@_on_bytes
def _has_adobe(data: tf.Tensor) -> tf.Tensor:
    """Whether a JPEG, and not a thumbnail in it, has Adobe's segment."""

    def more(at: tf.Tensor, steps: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        marker, _ = _segment(data, at)
        is_header = (marker >= 0xFF00) & (marker != _SCAN_MARKER)
        return is_header & ~found & (steps < _MAX_STEPS)

    def body(
        at: tf.Tensor, steps: tf.Tensor, found: tf.Tensor
    ) -> list[tf.Tensor]:
        _, end = _segment(data, at)
        is_adobe = tf.strings.substr(data, at, len(_ADOBE)) == _ADOBE
        return [tf.maximum(end, at + 1), steps + 1, is_adobe]

    return tf.while_loop(more, body, [2, 0, tf.constant(False)])[2]


@_on_bytes
def _jpeg_orientation(data: tf.Tensor) -> tf.Tensor:
    """Returns that of a JPEG's first EXIF data, or of its last XMP data."""

    def more(at: tf.Tensor, steps: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        return _is_metadata(_segment(data, at)[0]) & (steps < _MAX_STEPS)

    def body(
        at: tf.Tensor, steps: tf.Tensor, exif: tf.Tensor, xmp: tf.Tensor
    ) -> list[tf.Tensor]:
        marker, end = _segment(data, at)
        start = tf.minimum(at + 4, tf.strings.length(data))
        text = tf.strings.substr(data, start, tf.maximum(end - start, 0))
        is_exif = (marker == 0xFFE1) & _starts(text, _EXIF_MARK) & (exif == b"")
        is_xmp = (marker == 0xFFE1) & _starts(text, _XMP_MARK)
        return [
            tf.maximum(end, at + 1),
            steps + 1,
            tf.where(is_exif, text, exif),
            tf.where(is_xmp, text, xmp),
        ]

    empty = tf.constant(b"")
    *_, exif, xmp = tf.while_loop(more, body, [2, 0, empty, empty])
    return _first(_exif(exif), xmp)


@_on_bytes
def _png_orientation(data: tf.Tensor) -> tf.Tensor:
    """Returns that of a PNG's EXIF data, or of its XMP data."""
    end = tf.strings.length(data)

    def chunk(mark: bytes) -> tf.Tensor:
        """Returns what follows in a chunk of this type, and of these bytes."""
        at = tf.strings.length(tf.strings.split(data, mark, maxsplit=1)[0])
        length = _number(data, at - 4, little_endian=False) + 4 - len(mark)
        length = tf.clip_by_value(length, 0, _MAX_METADATA)
        start = tf.minimum(at + len(mark), end)
        return tf.strings.substr(data, start, tf.cast(length, tf.int32))

    plain, zipped = chunk(b"tEXt" + _PNG_TEXT), chunk(b"zTXt" + _PNG_TEXT)
    plain = tf.cond(
        zipped == b"",
        lambda: plain,
        # After the byte that names the method.
        lambda: tf.io.decode_compressed(
            tf.strings.substr(zipped, 1, _MAX_METADATA), "ZLIB"
        ),
    )
    # Hexadecimal, after an empty line, the name and the length.
    lines = tf.strings.split(
        tf.strings.substr(plain, 0, 2 * _MAX_METADATA), b"\n"
    )
    text = tf.strings.reduce_join(lines[3:])
    text = tf.strings.regex_replace(text, "^(457869660000)+", b"")
    text = tf.strings.substr(text, 0, _MAX_METADATA)
    digits = tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)
    digits = tf.where(digits > ord("9"), digits % 32 + 9, digits - ord("0"))
    pairs = tf.reshape(digits[: tf.size(digits) // 2 * 2], [-1, 2])
    from_text = tf.cast(16 * pairs[:, 0] + pairs[:, 1], tf.uint8)
    exif = _exif(chunk(_PNG_EXIF))
    exif = tf.cond(tf.size(exif) > 0, lambda: exif, lambda: from_text)
    return _first(exif, chunk(b"iTXt" + _PNG_XMP))


def _first(exif: tf.Tensor, xmp: tf.Tensor) -> tf.Tensor:
    """Returns the orientation in EXIF data or, if those lack it, in XMP data.

    Args:
      exif: uint8 [n].
      xmp: string [].

    Returns:
      int32 [], any number; 1 if neither has it.
    """
    value = _of_exif(exif)
    return tf.cond(value == _ABSENT, lambda: _of_xmp(xmp), lambda: value)


def _exif(text: tf.Tensor) -> tf.Tensor:
    """Returns EXIF data, string [], without their mark, uint8 [n]."""
    text = tf.strings.regex_replace(text, r"^(Exif\x00\x00)+", b"")
    return tf.io.decode_raw(text, tf.uint8)


def _of_exif(block: tf.Tensor) -> tf.Tensor:
    """Returns the orientation in EXIF data, uint8 [n]; `_ABSENT` if none."""
    parts = tf.cast(block, tf.int32)
    # What lies beyond the end reads as 0.
    parts = tf.concat([parts, [0]], 0)
    end = tf.size(parts) - 1
    is_little = parts[0] == ord("I")

    def number(at: tf.Tensor) -> tf.Tensor:
        """Returns the 16-bit numbers at some bytes."""
        first, second = (
            tf.gather(parts, tf.minimum(at + i, end)) for i in (0, 1)
        )
        return tf.where(is_little, first + 256 * second, 256 * first + second)

    def long(at: tf.Tensor) -> tf.Tensor:
        """Returns the lower half of 32-bit numbers."""
        return number(at + tf.where(is_little, 0, 2))

    # The first directory: its place, the number of entries, and the entries.
    directory = long(tf.constant(4))
    at = directory + 2 + 12 * tf.range(number(directory))
    is_exif = (parts[0] == parts[tf.minimum(1, end)]) & (number(2) == _TIFF)
    is_entry = (number(at) == _ORIENTATION) & is_exif
    at = tf.boolean_mask(at, is_entry)
    kind, count = number(at + 2)[:, tf.newaxis], long(at + 4)
    is_short = tf.reduce_any(kind == _SHORTS, 1)
    is_long = tf.reduce_any(kind == _LONGS, 1)
    value = tf.where(is_short, number(at + 8), long(at + 8))
    # Of several values the first, if they are not elsewhere.
    usual = is_short & (count <= 2) | is_long & (count <= 1)
    value = tf.where(usual & (count > 0), value, 1)
    return tf.concat([value, [_ABSENT]], 0)[0]


def _of_xmp(text: tf.Tensor) -> tf.Tensor:
    """Returns the orientation in XMP data, string []; 1 if none."""
    follow = tf.strings.split(text, _XMP_ORIENTATION)[1:]
    follow = tf.strings.substr(follow, 0, 3)
    form = r'^(="|>)([0-9])\C*$'
    values = tf.boolean_mask(follow, tf.strings.regex_full_match(follow, form))
    values = tf.strings.regex_replace(values, form, r"\2")
    values = tf.strings.to_number(values, tf.int32)
    return tf.concat([values, [1]], 0)[0]
