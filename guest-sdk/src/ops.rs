//! Lists of ops as a parameter.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Defines the enum `Op` for a parameter that is a list of ops, one variant for each struct of params, with the struct's name.
///
/// A pipeline writes an op as an object with one member: its name, with its params. The derived schema describes the params of
/// each op, so that forms show them; errors name the op and all ops that exist.
///
/// ```
/// use penstock_guest::prelude::*;
///
/// penstock_guest::ops!(Scale, Shift);
///
/// /// Multiplies by a factor.
/// #[derive(Clone, Debug, Params)]
/// pub struct Scale {
///     /// Factor.
///     factor: f64,
/// }
///
/// /// Adds a number.
/// #[derive(Clone, Debug, Params)]
/// pub struct Shift {
///     /// Number.
///     by: f64,
/// }
///
/// #[derive(Clone, Debug, Params)]
/// pub struct Settings {
///     /// Ops in their order.
///     ops: Vec<Op>,
/// }
///
/// let settings = Settings::from_json(r#"{"ops": [{"Scale": {"factor": 2}}, {"Shift": {"by": 1}}]}"#).unwrap();
/// assert_eq!(settings.ops[1].name(), "Shift");
/// let fault = Settings::from_json(r#"{"ops": [{"Sort": {}}]}"#).unwrap_err();
/// assert!(fault.contains("`Sort` is not an op: the ops are `Scale`, `Shift`"), "{fault}");
/// ```
#[macro_export]
macro_rules! ops {
    ($first:ident $(, $rest:ident)* $(,)?) => {
        /// An op with its params.
        #[derive(Clone, Debug)]
        #[expect(missing_docs, reason = "each variant is documented at the struct of that name")]
        pub enum Op {
            $first($first),
            $($rest($rest),)*
        }

        impl Op {
            /// Names of all ops.
            const NAMES: &[&str] = &[stringify!($first) $(, stringify!($rest))*];

            /// Name of the op.
            pub fn name(&self) -> &'static str {
                match self {
                    Self::$first(_) => stringify!($first),
                    $(Self::$rest(_) => stringify!($rest),)*
                }
            }
        }

        impl $crate::Param for Op {
            const MEMBERS: $crate::Json = $crate::Json::Parts(&[
                $crate::Json::Text(concat!(
                    r#""type":"object","minProperties":1,"maxProperties":1,"additionalProperties":false,"properties":{""#,
                    stringify!($first), r#"":"#
                )),
                <$first as $crate::Params>::SCHEMA,
                $($crate::Json::Text(concat!(r#",""#, stringify!($rest), r#"":"#)), <$rest as $crate::Params>::SCHEMA,)*
                $crate::Json::Text("}"),
            ]);
        }

        impl<'de> $crate::__private::serde::Deserialize<'de> for Op {
            fn deserialize<D: $crate::__private::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let (name, params) = $crate::__private::named(deserializer, Self::NAMES)?;
                let read = match &*name {
                    stringify!($first) => <$first as $crate::Params>::from_members(params).map(Self::$first),
                    $(stringify!($rest) => <$rest as $crate::Params>::from_members(params).map(Self::$rest),)*
                    _ => Err(String::new()),
                };
                read.map_err(|fault| {
                    <D::Error as $crate::__private::serde::de::Error>::custom(format_args!("`{name}`: {fault}"))
                })
            }
        }
    };
}

/// Reads the name and the params of an op; the name is one of `names`.
#[doc(hidden)]
pub fn named<'de, D: Deserializer<'de>>(
    deserializer: D,
    names: &[&str],
) -> Result<(String, Map<String, Value>), D::Error> {
    let members = Map::<String, Value>::deserialize(deserializer)?;
    let count = members.len();
    let Some((name, params)) = members.into_iter().next().filter(|_| count == 1) else {
        return Err(D::Error::custom(format_args!(
            "an op is an object with one member, its name, not {count}"
        )));
    };
    if !names.contains(&&*name) {
        let names = names.join("`, `");
        return Err(D::Error::custom(format_args!("`{name}` is not an op: the ops are `{names}`")));
    }
    match params {
        Value::Object(params) => Ok((name, params)),
        other => Err(D::Error::custom(format_args!("the params of `{name}` are {other}, not an object"))),
    }
}
