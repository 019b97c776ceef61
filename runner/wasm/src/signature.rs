//! Checks that a component's `transform` has the contract's functions with the contract's types. The engine itself would report a
//! mismatch only when the first instance is created.

use std::fmt::{self, Write};

use penstock_types::text::printable;
use wasmtime::Engine;
use wasmtime::component::Component;
use wasmtime::component::types::{ComponentFunc, ComponentItem, Type};

use crate::error::ModuleError;

/// Functions of `transform` with their types.
const FUNCTIONS: [(&str, &str); 3] =
    [("init", "(string) -> result<_, string>"), ("process", PROCESS), ("finish", FINISH)];

macro_rules! item {
    () => {
        "record{key: string, seed: u64, fields: list<record{name: string, value: variant{blob(list<u8>), \
         text(string), int(s64), real(f64), tensor(record{dtype: enum{boolean, uint8, int8, int16, uint16, int32, \
         int64, float16, bfloat16, float32, float64}, shape: list<u32>, data: list<u8>})}}>}"
    };
}
const PROCESS: &str = concat!(
    "(list<",
    item!(),
    ">) -> list<variant{keep(",
    item!(),
    "), drop, many(list<",
    item!(),
    ">), held, failed(string)}>"
);
const FINISH: &str = concat!("() -> list<", item!(), ">");

/// Maximum length of a type's text, in bytes, well above the longest valid type. Limited, because types may share parts, so a
/// small component can have an extremely long type.
const MAX_WRITTEN: usize = 2 * PROCESS.len();
const SHOWN_TYPE: usize = 200;

pub(crate) fn check(engine: &Engine, component: &Component) -> Result<(), ModuleError> {
    let misfit = |found: String| Err(ModuleError::Export { found });
    let ty = component.component_type();
    let transform = ty.exports(engine).find(|(name, _)| name.starts_with("penstock:stage/transform@"));
    let Some((_, ComponentItem::ComponentInstance(transform))) =
        transform.map(|(name, item)| (name, item.ty))
    else {
        return misfit("the export with that name is not an interface".into());
    };
    for (name, expected) in FUNCTIONS {
        match transform.get_export(engine, name).map(|item| item.ty) {
            Some(ComponentItem::ComponentFunc(function)) => {
                let found = written(&function);
                if found != expected {
                    return misfit(format!(
                        "its function `{name}` is `{}`, which differs from the contract; build it with the SDK of the Penstock version that runs it",
                        printable(&found, SHOWN_TYPE)
                    ));
                }
            }
            _ => {
                return misfit(format!(
                    "it has no function `{name}`; build it with the SDK of the Penstock version that runs it"
                ));
            }
        }
    }
    Ok(())
}

fn written(function: &ComponentFunc) -> String {
    let mut text = Bounded(String::new());
    // A type that is longer than any valid type is cut off, so its text differs from the expected one.
    match write_function(&mut text, function) {
        Ok(()) => text.0,
        Err(fmt::Error) => text.0 + "...",
    }
}

struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.0.len() + more.len() > MAX_WRITTEN {
            return Err(fmt::Error);
        }
        self.0.push_str(more);
        Ok(())
    }
}

fn write_function(text: &mut Bounded, function: &ComponentFunc) -> fmt::Result {
    text.write_str(if function.async_() { "async (" } else { "(" })?;
    separated(text, function.params(), |text, (_, ty)| write_type(text, &ty))?;
    text.write_str(if function.results().len() == 0 { ")" } else { ") -> " })?;
    separated(text, function.results(), |text, ty| write_type(text, &ty))
}

fn write_type(text: &mut Bounded, ty: &Type) -> fmt::Result {
    match ty {
        Type::U8 => text.write_str("u8"),
        Type::U32 => text.write_str("u32"),
        Type::U64 => text.write_str("u64"),
        Type::S64 => text.write_str("s64"),
        Type::Float64 => text.write_str("f64"),
        Type::String => text.write_str("string"),
        Type::List(list) => {
            text.write_str("list<")?;
            write_type(text, &list.ty())?;
            text.write_str(">")
        }
        Type::Record(record) => {
            text.write_str("record{")?;
            separated(text, record.fields(), |text, field| {
                write!(text, "{}: ", field.name)?;
                write_type(text, &field.ty)
            })?;
            text.write_str("}")
        }
        Type::Variant(variant) => {
            text.write_str("variant{")?;
            separated(text, variant.cases(), |text, case| {
                text.write_str(case.name)?;
                let Some(ty) = case.ty else { return Ok(()) };
                text.write_str("(")?;
                write_type(text, &ty)?;
                text.write_str(")")
            })?;
            text.write_str("}")
        }
        Type::Enum(names) => {
            text.write_str("enum{")?;
            separated(text, names.names(), |text, name| text.write_str(name))?;
            text.write_str("}")
        }
        Type::Result(result) => {
            text.write_str("result<")?;
            write_or_nothing(text, result.ok())?;
            text.write_str(", ")?;
            write_or_nothing(text, result.err())?;
            text.write_str(">")
        }
        // Other types do not occur in the contract, so writing the name is sufficient to make the text differ.
        Type::Bool => text.write_str("bool"),
        Type::S8 => text.write_str("s8"),
        Type::S16 => text.write_str("s16"),
        Type::U16 => text.write_str("u16"),
        Type::S32 => text.write_str("s32"),
        Type::Float32 => text.write_str("f32"),
        Type::Char => text.write_str("char"),
        Type::Tuple(_) => text.write_str("tuple"),
        Type::Option(_) => text.write_str("option"),
        Type::Flags(_) => text.write_str("flags"),
        _ => text.write_str("a type of another kind"),
    }
}

fn write_or_nothing(text: &mut Bounded, ty: Option<Type>) -> fmt::Result {
    match ty {
        Some(ty) => write_type(text, &ty),
        None => text.write_str("_"),
    }
}

fn separated<T>(
    text: &mut Bounded,
    parts: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut Bounded, T) -> fmt::Result,
) -> fmt::Result {
    for (number, part) in parts.enumerate() {
        if number > 0 {
            text.write_str(", ")?;
        }
        write(text, part)?;
    }
    Ok(())
}
