//! Encodings of text, which is read as UTF-8.
//!
//! What no text can contain becomes bytes that are no UTF-8 either, so that the record fails where it is parsed, and no other does.

use bytes::Bytes;
use penstock_storage::BYTE_ORDER_MARK;
use penstock_types::spec::{RecordForm, TextEncoding};

use super::RecordFault;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Charset {
    #[default]
    Utf8,
    Utf16 {
        is_big_endian: bool,
    },
    Windows1252,
    Latin1,
}

#[derive(Default)]
pub(super) struct Decoder {
    charset: Charset,
    /// Bytes of a character that continues in the next part.
    begun: Vec<u8>,
}

/// First byte of the two that stand for a byte without a character in Windows-1252, which is the second one.
const NO_CHARACTER: u8 = 0xc1;

/// Stands for the last byte of UTF-16 of an odd length.
const ODD: u8 = 0xff;

/// Characters of the bytes from 0x80 to 0x9f in Windows-1252; NUL where there is none.
const WINDOWS_1252: [char; 32] = [
    '€', '\0', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\0', 'Ž', '\0', //
    '\0', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\0', 'ž', 'Ÿ',
];

impl Charset {
    /// Encoding of an object that begins with `head`, and the length of its byte order mark. Fails if the text has another encoding than the
    /// document states.
    pub(super) fn of(form: RecordForm, head: &[u8]) -> Result<(Self, usize), RecordFault> {
        let stated = match form {
            RecordForm::Lines => None,
            RecordForm::Rows(table) => Some(table.encoding),
        };
        let (found, mark) = sniffed(head);
        let fault = |found: &str| Err(RecordFault::Encoding(format!("{found}{}", cure(found, stated))));
        match (found, stated.unwrap_or_default()) {
            (None | Some("UTF-8"), TextEncoding::Utf8) => Ok((Self::Utf8, mark)),
            (None, TextEncoding::Windows1252) => Ok((Self::Windows1252, 0)),
            (None, TextEncoding::Latin1) => Ok((Self::Latin1, 0)),
            (Some("UTF-16"), TextEncoding::Utf16) if mark > 0 => {
                Ok((Self::Utf16 { is_big_endian: head[0] == 0xfe }, mark))
            }
            (None | Some("UTF-16"), TextEncoding::Utf16) if head.contains(&0) => {
                let units = |is: fn(&[u8]) -> bool| head.chunks_exact(2).filter(|unit| is(unit)).count();
                // Line ends tell the order of bytes; without them, the zeros of the letters of most tables do.
                let (big, little) = (units(|unit| unit == [0, b'\n']), units(|unit| unit == [b'\n', 0]));
                let (high, low) = (units(|unit| unit[0] == 0), units(|unit| unit[1] == 0));
                Ok((Self::Utf16 { is_big_endian: (big, high) > (little, low) }, 0))
            }
            (None, TextEncoding::Utf16) => fault("not UTF-16"),
            (Some(found), _) => fault(found),
        }
    }

    pub(super) fn decoded(self, raw: Bytes) -> Bytes {
        let mut decoder = Decoder::new(self);
        let text = decoder.decode(raw);
        match decoder.take_rest() {
            [] => text,
            rest => [&text, rest].concat().into(),
        }
    }

    /// Length of a decoded text in its encoding, in bytes.
    pub(super) fn raw_length(self, text: &[u8]) -> u64 {
        let characters = || text.iter().filter(|byte| **byte & 0xc0 != 0x80).count() as u64;
        match self {
            Self::Utf8 => text.len() as u64,
            Self::Windows1252 | Self::Latin1 => characters(),
            Self::Utf16 { .. } => {
                // Characters of four bytes are pairs of units.
                let pairs = text.iter().filter(|byte| **byte & 0xf8 == 0xf0).count() as u64;
                2 * (characters() + pairs)
            }
        }
    }

    /// Description of text that cannot be decoded, given the bytes from the first place on that is not UTF-8.
    pub(super) fn describe(self, at: &[u8]) -> String {
        match (self, at) {
            (Self::Utf16 { .. }, [ODD, ..]) => "not UTF-16: its last character is cut".to_owned(),
            (Self::Utf16 { .. }, _) => "not UTF-16: it has half of a surrogate pair".to_owned(),
            (Self::Windows1252, [NO_CHARACTER, byte, ..]) => {
                format!("not Windows-1252: no character is the byte 0x{byte:02x}")
            }
            (_, [byte, ..]) => format!("not UTF-8: it has the byte 0x{byte:02x}"),
            (_, []) => "not UTF-8".to_owned(),
        }
    }

