//! Makes a sample from one line of JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_engine::item::{Field, Origin, Sample, Value};
use penstock_types::spec::{ColumnType, JsonSize};
use penstock_types::text::{printable, without_place};
use serde_json::{Map, Value as Json};

use super::fault::{MAX_SHOWN_NUMBER, RecordFault};
use super::layout::{KeyAndFields, MAX_NODES, SAMPLE_KEY};
use super::lenient::{Lenient, Special};
use super::rows::{self, whole_number};
use super::written::{MAX_EXACT, is_beyond, is_huge, is_inexact, is_zero, member};

/// Makes a sample from the JSON object on line `number`; fails if the line is not a valid record.
///
/// The member `key` (a string or an integer) becomes the key; if it is missing or null, the line number becomes the key. The
/// other members become fields, in their order: strings become texts, integers ints, other numbers reals, booleans become ints (0
/// or 1), arrays and objects become texts that contain their JSON. A member that is null is omitted.
pub fn sample_of(line: &[u8], number: u64, origin: Origin) -> Result<Sample, RecordFault> {
    let (key, fields) = members(line, SAMPLE_KEY, &BTreeMap::new(), &mut Names::default(), &mut |_| {})?;
    Ok(Sample { key: key.unwrap_or_else(|| number.to_string().into()), origin, fields })
}

/// Names of the members of the record before, in their order. Most records have the same: they are allocated once.
#[derive(Default)]
pub(super) struct Names(Vec<Arc<str>>);

impl Names {
    /// The name of the member at `place`, which is at most the number of members so far.
    fn shared(&mut self, place: usize, name: &str) -> Arc<str> {
        match self.0.get_mut(place) {
            Some(known) if **known == *name => {}
            Some(other) => *other = name.into(),
            None => self.0.push(name.into()),
        }
        self.0[place].clone()
    }
}

/// Key and fields of the JSON object `line`, whose member `key_name` is the key. Members in `types` get their type. Calls `repaired` with the
/// number of halves of surrogate pairs that became U+FFFD, if there are any.
pub(super) fn members(
    line: &[u8],
    key_name: &str,
    types: &BTreeMap<String, ColumnType>,
    names: &mut Names,
    repaired: &mut dyn FnMut(u64),
) -> Result<KeyAndFields, RecordFault> {
    let text = str::from_utf8(line.trim_ascii_end())
        .map_err(|error| RecordFault::NotUtf8 { byte: error.valid_up_to() + 1 })?;
    // A text with at most `MAX_NODES` bytes cannot have more nodes than `MAX_NODES`.
    if text.len() > MAX_NODES && JsonSize::of(text.as_bytes()).nodes() > MAX_NODES {
        return Err(RecordFault::TooMany);
    }
    let lenient;
    let (text, members, special) = match serde_json::from_str::<Map<String, Json>>(text) {
        Ok(members) => (text, members, &NONE),
        Err(_) => {
            lenient = Lenient::of(text);
            let members = serde_json::from_str(&lenient.json);
            let members = members.map_err(|error| not_json(&error, lenient.misspelt.as_deref()))?;
            if lenient.halves > 0 {
                repaired(lenient.halves);
            }
            (lenient.written.as_str(), members, &lenient.special)
        }
    };
    let key = match members.get(key_name) {
        Some(_) if special.contains_key(key_name) => {
            let found = special[key_name].written();
            return Err(RecordFault::Key { name: key_name.to_owned(), found: shown_value(&found) });
        }
        None | Some(Json::Null) => None,
        Some(Json::String(key)) if !key.is_empty() => Some(Arc::from(key.as_str())),
        Some(Json::Number(key)) if !key.is_f64() => Some(Arc::from(key.to_string())),
        Some(other) => return Err(RecordFault::Key { name: key_name.to_owned(), found: short(other) }),
    };
    let mut fields = Vec::with_capacity(members.len());
    let others = members.into_iter().filter(|(name, _)| name != key_name);
    for (place, (name, member)) in others.enumerate() {
        let shared = names.shared(place, &name);
        let value = match (types.get(&name), special.get(&name)) {
            (None, None) => value_of(text, &name, member)?,
            (Some(kind), None) => typed(*kind, text, &name, member)?,
            (kind, Some(special)) => Some(special.value(kind.copied(), &name)?),
        };
        if let Some(value) = value {
            fields.push(Field { name: shared, value });
        }
    }
    Ok((key, fields))
}

