//! Compression of whole objects: recognised by their first bytes, decompressed piece by piece.

use std::io::{self, Write};

use bytes::{Buf, Bytes};
use flate2::write::GzDecoder;
use penstock_engine::memory::{Block, buffer, bytes_of};
use zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

/// Size of a block of decompressed bytes; only the last block of an object is smaller.
pub(crate) const BLOCK: usize = 1 << 20;

/// Bytes that a decoder may write beyond a block: that of gzip passes on its buffer of 32 KiB, at its end more than once.
const SPILL: usize = 128 << 10;

/// Window and buffer of a gzip decoder.
const GZIP_BYTES: usize = 64 << 10;

/// Maximum size of a zstd window, as a power of two; the command `zstd` has the same limit.
const MAX_WINDOW_LOG: u32 = 27;

/// First bytes of compressed objects that are not read, and those behind one more byte.
const REFUSED: [(&str, &[u8], &[u8]); 8] = [
    ("bzip2", b"BZh", b"1AY&SY"),
    ("xz", b"\xfd7zXZ\0", b""),
    ("lz4", b"\x04\x22\x4d\x18", b""),
    ("zip", b"PK\x03\x04", b""),
    ("7z", b"7z\xbc\xaf\x27\x1c", b""),
    ("compress", b"\x1f\x9d", b""),
    ("lzip", b"LZIP\x01", b""),
    ("Snappy", b"\xff\x06\0\0sNaPpY", b""),
];

/// Compression of whole objects that are read in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
}

/// Reason why the content of a compressed object is not read. The text is the end of a sentence.
#[derive(Clone, Debug)]
pub(crate) struct Unreadable {
    pub(crate) reason: String,
    pub(crate) is_damage: bool,
}

/// Decompresses pieces of an object into blocks. Members of gzip and frames of zstd may follow each other.
pub(crate) struct Decoder {
    kind: Kind,
    /// Set in front of a member or frame, and behind the last one.
    is_between: bool,
}

enum Kind {
    Gzip(Box<GzDecoder<Output>>),
    Zstd(DCtx<'static>, Output),
}

struct Output {
    block: Box<dyn Block>,
    length: usize,
}

impl Compression {
    /// Compression by the first bytes of an object; `None` if they are those of no known one.
    pub(crate) fn of(first: &[u8]) -> Result<Option<Self>, Unreadable> {
        if first.starts_with(b"\x1f\x8b\x08") {
            return Ok(Some(Self::Gzip));
        }
        // A frame that is skipped may be the first.
        let is_skippable = |first: &[u8]| matches!(first, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
        if first.starts_with(b"\x28\xb5\x2f\xfd") || is_skippable(first) {
            return Ok(Some(Self::Zstd));
        }
        let is_of = |(_, start, second): &&(_, &[u8], &[u8])| {
            let behind = first.strip_prefix(*start).map(|rest| rest.get(1..).unwrap_or_default());
            behind.is_some_and(|behind| behind.starts_with(second))
        };
        match REFUSED.iter().find(is_of) {
            None => Ok(None),
            Some((name, ..)) => Err(Unreadable {
                reason: format!(
                    "is compressed with {name}, which is not read: decompress it, or compress it with gzip or zstd"
                ),
                is_damage: false,
            }),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

impl Decoder {
    pub(crate) fn new(compression: Compression) -> Result<Self, Unreadable> {
        let kind = match compression {
            Compression::Gzip => Kind::Gzip(Box::new(GzDecoder::new(Output::new()))),
            Compression::Zstd => {
                let mut context = DCtx::create();
                context.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG)).map_err(of_zstd)?;
                Kind::Zstd(context, Output::new())
            }
        };
        Ok(Self { kind, is_between: true })
    }

    /// Bytes that the decoder keeps, with the block that it fills.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let decoder = match &self.kind {
            Kind::Gzip(_) => GZIP_BYTES,
            Kind::Zstd(context, _) => context.sizeof(),
        };
        (BLOCK + SPILL + decoder) as u64
    }

