//! Makes untrusted text (of guests, object keys, documents) safe to display: bounded in length, without control characters that
//! could move a cursor.

use std::error::Error;
use std::fmt::Write;

/// Maximum length of a key in messages, in bytes.
pub const MAX_SHOWN_KEY: usize = 200;

/// Escapes control characters (line feeds, ANSI escapes, bidirectional overrides) and cuts the text after `limit` bytes at a
/// character boundary.
pub fn printable(text: &str, limit: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(limit));
    for character in text.chars() {
        let before = shown.len();
        match character {
            '\t' => shown.push(' '),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            other if other.is_control() || reorders(other) => {
                write!(shown, "\\u{{{:x}}}", u32::from(other)).expect("a string takes any text");
            }
            other => shown.push(other),
        }
        if shown.len() > limit {
            shown.truncate(before);
            shown.push('…');
            break;
        }
    }
    shown
}

/// Lower-case hexadecimal digits of bytes, such as a digest.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Text of a document or a store, safe to print and bounded in length.
pub fn shown(text: &str) -> String {
    printable(text, MAX_SHOWN_KEY)
}

/// Message of an error and of its causes, in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some errors already contain the message of their cause.
        if !words.ends_with(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        cause = error.source();
    }
    words
}

/// Message of a JSON error, without the line and column at its end: they would mislead for a text that is itself part of a file.
pub fn without_place(error: &serde_json::Error) -> String {
    let told = error.to_string();
    told.split(" at line ").next().unwrap_or(&told).to_owned()
}

/// True if the character changes the direction of the following text, or is invisible.
fn reorders(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\x1b[31mb\nc\u{202e}d\0", 100), "a\\u{1b}[31mb\\nc\\u{202e}d\\u{0}");
    }

    #[test]
    fn causes_follow_unless_the_message_repeats_them() {
        let inner = std::io::Error::other("no space");
        let outer = std::io::Error::other(Repeats(inner));
        assert_eq!(with_causes(&outer), "it failed: no space");
        let plain = crate::fault::SpecFault::new(crate::fault::Pointer::ROOT, "bad");
        assert_eq!(with_causes(&plain), plain.to_string());
    }

    #[derive(Debug)]
    struct Repeats(std::io::Error);

    impl std::fmt::Display for Repeats {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "it failed: {}", self.0)
        }
    }

    impl Error for Repeats {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn long_text_is_cut_at_a_characters_boundary() {
        assert_eq!(printable("ääää", 5), "ää…");
        assert_eq!(printable("abc", 3), "abc");
    }
}
