//! A serde deserializer over JSON values whose errors carry a place and a kind, so that reading can continue after them.
//! serde_json's own errors are text without a place.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, Expected, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Value;

use crate::fault::{Pointer, listed, suggestion};

/// Maximum length of a quotation from the document in a message, in characters.
const MAX_QUOTED: usize = 80;

/// Reason why a value could not be read, with its place.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub(super) struct Misread {
    /// Steps to the place, innermost first.
    steps: Vec<Step>,
    problem: String,
    /// Name of the missing member, if that is the problem.
    pub(super) missing: Option<&'static str>,
}

/// One step into a document.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A member of an object.
    Key(String),
    /// The only member of an object, whose name is the kind of the object.
    Tag(String),
    /// An element of a list.
    Index(usize),
}

/// A JSON value to deserialize.
#[derive(Clone, Copy)]
pub(super) struct Node<'de>(pub(super) &'de Value);

impl Misread {
    /// Steps from the document's root to the value.
    pub(super) fn steps(&self) -> Vec<Step> {
        self.steps.iter().rev().cloned().collect()
    }

    fn unknown(what: &str, found: &str, which: &str, known: &[&str]) -> Self {
        let names = || known.iter().copied();
        let near = suggestion(found, names());
        Self::custom(format_args!("unknown {what} {}: {near}{which}: {}", quoted(found), listed(names())))
    }

    fn within(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }
}

/// Converts `steps` to a pointer.
pub(super) fn pointer(steps: &[Step]) -> Pointer {
    steps.iter().fold(Pointer::ROOT, |pointer, step| match step {
        Step::Key(key) | Step::Tag(key) => pointer.key(key),
        Step::Index(index) => pointer.index(*index),
    })
}

impl Error for Misread {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { steps: Vec::new(), problem: message.to_string(), missing: None }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!(
            "found {}, expected {}",
            found_in_words(found),
            expected_in_words(found, expected)
        ))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        Self::unknown("word", found, "known", known)
    }

    fn unknown_field(found: &str, known: &'static [&'static str]) -> Self {
        Self::unknown("field", found, "allowed here", known)
    }

    fn missing_field(field: &'static str) -> Self {
        Self { missing: Some(field), ..Self::custom(format_args!("the field `{field}` is missing")) }
    }
}

/// Text of the document, escaped and cut to a readable length. An address with a user is not repeated: it may contain a password.
fn quoted(text: &str) -> String {
    if text.split_once("://").is_some_and(|(_, rest)| rest.contains('@')) {
        return "(not shown: an address with a user, possibly with a password)".to_owned();
    }
    let escaped = text.escape_debug().to_string();
    match escaped.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("`{}...`", &escaped[..end]),
        None => format!("`{escaped}`"),
    }
}

fn found_in_words(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("`{value}`"),
        Unexpected::Signed(value) => format!("`{value}`"),
        // With fraction or exponent, to distinguish 1.0 from 1.
        Unexpected::Float(value) => format!("`{value:?}`"),
        Unexpected::Str("") => "an empty text".to_owned(),
        Unexpected::Str(text) => format!("the text {}", quoted(text)),
        Unexpected::Unit | Unexpected::Option => "`null`".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        other => other.to_string(),
    }
}

/// Replaces the names of Rust's types, which serde uses, by the names of JSON's types. Names the bound that the found number exceeds.
fn expected_in_words(found: Unexpected<'_>, expected: &dyn Expected) -> String {
    let is_large = matches!(found, Unexpected::Unsigned(value) if value > u32::MAX.into());
    match expected.to_string().as_str() {
        "u32" if is_large => format!("a whole number from 0 to {}", u32::MAX),
        "a nonzero u32" if is_large => format!("a whole number from 1 to {}", u32::MAX),
        "u64" | "u32" => "a whole number, 0 or more".to_owned(),
        "a nonzero u32" => "a whole number, 1 or more".to_owned(),
        "a boolean" => "`true` or `false`".to_owned(),
        "a string" => "a text".to_owned(),
        "a map" => "an object".to_owned(),
        "a sequence" => "a list".to_owned(),
        text if text.starts_with("struct ") => "an object".to_owned(),
        text => text.to_owned(),
    }
}

fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(value), ..) => Unexpected::Unsigned(value),
            (_, Some(value), _) => Unexpected::Signed(value),
            (.., value) => Unexpected::Float(value.unwrap_or(f64::NAN)),
        },
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}