/// Members of a line of JSON that hold numbers which JSON lacks.
static NONE: BTreeMap<String, Special> = BTreeMap::new();

impl Special {
    fn written(&self) -> String {
        match self {
            Self::Nested(written) => written.clone(),
            Self::Real(real) if real.is_nan() => "NaN".to_owned(),
            Self::Real(real) => (if *real > 0.0 { "Infinity" } else { "-Infinity" }).to_owned(),
        }
    }

    /// Value of the member `name`, with the type that the document gives it.
    fn value(&self, kind: Option<ColumnType>, name: &str) -> Result<Value, RecordFault> {
        match (kind, self) {
            (None | Some(ColumnType::Float), Self::Real(real)) => Ok(Value::Real(*real)),
            (None | Some(ColumnType::Text), special) => Ok(Value::Text(special.written())),
            (Some(kind), special) => Err(RecordFault::Member {
                name: name.to_owned(),
                kind: kind.name(),
                found: shown_value(&special.written()),
            }),
        }
    }
}

/// Value of a member of the line `line`; `None` if it is missing.
fn value_of(line: &str, name: &str, value: Json) -> Result<Option<Value>, RecordFault> {
    Ok(Some(match value {
        Json::Null => return Ok(None),
        Json::Bool(is_true) => Value::Int(i64::from(is_true)),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(real)) if is_zero(line, name, real) => Value::Int(0),
            (None, Some(real)) if number.is_f64() && !is_beyond(line, name, real) => Value::Real(real),
            _ => {
                let number = member(line, name).unwrap_or_default().to_owned();
                return Err(RecordFault::Number { name: name.to_owned(), number });
            }
        },
        Json::String(text) => Value::Text(text),
        nested @ (Json::Array(_) | Json::Object(_)) => Value::Text(text_of(line, name, &nested)),
    }))
}

/// Text of a member that is no string: as it is written, if the JSON library has rounded a number in it.
fn text_of(line: &str, name: &str, value: &Json) -> String {
    let is_rounded = has_huge(value);
    let written = is_rounded.then(|| member(line, name).map(str::to_owned)).flatten();
    written.unwrap_or_else(|| value.to_string())
}

fn has_huge(value: &Json) -> bool {
    match value {
        Json::Number(number) => number.is_f64() && number.as_f64().is_some_and(is_huge),
        Json::Array(values) => values.iter().any(has_huge),
        Json::Object(members) => members.values().any(has_huge),
        Json::Null | Json::Bool(_) | Json::String(_) => false,
    }
}

/// Value of a member that the document gives a type; `None` if it is missing.
fn typed(kind: ColumnType, line: &str, name: &str, value: Json) -> Result<Option<Value>, RecordFault> {
    let inexact = |number: &str| RecordFault::Inexact { name: name.to_owned(), number: number.to_owned() };
    let fault = |member: &Json| RecordFault::Member {
        name: name.to_owned(),
        kind: kind.name(),
        found: short(member),
    };
    Ok(Some(match (kind, value) {
        (_, Json::Null) => return Ok(None),
        (ColumnType::Text, Json::String(text)) => Value::Text(text),
        (ColumnType::Text, other) => Value::Text(text_of(line, name, &other)),
        (ColumnType::Int, Json::Bool(is_true)) => Value::Int(i64::from(is_true)),
        (_, Json::String(text)) => {
            return rows::value(kind, &text).map_err(|is_inexact| match is_inexact {
                true => inexact(text.trim()),
                false => fault(&Json::String(text)),
            });
        }
        (ColumnType::Float, Json::Number(number)) => {
            let real = number.as_f64().ok_or_else(|| fault(&Json::Number(number.clone())))?;
            if !number.is_f64() && is_inexact(&number.to_string()) {
                return Err(inexact(&number.to_string()));
            }
            if is_beyond(line, name, real) {
                return Err(inexact(member(line, name).unwrap_or_default()));
            }
            Value::Real(real)
        }
        (ColumnType::Int | ColumnType::Bool, Json::Number(number)) => {
            // A number such as `3.0` is a whole one.
            let int = number.as_i64().or_else(|| {
                let real = number.as_f64().filter(|real| number.is_f64() && real.fract() == 0.0)?;
                match real.abs() < MAX_EXACT {
                    true => Some(real as i64),
                    false => whole_number(member(line, name)?),
                }
            });
            let int = int.filter(|int| kind == ColumnType::Int || (0..=1).contains(int));
            Value::Int(int.ok_or_else(|| fault(&Json::Number(number)))?)
        }
        (ColumnType::Bool, Json::Bool(is_true)) => Value::Int(i64::from(is_true)),
        (_, other) => return Err(fault(&other)),
    }))
}

