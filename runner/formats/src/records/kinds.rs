//! Types of the members of a line, without their values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use penstock_types::data_set::{FieldType, Learner, TypeFault};
use penstock_types::spec::ColumnType;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Type of a member's value; `None` for a null, and for a whole number beyond 64 bits, which fails where it is read.
struct Kind(Option<(FieldType, Option<i64>)>);

struct OfKind;

/// Learns the types of the members of one line.
struct Line<'a> {
    learner: &'a mut Learner,
    key: &'a str,
    types: &'a BTreeMap<String, ColumnType>,
    at: &'a dyn Fn() -> String,
    fault: &'a mut Option<TypeFault>,
}

/// Learns the types of the members of the JSON object `line`, except that of the member `key`. A line that is no object teaches nothing:
/// it fails where it is read.
pub(super) fn learn(
    learner: &mut Learner,
    line: &[u8],
    key: &str,
    types: &BTreeMap<String, ColumnType>,
    at: &dyn Fn() -> String,
) -> Result<(), TypeFault> {
    let Ok(text) = str::from_utf8(line.trim_ascii_end()) else { return Ok(()) };
    let mut fault = None;
    learner.begin_sample();
    let line = Line { learner, key, types, at, fault: &mut fault };
    // A fault of the text is told where the line is read.
    serde_json::Deserializer::from_str(text).deserialize_map(line).unwrap_or_default();
    fault.map_or(Ok(()), Err)
}

/// Type of the fields that a column or member of this type becomes.
pub(super) fn field_type(kind: ColumnType) -> FieldType {
    match kind {
        ColumnType::Text => FieldType::Text,
        ColumnType::Int | ColumnType::Bool => FieldType::Int,
        ColumnType::Float => FieldType::Real,
    }
}

impl<'de> Visitor<'de> for Line<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<Name<'de>>()? {
            let Name(name) = name;
            let Kind(kind) = members.next_value()?;
            if name == self.key || self.fault.is_some() {
                continue;
            }
            let Some((kind, number)) = kind else { continue };
            let (kind, number) = match self.types.get(&*name) {
                Some(declared) => (field_type(*declared), None),
                None => (kind, number),
            };
            *self.fault = self.learner.see(&name, kind, number, self.at).err();
        }
        Ok(())
    }
}

/// A name that is borrowed from the line unless it has escapes.
struct Name<'a>(Cow<'a, str>);

struct OfName;

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(OfName)
    }
}

impl<'de> Visitor<'de> for OfName {
    type Value = Name<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}

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
        Ok(Kind(Some((FieldType::Int, Some(0)))))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Kind, E> {
        Ok(Kind(Some((FieldType::Int, Some(number)))))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Kind, E> {
        Ok(Kind(i64::try_from(number).ok().map(|number| (FieldType::Int, Some(number)))))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Kind, E> {
        Ok(Kind(Some((FieldType::Real, None))))
    }

    fn visit_str<E>(self, _: &str) -> Result<Kind, E> {
        Ok(Kind(Some((FieldType::Text, None))))
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Kind, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Kind(Some((FieldType::Text, None))))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Kind, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Kind(Some((FieldType::Text, None))))
    }
}
