//! Parser of a JSON array of keys that reads block by block, so that neither the array nor its text is held as a whole.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use memchr::memchr2;
use penstock_types::text::without_place;

use crate::blocks::BYTE_ORDER_MARK;
use crate::error::shown;
use crate::key::{MAX_KEY_BYTES, check_named_key};
use crate::keys::PackedKeys;

/// Maximum length of an element in the index: every byte of the longest key escaped as `\u0041`, and the quotes.
const MAX_ELEMENT_BYTES: usize = 6 * MAX_KEY_BYTES + 2;

/// Reads the array, block by block. Errors are predicates of sentences about the index: what was found, where, and the remedy. Elements
/// count from 1, bytes from 0.
#[derive(Debug, Default)]
pub(super) struct Parser {
    keys: PackedKeys,
    state: State,
    /// First part, with the opening quote, of an element that continues in the next block.
    begun: Vec<u8>,
    /// Byte position in the index at which the element in `begun` starts.
    begun_at: u64,
    /// Number of bytes read so far.
    read: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    /// Expects the first element, or `]`.
    First,
    Element,
    /// Inside a string; `escaped` is set if the next byte follows a backslash.
    Text {
        escaped: bool,
    },
    Comma,
    /// After the array, where only white space is allowed.
    Ended,
}

impl Parser {
    /// Reads the next block. The first block must have at least three bytes, which determine the encoding.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<(), String> {
        let mut position = if self.read == 0 { skip_mark(block)? } else { 0 };
        while let Some(byte) = block.get(position) {
            let at = self.read + position as u64;
            if let State::Text { escaped } = self.state {
                position += self.read_text(&block[position..], escaped)?;
                continue;
            }
            position += 1;
            self.state = match (self.state, byte) {
                (state, b' ' | b'\t' | b'\r' | b'\n') => state,
                (State::Start, b'[') => State::First,
                (State::First, b']') | (State::Comma, b']') => State::Ended,
                (State::Comma, b',') => State::Element,
                (State::First | State::Element, b'"') => {
                    self.begun.push(b'"');
                    self.begun_at = at;
                    State::Text { escaped: false }
                }
                (state, byte) => return Err(self.misplaced(state, *byte, at)),
            };
        }
        self.read += block.len() as u64;
        Ok(())
    }

    /// Keys read so far, in order.
    pub(super) fn keys(&self) -> &PackedKeys {
        &self.keys
    }

    /// Returns the keys after the array has ended.
    pub(super) fn finish(self) -> Result<PackedKeys, String> {
        let (end, count) = (self.read, self.keys.len());
        match self.state {
            State::Ended if self.keys.is_empty() => Err("contains no keys".to_owned()),
            State::Ended => Ok(self.keys),
            State::Start => Err("is empty; expected a JSON array of keys".to_owned()),
            State::Text { .. } => {
                Err(format!("ends at byte {end}, within element {}; is it complete?", count + 1))
            }
            State::First => Err(format!("ends at byte {end}, before its first element; is it complete?")),
            State::Element | State::Comma => {
                Err(format!("ends at byte {end}, after element {count} and without `]`; is it complete?"))
            }
        }
    }

    /// Continues a string at the start of `rest`; returns the number of bytes that belong to it.
    fn read_text(&mut self, rest: &[u8], mut escaped: bool) -> Result<usize, String> {
        let mut length = 0;
        loop {
            if escaped && length < rest.len() {
                length += 1;
                escaped = false;
            }
            let Some(found) = memchr2(b'"', b'\\', &rest[length..]) else {
                self.extend(rest)?;
                self.state = State::Text { escaped };
                return Ok(rest.len());
            };
            length += found + 1;
            if rest[length - 1] == b'"' {
                self.extend(&rest[..length])?;
                self.end_text()?;
                return Ok(length);
            }
            escaped = true;
        }
    }

    fn extend(&mut self, more: &[u8]) -> Result<(), String> {
        if self.begun.len() + more.len() > MAX_ELEMENT_BYTES {
            let place = self.place();
            return Err(format!(
                "has, {place}, a string longer than the limit of {MAX_KEY_BYTES} bytes for keys"
            ));
        }
        self.begun.extend_from_slice(more);
        Ok(())
    }

    fn end_text(&mut self) -> Result<(), String> {
        let not_json = |reason| format!("has, {}, a string that is not valid JSON: {reason}", self.place());
        let key = text(&self.begun).map_err(not_json)?;
        if let Err(reason) = check_named_key(&key) {
            let (place, key) = (self.place(), shown(&key));
            return Err(format!("has, {place}, the string {key}, which is not a valid key: {reason}"));
        }
        self.keys.push(&key);
        self.begun.clear();
        self.state = State::Comma;
        Ok(())
    }

    /// Position of the current string, for messages.
    fn place(&self) -> String {
        format!("as element {} at byte {}", self.keys.len() + 1, self.begun_at)
    }

    fn misplaced(&self, state: State, byte: u8, at: u64) -> String {
        let (found, count) = (in_words(byte), self.keys.len());
        match state {
            State::Start => format!("begins with {found} at byte {at}; expected a JSON array of keys"),
            State::Element if byte == b']' => {
                format!("has a comma after element {count}, its last, before `]` at byte {at}; remove it")
            }
            State::First | State::Element => {
                format!(
                    "has, as element {} at byte {at}, {found}; expected a key as a string: \"a/b.jpg\"",
                    count + 1
                )
            }
            State::Comma | State::Text { .. } => {
                format!("has, after element {count} at byte {at}, {found}; expected `,` or `]`")
            }
            State::Ended => {
                format!("continues after its array with {found} at byte {at}; remove it")
            }
        }
    }
}

/// Length of the byte order mark at the start of the first block.
fn skip_mark(block: &[u8]) -> Result<usize, String> {
    match block {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Err("is UTF-16; save it as UTF-8".to_owned()),
        [0x1f, 0x8b, ..] => Err("is compressed by gzip; unpack it".to_owned()),
        _ if block.starts_with(BYTE_ORDER_MARK) => Ok(BYTE_ORDER_MARK.len()),
        _ => Ok(0),
    }
}

/// Decodes the string of an element; `written` includes the quotes.
fn text(written: &[u8]) -> Result<Cow<'_, str>, String> {
    let read = if written.contains(&b'\\') {
        serde_json::from_slice(written).map(Cow::Owned)
    } else {
        serde_json::from_slice(written).map(Cow::Borrowed)
    };
    // The error's line and column count from the start of the element and would be misleading, so they are removed.
    read.map_err(|error| without_place(&error))
}

/// Description of an unexpected byte for messages.
fn in_words(byte: u8) -> String {
    match byte {
        b'{' => "an object".to_owned(),
        b'[' => "an array".to_owned(),
        b'"' => "a string".to_owned(),
        b'-' | b'0'..=b'9' => "a number".to_owned(),
        b't' => "`true`".to_owned(),
        b'f' => "`false`".to_owned(),
        b'n' => "`null`".to_owned(),
        other if other.is_ascii_graphic() => format!("`{}`", char::from(other)),
        other => format!("the byte 0x{other:02x}"),
    }
}