    /// Decompresses until the block is full or `input` is used up.
    pub(crate) fn decode(&mut self, input: &mut Bytes) -> Result<(), Unreadable> {
        let Self { kind, is_between } = self;
        match kind {
            Kind::Gzip(decoder) => {
                while !input.is_empty() && decoder.get_ref().length < BLOCK {
                    if *is_between {
                        // Zeros behind a member are padding.
                        input.advance(input.iter().take_while(|byte| **byte == 0).count());
                        *is_between = input.is_empty();
                        continue;
                    }
                    match decoder.write(input).map_err(of_gzip)? {
                        0 => {
                            decoder.try_finish().map_err(of_gzip)?;
                            let output = std::mem::replace(decoder.get_mut(), Output::none());
                            (**decoder, *is_between) = (GzDecoder::new(output), true);
                        }
                        read => input.advance(read),
                    }
                }
                Ok(())
            }
            Kind::Zstd(context, Output { block, length }) => {
                // The decoder may hold content of an input that is used up.
                while !(*is_between && input.is_empty()) {
                    let mut source = InBuffer::around(input);
                    let mut target = OutBuffer::around_pos(&mut (**block).as_mut()[..BLOCK], *length);
                    let hint = context.decompress_stream(&mut target, &mut source).map_err(of_zstd)?;
                    (*length, *is_between) = (target.pos(), hint == 0);
                    input.advance(source.pos());
                    if *length == BLOCK || input.is_empty() {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// Decompresses what is left once the object has ended. Returns false if the block is full, so that more may be left. Fails if the object
    /// ends within a member or frame.
    pub(crate) fn end(&mut self) -> Result<bool, Unreadable> {
        let cut = |name| Unreadable {
            reason: format!("ends within its {name} data: is it truncated?"),
            is_damage: true,
        };
        self.decode(&mut Bytes::new())?;
        if self.is_full() || self.is_between {
            return Ok(!self.is_full());
        }
        match &mut self.kind {
            Kind::Gzip(decoder) => {
                decoder.flush().map_err(of_gzip)?;
                // A complete member takes no further byte. To one that is cut, the zero is damage, or more of it.
                match decoder.write(&[0]) {
                    Ok(0) => decoder.try_finish().map_err(of_gzip)?,
                    _ => return Err(cut("gzip")),
                }
                self.is_between = true;
                Ok(!self.is_full())
            }
            Kind::Zstd(..) => Err(cut("zstd")),
        }
    }

    fn is_full(&mut self) -> bool {
        self.output().length >= BLOCK
    }

    fn output(&mut self) -> &mut Output {
        match &mut self.kind {
            Kind::Gzip(decoder) => decoder.get_mut(),
            Kind::Zstd(_, output) => output,
        }
    }

    /// The block if it is full, or if `all` is set; `None` if it is empty.
    pub(crate) fn take(&mut self, all: bool) -> Option<Bytes> {
        let output = self.output();
        let length = output.length.min(BLOCK);
        if length == 0 || !(all || length == BLOCK) {
            return None;
        }
        let mut full = std::mem::replace(output, Output::new());
        let spilt = BLOCK..full.length.max(BLOCK);
        output.length = spilt.len();
        (*output.block).as_mut()[..spilt.len()].copy_from_slice(&(*full.block).as_mut()[spilt]);
        Some(bytes_of(full.block).slice(..length))
    }
}

impl Output {
    fn new() -> Self {
        let size = BLOCK + SPILL;
        Self { block: buffer(size).unwrap_or_else(|| Box::new(vec![0; size])), length: 0 }
    }

    fn none() -> Self {
        Self { block: Box::new([]), length: 0 }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut room = &mut (*self.block).as_mut()[self.length..];
        let written = room.write(bytes)?;
        self.length += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn of_gzip(error: io::Error) -> Unreadable {
    Unreadable { reason: format!("has damaged gzip data: {error}"), is_damage: true }
}

fn of_zstd(code: usize) -> Unreadable {
    let is_large = code.wrapping_neg() == ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge as usize;
    let reason = match is_large {
        true => format!(
            "has zstd data with a window of more than 128 MiB: compress it with `--long={MAX_WINDOW_LOG}` or less"
        ),
        false => format!("has damaged zstd data: {}", get_error_name(code)),
    };
    Unreadable { reason, is_damage: !is_large }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content of `object`, given in pieces of `size` bytes, or the reason why it ends; all blocks but the last are full.
    fn content(object: &[u8], size: usize) -> (Vec<u8>, Option<String>) {
        let compression = Compression::of(object).unwrap().unwrap();
        let (mut decoder, mut content) = (Decoder::new(compression).unwrap(), Vec::new());
        let mut fault = None;
        let mut pieces = object.chunks(size);
        let mut input = Bytes::new();
        while fault.is_none() {
            if input.is_empty() {
                match pieces.next() {
                    Some(piece) => input = Bytes::copy_from_slice(piece),
                    None => match decoder.end() {
                        Ok(false) => {}
                        ended => {
                            fault = ended.err();
                            break;
                        }
                    },
                }
            }
            fault = decoder.decode(&mut input).err();
            if let Some(block) = decoder.take(false) {
                assert_eq!(block.len(), BLOCK);
                content.extend_from_slice(&block);
            }
        }
        while let Some(block) = decoder.take(true) {
            content.extend_from_slice(&block);
        }
        (content, fault.map(|fault| fault.reason))
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(content: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Bytes that compress by about half.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8 & 0x0f
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn members_and_frames_are_joined_whatever_the_pieces_are() {
        let parts = [noise(3 * BLOCK / 2), Vec::new(), vec![7; 2 * BLOCK], b"end".to_vec()];
        let expected = parts.concat();
        let skipped = [b"\x50\x2a\x4d\x18\x03\0\0\0".as_slice(), b"abc"].concat();
        let members: Vec<_> = parts.iter().flat_map(|part| gzip(part)).chain([0; 700]).collect();
        let frames: Vec<_> = parts.iter().flat_map(|part| [&skipped[..], &zstd(part)].concat()).collect();
        for object in [members, frames] {
            for size in [1, 3, 4096, 1 << 20, usize::MAX] {
                assert!(content(&object, size) == (expected.clone(), None), "{size}");
            }
        }
    }

    #[test]
    fn cut_and_damaged_objects_are_told_apart() {
        let text = noise(600);
        for (name, whole) in [("gzip", gzip(&text)), ("zstd", zstd(&text))] {
            let joined = [&whole[..], &whole].concat();
            for end in (5..joined.len()).filter(|end| *end != whole.len()) {
                let (content, fault) = content(&joined[..end], 100);
                assert_eq!(fault, Some(format!("ends within its {name} data: is it truncated?")), "{end}");
                assert!([&text[..], &text].concat().starts_with(&content), "{name} {end}");
            }
            let mut damaged = whole.clone();
            damaged[whole.len() - 6] ^= 0x55;
            damaged.extend(gzip(b"more"));
            let fault = content(&damaged, 100).1.unwrap();
            assert!(fault.starts_with(&format!("has damaged {name} data: ")), "{fault}");
            let garbage = [&whole[..], b"garbage behind it"].concat();
            let fault = content(&garbage, 100).1.unwrap();
            assert!(fault.starts_with(&format!("has damaged {name} data: ")), "{fault}");
        }
    }

    #[test]
    fn bombs_are_decompressed_by_blocks() {
        let zeros = vec![0; 64 * BLOCK];
        for object in [gzip(&zeros), zstd(&zeros)] {
            let mut decoder = Decoder::new(Compression::of(&object).unwrap().unwrap()).unwrap();
            let mut input = Bytes::from(object);
            let mut blocks = 0;
            while blocks < 64 {
                decoder.decode(&mut input).unwrap();
                assert!(decoder.memory_bytes() < 20 << 20);
                blocks += usize::from(decoder.take(input.is_empty()).is_some());
            }
        }
    }

    #[test]
    fn windows_beyond_the_limit_and_other_compressions_are_refused_by_name() {
        // A frame with a window of 256 MiB.
        let frame = b"\x28\xb5\x2f\xfd\x00\x90\x01\0\0";
        let fault = content(frame, 100).1.unwrap();
        assert!(fault.contains("more than 128 MiB"), "{fault}");
        for (first, name) in [
            (&b"BZh91AY&SY"[..], "bzip2"),
            (b"\xfd7zXZ\0", "xz"),
            (b"\x04\x22\x4d\x18", "lz4"),
            (b"PK\x03\x04", "zip"),
            (b"7z\xbc\xaf\x27\x1c", "7z"),
            (b"\x1f\x9d\x90", "compress"),
            (b"LZIP\x01", "lzip"),
        ] {
            let fault = Compression::of(first).unwrap_err();
            assert!(fault.reason.contains(&format!("compressed with {name}, ")) && !fault.is_damage);
        }
        for first in [&b""[..], b"\x1f", b"\x1f\x8b", b"BZh9 is a name", b"{}", b"7z", b"PK"] {
            assert_eq!(Compression::of(first).unwrap(), None);
        }
    }
}