impl<'de> Deserializer<'de> for Node<'de> {
    type Error = Misread;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misread> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(_) => match unexpected(self.0) {
                Unexpected::Unsigned(value) => visitor.visit_u64(value),
                Unexpected::Signed(value) => visitor.visit_i64(value),
                Unexpected::Float(value) => visitor.visit_f64(value),
                other => Err(Misread::invalid_type(other, &"a number")),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(elements) => visitor.visit_seq(Elements { rest: elements.iter(), next: 0 }),
            Value::Object(members) => visitor.visit_map(Members { rest: members.iter(), current: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misread> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misread> {
        visitor.visit_newtype_struct(self)
    }

    // Derived visitors also accept a list of values in the order of the fields, which would only hide a mistake.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misread> {
        if self.0.is_object() {
            self.deserialize_any(visitor)
        } else {
            Err(Misread::invalid_type(unexpected(self.0), &"an object"))
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misread> {
        match self.0 {
            Value::String(tag) => visitor.visit_enum(Tagged { tag, content: None }),
            Value::Object(members) => match members.iter().next().filter(|_| members.len() == 1) {
                Some((tag, content)) => visitor.visit_enum(Tagged { tag, content: Some(content) }),
                None => Err(Misread::custom(format_args!(
                    "found an object with {} members, expected one that names its kind: {}",
                    members.len(),
                    listed(known.iter().copied())
                ))),
            },
            other => Err(Misread::custom(format_args!(
                "found {}, expected one of {}",
                found_in_words(unexpected(other)),
                listed(known.iter().copied())
            ))),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq
        tuple tuple_struct map identifier ignored_any
    }
}

struct Elements<'de> {
    rest: std::slice::Iter<'de, Value>,
    next: usize,
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = Misread;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misread> {
        let Some(element) = self.rest.next() else { return Ok(None) };
        let index = self.next;
        self.next += 1;
        seed.deserialize(Node(element)).map(Some).map_err(|error| error.within(Step::Index(index)))
    }
}

struct Members<'de> {
    rest: serde_json::map::Iter<'de>,
    current: Option<(&'de String, &'de Value)>,
}

impl<'de> MapAccess<'de> for Members<'de> {
    type Error = Misread;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Misread> {
        self.current = self.rest.next();
        let Some((key, _)) = self.current else { return Ok(None) };
        seed.deserialize(StrDeserializer::new(key))
            .map(Some)
            .map_err(|error: Misread| error.within(Step::Key(key.clone())))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Misread> {
        let (key, value) = self.current.take().ok_or_else(|| Misread::custom("a value was read twice"))?;
        seed.deserialize(Node(value)).map_err(|error| error.within(Step::Key(key.clone())))
    }
}

/// A kind: a single word, as in `"input"`, or the only member of an object, as in `{"fetch": {}}`.
struct Tagged<'de> {
    tag: &'de str,
    content: Option<&'de Value>,
}

impl<'de> Tagged<'de> {
    fn within(&self, error: Misread) -> Misread {
        if self.content.is_some() { error.within(Step::Tag(self.tag.to_owned())) } else { error }
    }

    fn read<T>(self, read: impl FnOnce(Node<'de>) -> Result<T, Misread>) -> Result<T, Misread> {
        let Some(content) = self.content else {
            let word = self.tag;
            return Err(Misread::custom(format_args!(
                "found the text `{word}`, expected an object: `{{\"{word}\": {{...}}}}`"
            )));
        };
        read(Node(content)).map_err(|error| self.within(error))
    }
}

impl<'de> EnumAccess<'de> for Tagged<'de> {
    type Error = Misread;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Misread> {
        match seed.deserialize(StrDeserializer::new(self.tag)) {
            Ok(variant) => Ok((variant, self)),
            Err(error) => Err(self.within(error)),
        }
    }
}

impl<'de> VariantAccess<'de> for Tagged<'de> {
    type Error = Misread;

    fn unit_variant(self) -> Result<(), Misread> {
        match self.content {
            None => Ok(()),
            Some(_) => {
                Err(Misread::custom(format_args!("found an object, expected the text `\"{}\"`", self.tag)))
            }
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Misread> {
        self.read(|content| seed.deserialize(content))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Misread> {
        self.read(|content| content.deserialize_seq(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misread> {
        self.read(|content| content.deserialize_struct("", fields, visitor))
    }
}