/// Fault of a line that is no JSON; `misspelt` is a word in it that looks like a number.
fn not_json(error: &serde_json::Error, misspelt: Option<&str>) -> RecordFault {
    let mut reason = without_place(error);
    if error.column() > 0 {
        reason = format!("{reason}, at column {}", error.column());
    }
    if let Some(word) = misspelt {
        let word = printable(word, MAX_SHOWN_NUMBER);
        reason = format!(
            "{reason}; is `{word}` a number? only `NaN`, `Infinity` and `-Infinity` are, as Python writes them"
        );
    }
    RecordFault::NotJson(reason)
}

fn short(json: &Json) -> String {
    shown_value(&json.to_string())
}

fn shown_value(text: &str) -> String {
    const MOST_CHARS: usize = 40;
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("`{}`...", &text[..end]),
        None => format!("`{text}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(line: &str) -> Result<Sample, String> {
        sample_of(line.as_bytes(), 7, Origin::default()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_line_with_too_many_values_is_refused_before_it_is_parsed() {
        let line = |values: usize| format!(r#"{{"a":[{}0]}}"#, "0,".repeat(values - 1));
        assert!(sample(&line(MAX_NODES - 2)).is_ok());
        let message = sample(&line(MAX_NODES)).unwrap_err();
        assert_eq!(message, "has more than 262144 names and values, which is the limit");
    }

    #[test]
    fn members_become_fields_in_their_order() {
        let found = sample(
            r#"{"z": "text", "key": "k", "a": -3, "m": 0.1, "yes": true, "none": null, "list": [1, [2.5]], "b": {"c": "d"}}"#,
        );
        let found = found.unwrap();
        assert_eq!(&*found.key, "k");
        let fields: Vec<(&str, &Value)> =
            found.fields.iter().map(|field| (&*field.name, &field.value)).collect();
        let text = |text: &str| Value::Text(text.to_owned());
        assert_eq!(
            fields,
            [
                ("z", &text("text")),
                ("a", &Value::Int(-3)),
                ("m", &Value::Real(0.1)),
                ("yes", &Value::Int(1)),
                ("list", &text("[1,[2.5]]")),
                ("b", &text(r#"{"c":"d"}"#)),
            ]
        );
    }

    #[test]
    fn the_key_is_a_string_an_integer_or_the_line_number() {
        for (line, key) in [
            (r#"{"key": "a/b"}"#, "a/b"),
            (r#"{"key": 12}"#, "12"),
            (r#"{"key": 18446744073709551615}"#, "18446744073709551615"),
            (r#"{"key": null}"#, "7"),
            ("{}", "7"),
        ] {
            assert_eq!(&*sample(line).unwrap().key, key, "{line}");
        }
        for line in [r#"{"key": 1.5}"#, r#"{"key": ""}"#, r#"{"key": true}"#, r#"{"key": ["k"]}"#] {
            let fault = sample(line).unwrap_err();
            assert!(fault.contains("an integer or a non-empty string"), "{line}: {fault}");
        }
    }

    #[test]
    fn numbers_are_read_exactly_or_refused() {
        assert_eq!(sample(r#"{"n": 9223372036854775807}"#).unwrap().field("n"), Some(&Value::Int(i64::MAX)));
        let real = sample(r#"{"n": 1.7976931348623157e308}"#).unwrap();
        assert_eq!(real.field("n"), Some(&Value::Real(f64::MAX)));
        let fault = sample(r#"{"n": 9223372036854775808}"#).unwrap_err();
        assert!(
            fault.contains("`n`: 9223372036854775808, which does not fit into a signed 64-bit integer"),
            "{fault}"
        );
        assert!(sample(r#"{"n": 1e999}"#).is_err());
        assert_eq!(sample(r#"{"n": -0}"#).unwrap().field("n"), Some(&Value::Int(0)));
        assert_eq!(sample(r#"{"n": -0.0}"#).unwrap().field("n"), Some(&Value::Real(-0.0)));
        for number in ["-9223372036854775809", "18446744073709551617", "10000000000000000000000000"] {
            let fault = sample(&format!(r#"{{"n": 1, "n" : {number} }}"#)).unwrap_err();
            let told = format!("`n`: {number}, which does not fit into a signed 64-bit integer");
            assert!(fault.contains(&told), "{fault}");
        }
        // float64 holds them, or they are no whole numbers as they are written.
        for (number, real) in [
            ("18446744073709551616", 18446744073709551616.0),
            ("1e25", 1e25),
            ("10000000000000000000000000.0", 1e25),
        ] {
            let found = sample(&format!(r#"{{"n": {number}}}"#)).unwrap();
            assert_eq!(found.field("n"), Some(&Value::Real(real)), "{number}");
        }
        let nested = r#"{"n": [1, {"a": 10000000000000000000000000}]}"#;
        let text = "[1, {\"a\": 10000000000000000000000000}]".to_owned();
        assert_eq!(sample(nested).unwrap().field("n"), Some(&Value::Text(text)));
    }

    #[test]
    fn numbers_of_a_type_are_read_exactly_or_refused() {
        let read = |kind, number: &str| {
            let types = BTreeMap::from([("n".to_owned(), kind)]);
            let found = members(
                format!(r#"{{"n": {number}}}"#).as_bytes(),
                SAMPLE_KEY,
                &types,
                &mut Names::default(),
                &mut |_| {},
            );
            found.map(|(_, fields)| fields[0].value.clone()).map_err(|fault| fault.to_string())
        };
        use ColumnType::{Float, Int, Text};
        for number in [
            "9007199254740993",
            "-9223372036854775809",
            "18446744073709551615",
            "100000000000000000001",
            "\"9007199254740993\"",
        ] {
            let told = format!(
                "has the whole number {} as `n`, a `float`, which does not hold it exactly; set the type `int` or `text` in `types`",
                number.trim_matches('"')
            );
            assert_eq!(read(Float, number), Err(told));
        }
        assert_eq!(read(Float, "9223372036854775808"), Ok(Value::Real(9_223_372_036_854_775_808.0)));
        assert_eq!(read(Float, "9007199254740993.0"), Ok(Value::Real(9_007_199_254_740_992.0)));
        assert_eq!(read(Int, "9007199254740993.0"), Ok(Value::Int(9_007_199_254_740_993)));
        assert!(read(Int, "9223372036854775808.0").is_err());
        for number in ["18446744073709551617", "[10000000000000000000000000]"] {
            assert_eq!(read(Text, number), Ok(Value::Text(number.to_owned())));
        }
    }

    #[test]
    fn numbers_that_json_lacks_are_read_as_by_python() {
        let read = |line: &str, kind: Option<ColumnType>| {
            let types = kind.into_iter().map(|kind| ("n".to_owned(), kind)).collect();
            let found = members(line.as_bytes(), SAMPLE_KEY, &types, &mut Names::default(), &mut |_| {});
            let value = found.map(|(_, fields)| {
                fields.into_iter().find(|field| &*field.name == "n").map(|field| field.value)
            });
            value.map_err(|fault| fault.to_string())
        };
        let real = |line: &str| match read(line, None).unwrap() {
            Some(Value::Real(real)) => real,
            other => panic!("{line}: {other:?}"),
        };
        assert!(real(r#"{"n": NaN}"#).is_nan());
        assert!(real(r#"{"m": [1, NaN], "n" :NaN, "o": "\udc00"}"#).is_nan());
        assert_eq!(real(r#"{"n":Infinity}"#), f64::INFINITY);
        assert_eq!(real("{\"n\":\t-Infinity }"), f64::NEG_INFINITY);
        // Of members with one name, the last one counts.
        assert_eq!(real(r#"{"n": NaN, "n": 1.5}"#), 1.5);
        assert!(real(r#"{"n": 1.5, "\u006e": NaN}"#).is_nan());
        let text = |text: &str| Ok(Some(Value::Text(text.to_owned())));
        assert_eq!(read(r#"{"n": [1, {"a": -Infinity}]}"#, None), text(r#"[1, {"a": -Infinity}]"#));
        assert_eq!(read(r#"{"n": ["NaN", "\ud800"], "m": NaN}"#, None), text("[\"NaN\",\"\u{fffd}\"]"));
        assert_eq!(read(r#"{"n": ["\ud800", NaN]}"#, None), text(r#"["\ufffd", NaN]"#));
        assert_eq!(read(r#"{"n": NaN}"#, Some(ColumnType::Text)), text("NaN"));
        assert!(
            matches!(read(r#"{"n": NaN}"#, Some(ColumnType::Float)), Ok(Some(Value::Real(real))) if real.is_nan())
        );
        for (kind, name) in [(ColumnType::Int, "int"), (ColumnType::Bool, "bool")] {
            assert_eq!(
                read(r#"{"n": -Infinity}"#, Some(kind)),
                Err(format!("has `-Infinity` as the member `n`, which is no `{name}`"))
            );
        }
        assert!(
            read(r#"{"n": [NaN]}"#, Some(ColumnType::Float))
                .unwrap_err()
                .contains("has `[NaN]` as the member `n`")
        );
        assert!(sample(r#"{"key": NaN}"#).unwrap_err().contains("has the `key` `NaN`; expected"));
        for word in ["nan", "NAN", "-NaN", "+NaN", "inf", "Inf", "-inf", "infinity", "+Infinity", "-infinity"]
        {
            for line in [format!(r#"{{"n": {word}}}"#), format!(r#"{{"n": [NaN, {word}]}}"#)] {
                let fault = read(&line, None).unwrap_err();
                assert!(
                    fault.contains(&format!(
                        "is `{word}` a number? only `NaN`, `Infinity` and `-Infinity` are"
                    )),
                    "{fault}"
                );
            }
        }
        for line in [
            r#"{NaN: 1}"#,
            r#"{"n" NaN}"#,
            r#"{"n": NaN NaN}"#,
            r#"{"n": NaN"#,
            "NaN",
            "[NaN]",
            r#"{"n": - Infinity}"#,
            r#"{"n": NaNs}"#,
        ] {
            assert!(sample(line).is_err(), "{line}");
        }
        // The place of another fault is that in the line.
        assert!(sample(r#"{"n": NaN, "m": }"#).unwrap_err().ends_with("expected value, at column 17"));
    }

    #[test]
    fn a_malformed_line_is_reported_with_reason_and_place() {
        assert_eq!(
            sample("[1]").unwrap_err(),
            "is not a JSON object: invalid type: sequence, expected a map, at column 0"
                .replace(", at column 0", "")
        );
        assert!(sample(r#"{"a": }"#).unwrap_err().ends_with("expected value, at column 7"));
        assert!(sample(r#"{"a": 1} x"#).unwrap_err().contains("trailing characters"));
        let fault = sample_of(b"{\"a\": \"\xff\"}", 1, Origin::default()).unwrap_err().to_string();
        assert!(fault.starts_with("is not UTF-8: the first invalid byte is number 8"), "{fault}");
    }
}
