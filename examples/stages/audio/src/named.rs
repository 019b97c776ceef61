//! Names of formats that this stage does not decode, for its messages.

/// Place and bytes by which a format is known, and its name.
const MARKS: [(usize, &[u8], &str); 20] = [
    (4, b"ftyp", "MP4 or M4A, usually with AAC"),
    (0, b"RF64", "RF64, a WAV file with lengths of 64 bits"),
    (0, b"BW64", "BW64, a WAV file with lengths of 64 bits"),
    (0, b"RIFX", "RIFX, a WAV file with big-endian numbers"),
    (0, b"riff\x2e\x91\xcf\x11", "W64, Sony's form of WAV"),
    (0, b"FORM", "AIFF"),
    (0, b"caff", "CAF, Apple's Core Audio Format"),
    (0, b".snd", "AU"),
    (0, b"\x30\x26\xb2\x75", "WMA or another ASF file"),
    (0, b"\x1a\x45\xdf\xa3", "WebM or Matroska"),
    (0, b"#!AMR", "AMR"),
    (0, b"NIST_1A", "NIST SPHERE"),
    (0, b"ADIF", "AAC"),
    (0, b"wvpk", "WavPack"),
    (0, b"MAC ", "Monkey's Audio"),
    (0, b"TTA1", "TTA"),
    (0, b"DSD ", "DSD"),
    (0, b"MThd", "MIDI (notes instead of samples)"),
    (0, b"MP+", "Musepack"),
    (0, b"MPCK", "Musepack"),
];

/// Format of a file, if it is one that is known by name only.
pub(crate) fn format(file: &[u8]) -> Option<&'static str> {
    let has =
        |(at, mark, _): &&(usize, &[u8], &str)| file.get(*at..).is_some_and(|rest| rest.starts_with(mark));
    match file {
        // Frames of AAC have the layer 0 in the place where those of MP3 have 1.
        [0xff, second, ..] if second & 0xf6 == 0xf0 => Some("AAC"),
        [0xff, second, ..] if second & 0xe6 == 0xe4 => Some("MPEG audio of layer II"),
        [0xff, second, ..] if second & 0xe6 == 0xe6 && *second != 0xff => Some("MPEG audio of layer I"),
        _ => MARKS.iter().find(has).map(|(.., name)| *name),
    }
}

/// Coding of a WAV file, by the tag of its format.
pub(crate) fn coding(tag: u16) -> Option<&'static str> {
    Some(match tag {
        2 => "Microsoft ADPCM",
        6 => "A-law",
        7 => "mu-law",
        0x11 => "IMA ADPCM",
        0x14 | 0x40 | 0x45 | 0x64 | 0x65 => "ADPCM of G.72x",
        0x31 => "GSM 6.10",
        0x50 => "MPEG audio of layer I or II",
        0x55 => "MP3",
        0x160..=0x163 => "WMA",
        0xff | 0x1600 | 0x1610 | 0x706d | 0x4143 => "AAC",
        0x566f | 0x674f..=0x6751 | 0x676f..=0x6771 => "Vorbis",
        0x2000 => "AC-3",
        0x704f => "Opus",
        0xf1ac => "FLAC",
        _ => return None,
    })
}

/// Coding of an Ogg file, by its first packet.
pub(crate) fn stream(packet: &[u8]) -> Option<&'static str> {
    const STREAMS: [(&[u8], &str); 6] = [
        (b"OpusHead", "Opus"),
        (b"\x7fFLAC", "FLAC in Ogg"),
        (b"Speex   ", "Speex"),
        (b"\x80theora", "Theora, a video"),
        (b"fishead\0", "several streams with a skeleton"),
        (b"BBCD\0", "Dirac, a video"),
    ];
    STREAMS.iter().find(|(mark, _)| packet.starts_with(mark)).map(|(_, name)| *name)
}
