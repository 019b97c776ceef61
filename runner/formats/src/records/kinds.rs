//! Types of the members of a line, without their values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use penstock_types::data_set::{FieldType, Learner, TypeFault};
use penstock_types::spec::ColumnType;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::layout::MAX_NODES;
use super::lenient::Lenient;
use super::written::{is_beyond, is_huge, is_zero};

enum Kind {
    Null,
    /// A type, with the number if it is a whole one.
    Of(FieldType, Option<i64>),
    /// A number that may be written as a whole one: beyond 64 bits, where it is rounded, or `-0`.
    Unclear(f64),
    /// A whole number beyond 64 bits.
    Beyond,
}

struct OfKind;

/// Reads the types of the members of one line, except that of the key.
struct Line<'a> {
    key: &'a str,
    types: &'a BTreeMap<String, ColumnType>,
}

/// Learns the types of the members of the JSON object `line`, except that of the member `key`. A line that is no object, or has a whole
/// number beyond 64 bits, teaches nothing: it fails where it is read, and no sample lacks a field for it.
pub(super) fn learn(
    learner: &mut Learner,
    line: &[u8],
    key: &str,
    types: &BTreeMap<String, ColumnType>,
    at: &dyn Fn() -> String,
) -> Result<(), TypeFault> {
    let Ok(text) = str::from_utf8(line.trim_ascii_end()) else { return Ok(()) };
    let lenient;
    let (text, members) = match kinds(text, key, types) {
        Some(members) => (text, members),
        None => {
            lenient = Lenient::of(text);
            match kinds(&lenient.json, key, types) {
                Some(members) => (&*lenient.written, members),
                None => return Ok(()),
            }
        }
    };
    let fails = |(name, kind): &(Cow<'_, str>, Kind)| match kind {
        Kind::Unclear(real) => is_beyond(text, name, *real),
        Kind::Beyond => true,
        Kind::Null | Kind::Of(..) => false,
    };
    if members.iter().any(fails) {
        return Ok(());
    }
    learner.begin_sample();
    for (name, kind) in members {
        let (kind, number) = match kind {
            Kind::Of(kind, number) => (kind, number),
            Kind::Unclear(real) if is_zero(text, &name, real) => (FieldType::Int, Some(0)),
            Kind::Unclear(_) => (FieldType::Real, None),
            Kind::Null | Kind::Beyond => continue,
        };
        learner.see(&name, kind, number, at)?;
    }
    Ok(())
}

/// Types of the members of a JSON object; `None` if it is none.
fn kinds<'a>(
    text: &'a str,
    key: &'a str,
    types: &'a BTreeMap<String, ColumnType>,
) -> Option<Vec<(Cow<'a, str>, Kind)>> {
    let mut json = serde_json::Deserializer::from_str(text);
    let members = json.deserialize_map(Line { key, types });
    members.ok().filter(|_| json.end().is_ok())
}

/// Type of the fields that a column or member of this type becomes.
pub fn field_type(kind: ColumnType) -> FieldType {
    match kind {
        ColumnType::Text => FieldType::Text,
        ColumnType::Int | ColumnType::Bool => FieldType::Int,
        ColumnType::Float => FieldType::Real,
    }
}

impl<'de> Visitor<'de> for Line<'_> {
    type Value = Vec<(Cow<'de, str>, Kind)>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = Vec::with_capacity(8);
        while let Some(Name(name)) = members.next_key()? {
            let kind = members.next_value()?;
            if found.len() == MAX_NODES {
                // The line fails where it is read.
                return Err(A::Error::custom("too many members"));
            }
            if name == self.key {
                continue;
            }
            let kind = match (kind, self.types.get(&*name)) {
                (kind @ Kind::Null, _) | (kind, None) => kind,
                (_, Some(declared)) => Kind::Of(field_type(*declared), None),
            };
            found.push((name, kind));
        }
        Ok(found)
    }
}

/// A name that is borrowed from the line unless it has escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfKind)
    }
}

impl<'de> Visitor<'de> for OfKind {
    type Value = Kind;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Kind, E> {
        Ok(Kind::Of(FieldType::Int, Some(0)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Kind, E> {
        Ok(Kind::Of(FieldType::Int, Some(number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Kind, E> {
        Ok(i64::try_from(number).map_or(Kind::Beyond, |number| Kind::Of(FieldType::Int, Some(number))))
    }

    fn visit_f64<E>(self, real: f64) -> Result<Kind, E> {
        let is_unclear = is_huge(real) || real == 0.0 && real.is_sign_negative();
        Ok(if is_unclear { Kind::Unclear(real) } else { Kind::Of(FieldType::Real, None) })
    }

    fn visit_str<E>(self, _: &str) -> Result<Kind, E> {
        Ok(Kind::Of(FieldType::Text, None))
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Kind, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Kind::Of(FieldType::Text, None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Kind, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Kind::Of(FieldType::Text, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(lines: &[&str]) -> Learner {
        let mut learner = Learner::default();
        for line in lines {
            learn(&mut learner, line.as_bytes(), "key", &BTreeMap::new(), &String::new).unwrap();
        }
        learner
    }

    #[test]
    fn a_line_that_fails_where_it_is_read_teaches_nothing() {
        let (one, other) = (r#"{"a": 1, "b": "x"}"#, r#"{"b": "y", "a": 2}"#);
        let expected = learnt(&[one, other]).finish(true);
        assert!(expected.fields.iter().all(|field| field.optional == Some(false)));
        for bad in [
            r#"{"a": "#,
            r#"{"a": 1.5, "b": 3"#,
            r#"{"a": 1.5} x"#,
            "[1]",
            r#"{"a": 9223372036854775808}"#,
            r#"{"b": "z", "c": 10000000000000000000000000}"#,
        ] {
            assert_eq!(learnt(&[one, bad, other]).finish(true), expected, "{bad}");
        }
        let real = learnt(&[r#"{"a": 1e25, "b": "x"}"#, other]).finish(true);
        assert_eq!(real.fields[0].kind, FieldType::Real);
        for special in ["NaN", "Infinity", "-Infinity"] {
            let fields = learnt(&[one, &format!(r#"{{"a": {special}, "b": "\ud800"}}"#)]).finish(true).fields;
            assert_eq!((fields[0].kind, fields[0].optional), (FieldType::Real, Some(false)), "{special}");
        }
        for (zero, kind) in [("-0", FieldType::Int), ("-0.0", FieldType::Real), ("-0e0", FieldType::Real)] {
            let fields = learnt(&[&format!(r#"{{"a": {zero}}}"#)]).finish(true).fields;
            assert_eq!(fields[0].kind, kind, "{zero}");
            let fields = learnt(&[&format!(r#"{{"\ud800": {zero}}}"#)]).finish(true).fields;
            assert_eq!((&*fields[0].name, fields[0].kind), ("\u{fffd}", kind), "{zero}");
        }
    }
}