    /// Remedy for text that cannot be decoded.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::Utf8 => "; set `encoding`, for example `\"encoding\": \"windows-1252\"`",
            Self::Windows1252 => "; `\"encoding\": \"latin-1\"` reads each byte as a character",
            Self::Utf16 { .. } | Self::Latin1 => "",
        }
    }
}

/// Remedy for text that is `found`, of a table for which the document states this encoding; `None` for NDJSON.
fn cure(found: &str, stated: Option<TextEncoding>) -> String {
    match (found, stated) {
        ("not UTF-16", _) => ", which has zero bytes; remove `encoding`, or name another one".to_owned(),
        ("UTF-16", Some(_)) => "; set `\"encoding\": \"utf-16\"`".to_owned(),
        ("UTF-8", Some(_)) => ", by its byte order mark; remove `encoding`".to_owned(),
        (found, _) => {
            let read = if stated.is_none() { "NDJSON is UTF-8" } else { "it is not read" };
            format!("; {read}: convert it, for example with `iconv -f {found} -t UTF-8`")
        }
    }
}

/// Encoding that the first bytes tell by a byte order mark or by their zeros, and the length of the mark.
fn sniffed(head: &[u8]) -> (Option<&'static str>, usize) {
    match head {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => (Some("UTF-32"), 4),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => (Some("UTF-16"), 2),
        _ if head.starts_with(BYTE_ORDER_MARK) => (Some("UTF-8"), BYTE_ORDER_MARK.len()),
        _ => match head.iter().take(4).map(|byte| *byte != 0).collect::<Vec<_>>()[..] {
            [true, false, false, false] | [false, false, false, true] => (Some("UTF-32"), 0),
            [true, false, true, false] | [false, true, false, true] => (Some("UTF-16"), 0),
            [true, false] | [false, true] => (Some("UTF-16"), 0),
            _ => (None, 0),
        },
    }
}

impl Decoder {
    pub(super) fn new(charset: Charset) -> Self {
        Self { charset, begun: Vec::new() }
    }

    pub(super) fn decode(&mut self, raw: Bytes) -> Bytes {
        let mut text = Vec::new();
        match self.charset {
            Charset::Utf8 => return raw,
            Charset::Windows1252 => {
                text.reserve(raw.len());
                raw.iter().for_each(|byte| push_windows_1252(&mut text, *byte));
            }
            Charset::Latin1 => {
                text.reserve(raw.len());
                raw.iter().for_each(|byte| push(&mut text, char::from(*byte)));
            }
            Charset::Utf16 { is_big_endian } => {
                let unit = |pair: &[u8]| match is_big_endian {
                    true => u16::from_be_bytes([pair[0], pair[1]]),
                    false => u16::from_le_bytes([pair[0], pair[1]]),
                };
                self.begun.extend_from_slice(&raw);
                let mut end = self.begun.len() & !1;
                if end > 0 && matches!(unit(&self.begun[end - 2..end]), 0xd800..=0xdbff) {
                    end -= 2;
                }
                text.reserve(end);
                let characters = char::decode_utf16(self.begun[..end].chunks_exact(2).map(unit));
                for character in characters {
                    match character {
                        Ok(character) => push(&mut text, character),
                        Err(half) => push_half(&mut text, half.unpaired_surrogate()),
                    }
                }
                self.begun.drain(..end);
            }
        }
        text.into()
    }

    /// Takes the bytes that stand for a character without its end, behind all parts.
    pub(super) fn take_rest(&mut self) -> &'static [u8] {
        // Half of a surrogate pair, any: the text fails for it.
        const HALF: [u8; 4] = [0xed, 0xa0, 0x80, ODD];
        match std::mem::take(&mut self.begun).len() {
            0 => &[],
            1 => &HALF[3..],
            2 => &HALF[..3],
            _ => &HALF,
        }
    }
}

fn push(text: &mut Vec<u8>, character: char) {
    match u8::try_from(character) {
        Ok(byte) if byte.is_ascii() => text.push(byte),
        _ => text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

fn push_windows_1252(text: &mut Vec<u8>, byte: u8) {
    match byte {
        0x80..=0x9f => match WINDOWS_1252[usize::from(byte - 0x80)] {
            '\0' => text.extend_from_slice(&[NO_CHARACTER, byte]),
            character => push(text, character),
        },
        byte => push(text, char::from(byte)),
    }
}

/// Adds half of a surrogate pair in the form of UTF-8, which has none.
fn push_half(text: &mut Vec<u8>, half: u16) {
    let low = |bits: u16| 0x80 | (bits & 0x3f) as u8;
    text.extend_from_slice(&[0xe0 | (half >> 12) as u8, low(half >> 6), low(half)]);
}
