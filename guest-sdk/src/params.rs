//! Parameters: what a pipeline document writes under `params` of a stage, checked and typed.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::json::Json;

/// The parameters of a stage. Derived for a struct; `()` takes none.
pub trait Params: Sized + 'static {
    /// JSON Schema of the parameters; `null` when there are none.
    const SCHEMA: Json;

    /// Reads them from the members of `params`. The message names every member at fault.
    fn from_members(members: Map<String, Value>) -> Result<Self, String>;

    /// Reads them from the text of `params`; an empty text is an empty object.
    fn from_json(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Self::from_members(Map::new());
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(members)) => Self::from_members(members),
            Ok(Value::Null) => Self::from_members(Map::new()),
            Ok(other) => Err(format!("params are {other}, not an object")),
            Err(error) => Err(format!("params are not JSON: {error}")),
        }
    }
}

/// The type of one parameter: how it is read, and what JSON Schema says of it. Implemented for `bool`, whole and real
/// numbers, `String`, `Option`, `Vec`, and derived for plain enums, which are written as strings.
pub trait Param: DeserializeOwned {
    /// Members of its schema, without braces and without a range.
    const MEMBERS: Json;
    /// `,"minimum":...`, or nothing.
    const MINIMUM: Json = Json::Text("");
    /// `,"maximum":...`, or nothing.
    const MAXIMUM: Json = Json::Text("");
}

impl Params for () {
    const SCHEMA: Json = Json::Text("null");

    fn from_members(members: Map<String, Value>) -> Result<Self, String> {
        MemberReader::new(members).finish(&[])
    }
}

/// Takes the members of `params` one by one and gathers what is wrong with them. Used by derived code.
#[derive(Debug)]
pub struct MemberReader {
    members: Map<String, Value>,
    faults: Vec<String>,
}

/// What derived code knows of one member.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The member's name.
    pub name: &'static str,
    /// JSON text of the value it has when it is not written; `None` when it must be.
    pub default: Option<&'static str>,
    /// Least number allowed.
    pub min: Option<f64>,
    /// Greatest number allowed.
    pub max: Option<f64>,
}

impl MemberReader {
    /// A reader of these members.
    pub fn new(members: Map<String, Value>) -> Self {
        Self { members, faults: Vec::new() }
    }

    /// Takes one member; `None` when something is wrong with it, which [`MemberReader::finish`] will tell.
    pub fn take<T: Param>(&mut self, rule: Rule) -> Option<T> {
        let name = rule.name;
        let value = match (self.members.remove(name), rule.default) {
            (Some(value), _) => value,
            (None, Some(text)) => serde_json::from_str(text).unwrap_or(Value::Null),
            (None, None) => {
                self.faults.push(format!("`{name}` is missing"));
                return None;
            }
        };
        if let Some(fault) = out_of_range(&value, rule) {
            self.faults.push(format!("`{name}`: {fault}"));
            return None;
        }
        match T::deserialize(value) {
            Ok(value) => Some(value),
            Err(error) => {
                self.faults.push(format!("`{name}`: {error}"));
                None
            }
        }
    }

    /// Ends the reading. Fails when a member was at fault, or is left that is none of the `known`.
    pub fn finish(mut self, known: &[&str]) -> Result<(), String> {
        for name in self.members.keys() {
            let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            self.faults.push(match known.is_empty() {
                true => format!("`{name}` is unknown: this stage takes no params"),
                false => format!("`{name}` is unknown: there are {}", known.join(", ")),
            });
        }
        if self.faults.is_empty() { Ok(()) } else { Err(self.faults.join("; ")) }
    }
}

fn out_of_range(value: &Value, rule: Rule) -> Option<String> {
    let number = value.as_f64()?;
    if let Some(min) = rule.min.filter(|&min| number < min) {
        return Some(format!("{value} is less than {min}"));
    }
    rule.max.filter(|&max| number > max).map(|max| format!("{value} is more than {max}"))
}

macro_rules! plain {
    ($($rust:ty => $members:literal),+ $(,)?) => {
        $(impl Param for $rust {
            const MEMBERS: Json = Json::Text($members);
        })+
    };
}

macro_rules! whole {
    ($($rust:ty => $min:literal, $max:literal);+ $(;)?) => {
        $(impl Param for $rust {
            const MEMBERS: Json = Json::Text(r#""type":"integer""#);
            const MINIMUM: Json = Json::Text(concat!(r#","minimum":"#, $min));
            const MAXIMUM: Json = Json::Text(concat!(r#","maximum":"#, $max));
        })+
    };
}

plain!(
    bool => r#""type":"boolean""#,
    f32 => r#""type":"number""#,
    f64 => r#""type":"number""#,
    String => r#""type":"string""#,
);
whole!(
    u8 => "0", "255";
    u16 => "0", "65535";
    u32 => "0", "4294967295";
    u64 => "0", "18446744073709551615";
    i8 => "-128", "127";
    i16 => "-32768", "32767";
    i32 => "-2147483648", "2147483647";
    i64 => "-9223372036854775808", "9223372036854775807";
);
// A guest is 32 bits wide: what fits natively must fit there.
impl Param for usize {
    const MEMBERS: Json = u32::MEMBERS;
    const MINIMUM: Json = u32::MINIMUM;
    const MAXIMUM: Json = u32::MAXIMUM;
}

impl<T: Param> Param for Vec<T> {
    const MEMBERS: Json = Json::Parts(&[
        Json::Text(r#""type":"array","items":{"#),
        T::MEMBERS,
        T::MINIMUM,
        T::MAXIMUM,
        Json::Text("}"),
    ]);
}

impl<T: Param> Param for Option<T> {
    const MEMBERS: Json = Json::Parts(&[
        Json::Text(r#""anyOf":[{"#),
        T::MEMBERS,
        T::MINIMUM,
        T::MAXIMUM,
        Json::Text(r#"},{"type":"null"}]"#),
    ]);
}
