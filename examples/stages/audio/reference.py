"""Makes the fixtures of this stage's tests with torchaudio and soundfile (libsndfile).

    python examples/stages/audio/reference.py

Writes short clips in several formats, rates and numbers of channels to `tests/data`, and `expected.json`: of each clip some of its samples, as
soundfile decodes them and averaged over its channels, some of them after torchaudio's `resample` to 16 kHz, and the log-mel spectrograms
of torchaudio for several params, as lists of every few values.
"""

import json
from pathlib import Path

import numpy
import soundfile
import torch
import torchaudio.functional as F
import torchaudio.transforms as T

DATA = Path(__file__).parent / "tests/data"
RATE = 16000
#: Of the samples and of the values of a spectrogram, every `EVERY`th one is kept.
EVERY = 37

CLIPS = {
    "speech.wav": (16000, 1, "PCM_16"),
    "stereo.wav": (44100, 2, "PCM_24"),
    "float.wav": (8000, 1, "FLOAT"),
    "mono.flac": (16000, 1, "PCM_16"),
    "stereo.flac": (48000, 2, "PCM_24"),
    "mono.mp3": (16000, 1, None),
    "stereo.mp3": (44100, 2, None),
    "mono.ogg": (22050, 1, None),
    "stereo.ogg": (48000, 2, None),
}

#: Params of the stage, and the same of torchaudio.
SPECTROGRAMS = [
    (
        {"mel_scale": "htk", "filter_height": "one", "log": "natural", "floor": 1e-6, "n_fft": 400, "hop": 200, "n_mels": 40},
        {"n_fft": 400, "hop_length": 200, "n_mels": 40},
    ),
    (
        {"mel_scale": "slaney", "filter_height": "area", "log": "decibel", "top_db": 80, "n_fft": 512, "win_length": 400, "hop": 160, "n_mels": 64, "f_min": 50, "f_max": 7600},
        {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 64, "f_min": 50.0, "f_max": 7600.0, "mel_scale": "slaney", "norm": "slaney"},
    ),
    (
        {"mel_scale": "htk", "filter_height": "one", "log": "none", "power": 1, "edges": "none", "n_fft": 400, "hop": 160, "n_mels": 32},
        {"n_fft": 400, "hop_length": 160, "n_mels": 32, "power": 1.0, "center": False},
    ),
]  # fmt: skip


def sound(rate: int, channels: int, seed: int) -> numpy.ndarray:
    """Half a second of chirps with harmonics, noise, and a silent part."""
    chance = numpy.random.default_rng(seed)
    time = numpy.arange(rate // 2) / rate
    sweep = sum(numpy.sin(2 * numpy.pi * (150 * k + seed * 20) * time * (1 + time)) / k for k in range(1, 12))
    clip = numpy.stack([0.15 * sweep * (1 + c) / channels + 0.02 * chance.standard_normal(len(time)) for c in range(channels)], 1)
    clip[len(time) // 3 : len(time) // 2] = 0
    return clip.clip(-1, 1)


def logarithm(own: dict, mel: torch.Tensor) -> torch.Tensor:
    if own["log"] == "natural":
        return mel.clamp(min=own["floor"]).log()
    if own["log"] == "decibel":
        return F.amplitude_to_DB(mel, 10.0, 1e-10, 0.0, own["top_db"])
    return mel


def main() -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    expected = {"every": EVERY, "params": [own for own, _ in SPECTROGRAMS], "clips": {}}
    for seed, (name, (rate, channels, subtype)) in enumerate(CLIPS.items()):
        soundfile.write(DATA / name, sound(rate, channels, seed), rate, subtype=subtype)
        samples, found = soundfile.read(DATA / name, dtype="float32", always_2d=True)
        assert found == rate
        mono = torch.from_numpy(samples).mean(1)
        waveform = F.resample(mono, rate, RATE) if rate != RATE else mono
        mels = [logarithm(own, T.MelSpectrogram(sample_rate=RATE, **theirs)(waveform)) for own, theirs in SPECTROGRAMS]
        expected["clips"][name] = {
            "rate": rate,
            "count": len(mono),
            "samples": mono[::EVERY].tolist(),
            "resampled_count": len(waveform),
            "resampled": waveform[::EVERY].tolist(),
            "mels": [{"shape": list(mel.shape), "values": mel.flatten()[::EVERY].tolist()} for mel in mels],
        }
    (DATA / "expected.json").write_text(json.dumps(expected, indent=None) + "\n")


if __name__ == "__main__":
    main()
