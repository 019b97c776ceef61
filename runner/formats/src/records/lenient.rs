//! Lines of JSON as Python and Go read them: numbers that JSON lacks, and halves of surrogate pairs.

use std::collections::BTreeMap;

use super::written::{Token, each_token};

/// A line that is no JSON as it stands, with its numbers and escapes replaced by others of the same length, so that places in messages stay.
#[derive(Default)]
pub(super) struct Lenient {
    pub(super) json: String,
    /// The line with valid escapes, in which the numbers are as written.
    pub(super) written: String,
    /// Values that hold numbers which JSON lacks, by the name of the member.
    pub(super) special: BTreeMap<String, Special>,
    /// Number of escapes of half a surrogate pair, which became U+FFFD.
    pub(super) halves: u64,
    /// Word that looks like such a number, but is none to Python.
    pub(super) misspelt: Option<String>,
}

/// Value of a member that holds numbers which JSON lacks.
pub(super) enum Special {
    Real(f64),
    /// An array or an object, as it is written.
    Nested(String),
}

impl Lenient {
    /// Reads a line that the JSON library refuses.
    pub(super) fn of(line: &str) -> Self {
        let mut found = Self { json: line.to_owned(), written: line.to_owned(), ..Self::default() };
        // True if the value of the current member holds a number that JSON lacks.
        let mut is_special = false;
        each_token(line, |token| match token {
            Token::Text(place) => found.repair(place),
            Token::Word(place) => is_special |= found.word(place),
            Token::Member { label, value } => {
                found.end_member(label, value, std::mem::take(&mut is_special));
            }
        });
        found
    }

    /// Replaces a number that JSON lacks. Returns true if the word is one.
    fn word(&mut self, place: std::ops::Range<usize>) -> bool {
        let Some(word) = self.written.get(place.clone()) else { return false };
        if number(word).is_some() {
            let zero = format!("0.{}", "0".repeat(place.len() - 2));
            self.json.replace_range(place, &zero);
            return true;
        }
        let plain = word.trim_start_matches(['+', '-']);
        if ["nan", "inf", "infinity"].iter().any(|other| plain.eq_ignore_ascii_case(other))
            && self.misspelt.is_none()
        {
            self.misspelt = Some(word.to_owned());
        }
        false
    }

    /// Replaces escapes of half a surrogate pair in a text, as Go reads them.
    fn repair(&mut self, text: std::ops::Range<usize>) {
        let bytes = self.written.as_bytes();
        let mut halves = Vec::new();
        let mut at = text.start;
        while at < text.end {
            let Some(unit) = escaped_unit(bytes, at) else {
                at += if bytes[at] == b'\\' { 2 } else { 1 };
                continue;
            };
            match (unit, escaped_unit(bytes, at + 6)) {
                (0xd800..=0xdbff, Some(0xdc00..=0xdfff)) => at += 12,
                (0xd800..=0xdfff, _) => {
                    halves.push(at);
                    at += 6;
                }
                _ => at += 6,
            }
        }
        for at in halves {
            self.json.replace_range(at..at + 6, "\\ufffd");
            self.written.replace_range(at..at + 6, "\\ufffd");
            self.halves += 1;
        }
    }

    fn end_member(&mut self, label: std::ops::Range<usize>, value: std::ops::Range<usize>, is_special: bool) {
        let label = self.written.get(label).map(serde_json::from_str::<String>);
        let (Some(Ok(name)), Some(value)) = (label, self.written.get(value)) else { return };
        // Of members with one name, the last one counts.
        match is_special {
            true => {
                let value = value.trim();
                let special = number(value).map_or_else(|| Special::Nested(value.to_owned()), Special::Real);
                self.special.insert(name, special);
            }
            false => drop(self.special.remove(&name)),
        }
    }
}

/// A number that JSON lacks, as Python's `json` writes and reads it.
fn number(word: &str) -> Option<f64> {
    match word {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Unit of UTF-16 of the escape `\uXXXX` at this place.
fn escaped_unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    is_hex.then(|| u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn halves_of_surrogate_pairs_are_replaced_as_by_go() {
        for (line, json, halves) in [
            (r#"{"a":"\ud83d\ude00"}"#, r#"{"a":"\ud83d\ude00"}"#, 0),
            (r#"{"a":"\uD83D"}"#, r#"{"a":"\ufffd"}"#, 1),
            (r#"{"a":"\uD83Dx"}"#, r#"{"a":"\ufffdx"}"#, 1),
            (r#"{"a":"\uD83D\n"}"#, r#"{"a":"\ufffd\n"}"#, 1),
            (r#"{"a":"\ude00\ud83d"}"#, r#"{"a":"\ufffd\ufffd"}"#, 2),
            (r#"{"a":"\ud83d\ud83d\ude00"}"#, r#"{"a":"\ufffd\ud83d\ude00"}"#, 1),
            (r#"{"a":"\ud83d\u0041"}"#, r#"{"a":"\ufffd\u0041"}"#, 1),
            (r#"{"\udc00":"\\ud83d"}"#, r#"{"\ufffd":"\\ud83d"}"#, 1),
            (r#"{"a":"\ud83"#, r#"{"a":"\ud83"#, 0),
            (r#"{"a":"\ud83dé"#, r#"{"a":"\ufffdé"#, 1),
        ] {
            let found = Lenient::of(line);
            assert_eq!(
                (found.json.as_str(), found.written.as_str(), found.halves),
                (json, json, halves),
                "{line}"
            );
        }
    }

    #[test]
    fn numbers_that_json_lacks_are_replaced_where_they_are_whole_words() {
        for (line, json) in [
            (r#"{"a": NaN, "NaN": [Infinity,-Infinity]}"#, r#"{"a": 0.0, "NaN": [0.000000,0.0000000]}"#),
            (r#"{"a": "NaN \" Infinity"}"#, r#"{"a": "NaN \" Infinity"}"#),
            (
                r#"{"a": -NaN, "b": +Infinity, "c": NaNs, "d": 1NaN}"#,
                r#"{"a": -NaN, "b": +Infinity, "c": NaNs, "d": 1NaN}"#,
            ),
            (r#"{"a": - Infinity}"#, r#"{"a": - 0.000000}"#),
        ] {
            assert_eq!(Lenient::of(line).json, json);
        }
        assert_eq!(Lenient::of(r#"{"a": 1, "b": -nan, "c": Inf}"#).misspelt.as_deref(), Some("-nan"));
    }

    proptest! {
        #[test]
        fn any_line_keeps_its_length(line in "[\\[\\]{}:,\"\\\\aéuNInfityd8c0 -]{0,40}") {
            let found = Lenient::of(&line);
            prop_assert_eq!((found.json.len(), found.written.len()), (line.len(), line.len()));
        }
    }
}
