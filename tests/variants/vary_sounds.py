"""Sounds: WAV with unusual lengths, chunks and headers, FLAC with unknown header values, MP3, Ogg Vorbis, and kinds that are refused.

Reference: soundfile (libsndfile), whose channels are averaged. It takes a WAV of stated length 0 for empty; there the samples that were
written are right, as in all files whose length is unknown. A kind that the stage does not read must be named in the message.
"""

from __future__ import annotations

import io
import random
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile

from kit import Variant, main
from stages import counted, deliver

RATES = [8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000]


@dataclass
class Clip:
    """One file, and its right samples."""

    # Class of the file in the table.
    what: str
    data: bytes
    end: str
    recipe: str
    # f32, [samples]; `None` if the file must fail.
    right: np.ndarray | None = None
    tolerance: float = 2e-6
    # True if the file may fail as well.
    may_fail: bool = False
    # Pattern of the message of a file that must fail.
    says: str = "."
    # True if the counters of the run must tell of the file.
    is_noted: bool = False
    # Samples after the right ones that a reader may take for sound, such as a chunk behind one of unknown length.
    most_more: int = 0
    # True if any number of samples from the start is right, as of files that end early.
    is_start: bool = False


def tones(rng: random.Random, rate: int, frames: int, channels: int) -> np.ndarray:
    """Tones and noise; f64, [frames, channels]."""
    noise = np.random.default_rng(rng.getrandbits(64)).normal(0, 0.05, (frames, channels))
    times = np.arange(frames)[:, None] / rate
    return np.clip(noise + 0.3 * np.sin(2 * np.pi * np.array([rng.uniform(50, rate / 4) for _ in range(channels)]) * times), -0.99, 0.99)


def averaged(samples: np.ndarray) -> np.ndarray:
    """The mean of the channels; f32, [samples]."""
    return samples.astype(np.float64).mean(axis=1).astype(np.float32)


def reference(data: bytes) -> np.ndarray | None:
    """Samples that soundfile reads, as the mean of the channels; `None` if it cannot."""
    try:
        return averaged(soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0])
    except Exception:
        return None


def encoded(samples: np.ndarray, rate: int, form: str, kind: str, **settings: Any) -> bytes:
    """A file as soundfile writes it."""
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=form, subtype=kind, **settings)
    return out.getvalue()


# WAV


def chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(content) if size is None else size) + content + bytes(len(content) % 2)


