//! Numbers as they are written.

use std::ops::Range;

/// Number up to which no other number is rounded to a whole number of float64.
pub(super) const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// True for a whole number, written without a point and an exponent, that float64 does not hold exactly.
pub(super) fn is_inexact(number: &str) -> bool {
    const ALL_EXACT: usize = 15;
    let digits = number.strip_prefix(['-', '+']).unwrap_or(number).trim_start_matches('0');
    digits.len() > ALL_EXACT
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.parse::<f64>().is_ok_and(|real| format!("{real:.0}") != digits)
}

/// True for a number that may be a whole one beyond 64 bits, which the JSON library rounds.
pub(super) fn is_huge(real: f64) -> bool {
    const PAST_INT: f64 = 9_223_372_036_854_775_808.0;
    real.abs() >= PAST_INT
}

/// The value of the last member `name` of the JSON object `line`, which is valid, as it is written.
pub(super) fn member<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let mut found = None;
    each_token(line, |token| {
        if let Token::Member { label, value } = token
            && let Some(Ok(label)) = line.get(label).map(serde_json::from_str::<String>)
            && label == name
        {
            found = line.get(value);
        }
    });
    found.map(str::trim)
}

/// A part of a line of JSON, by its place.
pub(super) enum Token {
    /// A text in quotes.
    Text(Range<usize>),
    /// A number, or a word such as `true`.
    Word(Range<usize>),
    /// Name and value of a member of the outer object, behind the tokens within.
    Member { label: Range<usize>, value: Range<usize> },
}

/// Passes over the tokens of a line that may be no valid JSON.
pub(super) fn each_token(line: &str, mut on: impl FnMut(Token)) {
    let bytes = line.as_bytes();
    let (mut depth, mut label, mut start) = (0, 0..0, None);
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let mut next = at + 1;
        match byte {
            b'"' => {
                next = after_string(bytes, at).min(bytes.len());
                on(Token::Text(at..next));
                if depth == 1 && start.is_none() {
                    label = at..next;
                }
            }
            b':' if depth == 1 => start = Some(next),
            b'{' | b'[' => depth += 1,
            b',' | b'}' | b']' => {
                if depth == 1
                    && let Some(start) = start.take()
                {
                    on(Token::Member { label: label.clone(), value: start..at });
                }
                depth -= i32::from(*byte != b',');
            }
            b':' | b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => {
                let is_word = |byte: &u8| !b"{}[],:\" \t\r\n".contains(byte);
                next = at + bytes[at..].iter().take_while(|byte| is_word(byte)).count();
                on(Token::Word(at..next));
            }
        }
        at = next;
    }
}

/// Place behind the text in quotes that begins at `start`; behind the end of a line in which it does not end.
fn after_string(bytes: &[u8], start: usize) -> usize {
    let mut next = start + 1;
    while bytes.get(next).is_some_and(|byte| *byte != b'"') {
        next += if bytes[next] == b'\\' { 2 } else { 1 };
    }
    next + 1
}

/// True if the number is written as a whole one that neither 64 bits nor float64 hold. `real` is the rounded number.
pub(super) fn is_beyond(line: &str, name: &str, real: f64) -> bool {
    is_huge(real) && member(line, name).is_some_and(is_inexact)
}

/// True if the number is written as `-0`, a whole number that the JSON library takes for a broken one.
pub(super) fn is_zero(line: &str, name: &str, real: f64) -> bool {
    real == 0.0 && real.is_sign_negative() && member(line, name) == Some("-0")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_numbers_that_float64_does_not_hold_are_told_from_others() {
        for number in
            ["9007199254740993", "-9007199254740993", "+007205759403792793601", "10000000000000000000000000"]
        {
            assert!(is_inexact(number), "{number}");
        }
        assert!(is_inexact(&"9".repeat(400)));
        for number in [
            "0",
            "-5",
            "9007199254740992",
            "18446744073709551616",
            "10000000000000000000000",
            "1e25",
            "9007199254740993.0",
            "inf",
        ] {
            assert!(!is_inexact(number), "{number}");
        }
    }

    #[test]
    fn a_member_is_found_as_it_is_written() {
        let line = r#" {"a": 1, "b" : [ 1, {"c": 2} ] ,"c":"x,\"c\":5}" , "\u0064":1e5,"a":10000000000000000000000000}"#;
        for (name, written) in [
            ("a", Some("10000000000000000000000000")),
            ("b", Some(r#"[ 1, {"c": 2} ]"#)),
            ("c", Some(r#""x,\"c\":5}""#)),
            ("d", Some("1e5")),
            ("e", None),
        ] {
            assert_eq!(member(line, name), written, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_searched_without_a_panic(text in "[\\[\\]{}:,\"\\\\aé1 ]{0,30}") {
            let _found = member(&text, "a");
        }

        #[test]
        fn the_numbers_of_64_bits_are_judged_as_by_a_conversion(number: i64) {
            prop_assert_eq!(is_inexact(&number.to_string()), !penstock_types::data_set::is_exact(number));
        }
    }
}