def pcm(samples: np.ndarray, bits: int, is_float: bool) -> tuple[bytes, np.ndarray]:
    """Bytes of samples, and what they are worth."""
    if is_float:
        values = samples.astype("<f4")
        return values.tobytes(), values
    steps = np.round(samples * (2 ** (bits - 1) - 1)).astype(np.int64)
    worth = steps / 2 ** (bits - 1)
    if bits == 8:
        return (steps + 128).astype(np.uint8).tobytes(), worth
    raw = steps.astype("<i8").reshape(-1).view(np.uint8).reshape(-1, 8)[:, : bits // 8]
    return raw.tobytes(), worth


def format_chunk(tag: int, channels: int, rate: int, bits: int, form: str, valid: int | None = None) -> bytes:
    block = channels * bits // 8
    head = struct.pack("<HHIIHH", 0xFFFE if form == "extensible" else tag, channels, rate, rate * block, block, bits)
    if form == "extensible":
        identity = struct.pack("<HHHH", tag, 0, 0, 0x10) + bytes.fromhex("800000aa00389b71")
        head += struct.pack("<HHI", 22, valid or bits, (1 << channels) - 1) + identity
    elif form == "long":
        head += b"\0\0"
    return chunk(b"fmt ", head)


def wav(rng: random.Random, rate: int) -> Clip:
    channels = rng.choice([1, 1, 2, 3, 6])
    frames = rng.choice([0, 1, 2, 7, 99, 400, 1001, 3000])
    bits, is_float = rng.choice([(8, False), (16, False), (16, False), (24, False), (32, False), (32, True)])
    form = rng.choice(["short", "short", "long", "extensible"])
    samples = tones(rng, rate, frames, channels)
    if rng.random() < 0.15:
        # Silence, whose bytes look like empty chunks.
        samples[: rng.choice([frames, frames // 2])] = 0
    data, worth = pcm(samples, bits, is_float)
    block = channels * bits // 8
    before = b"".join(rng.choice([
        chunk(b"LIST", b"INFOISFT" + struct.pack("<I", 4) + b"tool"), chunk(b"JUNK", bytes(rng.randint(0, 33))), chunk(b"fact", struct.pack("<I", frames)),
        chunk(b"bext", bytes(602)), chunk(b"PEAK", bytes(8 + 8 * channels)), chunk(b"odd ", b"x" * rng.randint(1, 9)),
    ]) for _ in range(rng.choice([0, 0, 1, 2])))
    first = chunk(b"JUNK", bytes(28)) if rng.random() < 0.2 else b""
    after = rng.choice([b"", b"", b"", chunk(b"LIST", b"INFO"), chunk(b"id3 ", bytes(9)), chunk(b"LIST", b"INFO") + chunk(b"cue ", bytes(4))])
    stated, riff = rng.choice([
        *[("right", "right")] * 4, ("zero", "zero"), ("zero", "right"), ("full", "full"), ("full", "right"), ("full", "zero"), ("beyond", "beyond"), ("beyond", "right"),
        ("right", "zero"), ("right", "full"), ("right", "beyond"), ("right", "short"), ("half", "right"), ("uneven", "right"), ("signed", "signed"),
    ])
    if stated == "half":
        size = frames // 2 * block
    elif stated == "uneven":
        # The sound ends within a frame, as it states.
        size = max(0, len(data) - rng.randint(1, max(1, block - 1)))
        data = data[:size]
    else:
        beyond, signed = len(data) + rng.choice([1, 2, block, 1000, 1 << 20]), rng.choice([0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0x7FFFF000])
        size = {"right": len(data), "zero": 0, "full": 0xFFFFFFFF, "beyond": beyond, "signed": signed}[stated]
    if stated in ("beyond", "full", "signed") and rng.random() < 0.2:
        # A file that ends within a frame.
        data = data[: max(0, len(data) - rng.randint(1, block))]
        after = b""
    if stated == "half":
        # The rest belongs to the next chunk.
        after, data = b"", data[: size] + bytes(size % 2) + chunk(b"junk", data[size:])
    elif stated == "beyond" and size <= len(data) + 1 + len(after):
        after = b""
    body = b"WAVE" + first + format_chunk(3 if is_float else 1, channels, rate, bits, form) + before
    rest = data + (bytes(len(data) % 2) if after or rng.random() < 0.8 else b"") + after
    whole = body + b"data" + struct.pack("<I", size) + rest
    total = {"right": len(whole), "zero": 0, "full": 0xFFFFFFFF, "beyond": len(whole) + rng.choice([1, 8, 5000]), "short": rng.choice([4, 36]), "signed": 0x7FFFFFFF}[riff]
    kind = f"{bits} bits{', float' if is_float else ''}, {form}"
    said = f"{frames} frames, {channels} channels, {kind} header, before {re.findall(b'LIST|JUNK|fact|bext|PEAK|odd ', first + before)}, after {after[:4]!r}"
    said += f", data states {stated} ({size} of {len(data)}), RIFF states {riff}"
    # A length of 0 belongs to an empty clip, unless samples follow; a single byte makes the chunk even.
    is_unknown = stated == "zero" and frames > 0 and len(rest) > 1 or size > len(rest)
    have = len(data) // block if is_unknown else frames // 2 if stated == "half" else min(size, len(data)) // block
    what = f"data states {stated}" if stated != "right" else f"RIFF states {riff}" if riff != "right" else kind
    clip = Clip(f"wav: {what}", b"RIFF" + struct.pack("<I", total) + whole, "wav", said, averaged(worth[:have]), may_fail=stated in ("uneven", "beyond") and size % block != 0 and not is_unknown)
    clip.is_noted = is_unknown
    if is_unknown or stated == "beyond":
        # The samples cannot be told from a chunk behind them and from the byte that makes a chunk even.
        clip.most_more = len(rest) // block - have
        clip.what += ", with a chunk behind it" if after else ""
    if stated in ("right", "half") and frames and reference(clip.data) is not None:
        assert np.allclose(reference(clip.data)[:have], clip.right, atol=1e-6), "soundfile reads other samples than were written"
    return clip


def odd_wav(rng: random.Random, rate: int) -> Clip:
    """Extensible headers with fewer valid bits than their samples have, and others at the edge of the format."""
    channels, frames = rng.choice([1, 2]), rng.choice([5, 400])
    bits, valid = rng.choice([(24, 20), (32, 24), (16, 12), (32, 20)])
    data, worth = pcm(tones(rng, rate, frames, channels), bits, False)
    body = b"WAVE" + format_chunk(1, channels, rate, bits, "extensible", valid) + chunk(b"data", data)
    clip = Clip("wav: fewer valid bits", b"RIFF" + struct.pack("<I", len(body)) + body, "wav", f"{valid} of {bits} bits, {channels} channels, {frames} frames", averaged(worth))
    assert np.allclose(reference(clip.data), clip.right, atol=1e-6), "soundfile reads other samples than were written"
    return clip


# FLAC


def flac(rng: random.Random, rate: int) -> Clip:
    channels, frames = rng.choice([1, 1, 2, 3, 8]), rng.choice([1, 15, 16, 17, 500, 4096, 4100, 6000])
    kind = rng.choice(["PCM_S8", "PCM_16", "PCM_16", "PCM_24"])
    data = bytearray(encoded(tones(rng, rate, frames, channels), rate, "FLAC", kind, compression_level=rng.choice([0, 0.5, 1])))
    right = reference(bytes(data))
    said, unknown = [f"{frames} frames, {channels} channels, {kind}"], []
    for name, places in {"least block": range(8, 10), "most block": range(10, 12), "least frame": range(12, 15), "most frame": range(15, 18), "digest": range(26, 42)}.items():
        if rng.random() < 0.4:
            data[places.start:places.stop] = bytes(len(places))
            unknown.append(name)
    if rng.random() < 0.4:
        data[21] &= 0xF0
        data[22:26] = bytes(4)
        unknown.append("length")
    if "least block" not in unknown and rng.random() < 0.1:
        data[8:10] = struct.pack(">H", rng.choice([1, 15, 16]))
        unknown.append("a smaller least block")
    if rng.random() < 0.4:
        picture = struct.pack(">II", 3, 9) + b"image/png" + struct.pack(">IIIIII", 0, 1, 1, 24, 0, 4) + b"\x89PNG"
        kind_of_block, content = rng.choice([(1, bytes(50)), (2, b"test" + bytes(9)), (4, struct.pack("<I", 3) + b"abc" + struct.pack("<I", 0)), (6, picture), (100, bytes(7))])
        data[42:42] = bytes([kind_of_block]) + len(content).to_bytes(3, "big") + content
        said.append(f"block {kind_of_block}")
    if rng.random() < 0.1:
        data[:0] = b"ID3\4\0\0\0\0\0\x14" + bytes(20)
        said.append("ID3")
    names = " ".join(unknown)
    what = "flac: unknown block size" if "block" in names else "flac: unknown length" if "length" in names else "flac: unknown frame size or digest" if unknown else "flac"
    if rng.random() < 0.05 and "length" not in unknown and frames > 400:
        cut = len(data) - rng.randint(20, 200)
        return Clip("flac: cut", bytes(data[:cut]), "flac", f"{said}, cut at {cut} of {len(data)}")
    return Clip(what, bytes(data), "flac", f"{', '.join(said)}, unknown {unknown}", right, may_fail="ID3" in said)


# MP3 and Ogg


def mp3(rng: random.Random, rate: int) -> Clip:
    channels, frames = rng.choice([1, 2]), rng.choice([1, 500, 1152, 4000, 9000])
    settings = {"compression_level": rng.choice([0, 0.5, 0.9])} | ({"bitrate_mode": rng.choice(["CONSTANT", "VARIABLE", "AVERAGE"])} if rng.random() < 0.7 else {})
    data = encoded(tones(rng, rate, frames, channels), rate, "MP3", "MPEG_LAYER_III", **settings)
    right = reference(data)
    said = f"{frames} frames, {channels} channels, {settings}"
    if rng.random() < 0.4:
        tag = b"TIT2" + struct.pack(">I", 6) + b"\0\0\0title" + bytes(rng.randint(0, 300))
        data = b"ID3\3\0\0" + bytes([0, 0, len(tag) >> 7, len(tag) & 127]) + tag + data
        said += ", ID3 before"
    if rng.random() < 0.3:
        data += b"TAG" + bytes(125)
        said += ", ID3 behind"
    elif rng.random() < 0.1:
        cut = rng.randint(len(data) // 2, len(data) - 1)
        return Clip("mp3: cut", data[:cut], "mp3", f"{said}, cut at {cut} of {len(data)}", right, tolerance=2e-4, may_fail=True, is_start=True)
    return Clip("mp3", data, "mp3", said, right, tolerance=2e-4)


def vorbis(rng: random.Random, rate: int) -> Clip:
    channels, frames = rng.choice([1, 2]), rng.choice([1, 300, 3000, 9000])
    data = encoded(tones(rng, rate, frames, channels), rate, "OGG", "VORBIS", compression_level=rng.choice([0, 0.5, 1]))
    said = f"{frames} frames, {channels} channels"
    act = rng.random()
    if act < 0.08:
        cut = rng.randint(30, len(data) - 1)
        while data[cut:cut + 4] == b"OggS":
            cut -= 1
        return Clip("vorbis: cut in a page", data[:cut], "ogg", f"{said}, cut at {cut} of {len(data)}")
    if act < 0.15:
        more = encoded(tones(rng, rate, 500, channels), rate, "OGG", "VORBIS")
        return Clip("vorbis: two streams in sequence", data + more, "ogg", said)
    return Clip("vorbis", data, "ogg", said, reference(data), tolerance=2e-4)


# Refused kinds


def ogg_page(content: bytes) -> bytes:
    """The first page of an Ogg file."""
    page = b"OggS\0\2" + bytes(8) + struct.pack("<III", 7, 0, 0) + bytes([1, len(content)]) + content
    crc = 0
    for byte in page:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ 0x04C11DB7 if crc & 1 << 31 else crc << 1) & 0xFFFFFFFF
    return page[:22] + struct.pack("<I", crc) + page[26:]


def box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + name + content


# Kinds by their names in soundfile, with the pattern that names them.
WRITTEN = {
    ("WAV", "ALAW"): "a-?law", ("WAV", "ULAW"): "(mu|µ|μ|u)-?law", ("WAV", "DOUBLE"): "double|64", ("WAV", "IMA_ADPCM"): "ADPCM", ("WAV", "MS_ADPCM"): "ADPCM",
    ("WAVEX", "ALAW"): "a-?law", ("WAVEX", "ULAW"): "(mu|µ|μ|u)-?law", ("WAVEX", "DOUBLE"): "double|64", ("RF64", "PCM_16"): "RF64", ("RF64", "FLOAT"): "RF64",
    ("AIFF", "PCM_16"): "AIFF", ("AIFF", "FLOAT"): "AIFF|AIFC", ("CAF", "PCM_16"): "CAF", ("CAF", "FLOAT"): "CAF", ("OGG", "OPUS"): "Opus",
    # Any reason is enough for these.
    ("WAV", "G721_32"): ".", ("WAV", "NMS_ADPCM_16"): ".", ("W64", "PCM_16"): ".", ("AU", "PCM_16"): ".", ("NIST", "PCM_16"): ".", ("VOC", "PCM_16"): ".", ("SVX", "PCM_16"): ".",
}
CRAFTED: dict[str, tuple[bytes, str]] = {
    "m4a": (box(b"ftyp", b"M4A \0\0\2\0M4A mp42isom\0\0\0\0") + box(b"moov", box(b"mvhd", bytes(100))) + box(b"mdat", bytes(1000)), "M4A|MP4|AAC"),
    "m4a, other brand": (box(b"ftyp", b"isom\0\0\2\0isomiso2mp41") + box(b"free", b"") + box(b"mdat", bytes(1000)), "M4A|MP4|AAC"),
    "speex": (ogg_page(b"Speex   1.2" + bytes(69)), "Ogg|Speex"),
    "ogg flac": (ogg_page(b"\x7fFLAC\1\0\0\1fLaC\0\0\0\x22" + bytes(34)), "Ogg|FLAC"),
    "theora": (ogg_page(b"\x80theora\3\2\1" + bytes(32)), "Ogg|Theora"),
    "aac": (b"\xff\xf1\x50\x80\x02\x1f\xfc" * 40, "."),
    "wma": (bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c") + bytes(500), "."),
    "webm": (b"\x1aE\xdf\xa3\x9fB\x86\x81\1B\xf7\x81\1B\xf2\x81\4B\xf3\x81\x08B\x82\x84webm" + bytes(300), "."),
    "amr": (b"#!AMR\n" + bytes(300), "."),
}


def refused(rng: random.Random, rate: int) -> Clip:
    if rng.random() < 0.25:
        name = rng.choice(list(CRAFTED))
        data, says = CRAFTED[name]
        return Clip(f"refused: {name}", data, "bin", name, says=says)
    form, kind = rng.choice(list(WRITTEN))
    rate = rng.choice([8000, 16000, 24000, 48000]) if kind == "OPUS" else 8000 if kind in ("G721_32", "NMS_ADPCM_16") else rate
    channels = 1 if kind in ("G721_32", "NMS_ADPCM_16") or form == "SVX" else rng.choice([1, 2])
    samples = tones(rng, rate, rng.choice([500, 2000]), channels)
    is_big = form == "WAV" and kind == "DOUBLE" and rng.random() < 0.3
    data = encoded(samples, rate, form, kind, **({"endian": "BIG"} if is_big else {}))
    if is_big:
        return Clip("refused: RIFX", data, "wav", f"RIFX, {channels} channels")
    clip = Clip(f"refused: {form} {kind}", data, rng.choice(["wav", "bin"]), f"{form}, {kind}, {channels} channels, {rate}/s", says=WRITTEN[form, kind])
    if kind in ("DOUBLE", "ALAW", "ULAW", "PCM_16", "FLOAT"):
        # To decode them is right, too.
        clip.may_fail, clip.right = True, reference(data)
    return clip


KINDS: dict[str, Callable[[random.Random, int], Clip]] = {"wav": wav, "odd wav": odd_wav, "flac": flac, "mp3": mp3, "vorbis": vorbis, "refused": refused}


def make(variant: Variant) -> None:
    rng = variant.rng
    kind = rng.choices(list(KINDS), [8, 0.5, 6, 2, 2, 5])[0]
    variant.tags.append(kind)
    rate = rng.choice(RATES)
    clips = [KINDS[kind](rng, rate) for _ in range(8)]
    check(variant, clips, {"output": "waveform", "sample_rate": rate})


def check(variant: Variant, clips: Sequence[Clip], params: dict[str, Any]) -> None:
    """Passes clips through the stage, and compares each."""
    named = {f"{number:02}.{clip.end}": clip for number, clip in enumerate(clips)}
    outcome, arrays, messages = deliver(variant, {name: clip.data for name, clip in named.items()}, {"module": "std/audio", "params": params}, "waveform")
    if outcome.code == 2 or not arrays and not messages:
        variant.differ("no sample at all", "an outcome of each file", outcome.errors)
        return
    for name, clip in named.items():
        known = len(variant.differences)
        judge(variant, name, clip, arrays.get(name), messages.get(name))
        if len(variant.differences) > known:
            variant.note(f"{name}: {clip.what}: {clip.recipe}")
    noted = sum(clip.is_noted for name, clip in named.items() if name in arrays)
    told = counted(outcome, "read_to_end")
    if told != noted:
        variant.differ("wav: the counter of unknown lengths", f"{noted} files", outcome.snapshot.get("counters"))


def judge(variant: Variant, name: str, clip: Clip, found: np.ndarray | None, message: str | None) -> None:
    """Compares one result with what is right."""
    said = f"{name}, {clip.recipe}"
    if found is None and message is None:
        variant.differ(f"{clip.what}: lost without a message", said, "neither a sample nor a failure")
    elif found is None:
        if message.startswith("bug: "):
            variant.differ(f"{clip.what}: the stage itself fails", said, message)
        elif clip.right is not None and not clip.may_fail:
            variant.differ(f"{clip.what}: fails", f"{clip.right.shape} of {said}", message)
        elif not re.search(clip.says, message, re.I):
            variant.differ(f"{clip.what}: message", f"/{clip.says}/ for {said}", message)
    elif clip.right is None:
        variant.differ(f"{clip.what}: passes", f"a failure of {said}", found.shape)
    elif not (0 if clip.is_start else len(clip.right)) <= len(found) <= len(clip.right) + clip.most_more:
        variant.differ(f"{clip.what}: length", f"{clip.right.shape} of {said}", found.shape)
    else:
        distance = np.abs(found[: len(clip.right)].astype(float) - clip.right[: len(found)]).max(initial=0)
        if not distance <= clip.tolerance:
            variant.differ(f"{clip.what}: samples", f"those of soundfile for {said}", f"up to {distance:.3g} away")


if __name__ == "__main__":
    main("sounds", make)
