//! JSON text from Rust syntax.

use syn::spanned::Spanned as _;
use syn::{Attribute, Error, Expr, ExprUnary, Lit, Meta, Result, UnOp};

/// Formats `text` as a JSON string, quotes included.
pub(crate) fn string(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Formats a list of JSON strings.
pub(crate) fn strings<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(string).collect();
    format!("[{}]", texts.join(","))
}

/// Formats a literal, a negative number, or a list of these as JSON.
pub(crate) fn literal(expression: &Expr) -> Result<String> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Bool(value) => Ok(value.value.to_string()),
            Lit::Int(value) => Ok(value.base10_digits().to_owned()),
            Lit::Float(value) => Ok(float(value.base10_digits())),
            Lit::Str(value) => Ok(string(&value.value())),
            other => Err(Error::new(other.span(), "expected a bool, a number or a string")),
        },
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => Ok(format!("-{}", literal(expr)?)),
        Expr::Array(list) => {
            let elements: Vec<String> = list.elems.iter().map(literal).collect::<Result<_>>()?;
            Ok(format!("[{}]", elements.join(",")))
        }
        other => {
            Err(Error::new(other.span(), "expected a literal, or a list of literals such as `[0.5, 0.5]`"))
        }
    }
}

/// Converts Rust's `1.`, which is not valid JSON.
fn float(digits: &str) -> String {
    match digits.strip_suffix('.') {
        Some(whole) => format!("{whole}.0"),
        None => digits.to_owned(),
    }
}

/// Text of the doc comment: lines of a paragraph are joined, paragraphs are separated by blank lines; empty without a
/// comment.
pub(crate) fn doc(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        let Meta::NameValue(pair) = &attribute.meta else { continue };
        let Expr::Lit(literal) = &pair.value else { continue };
        let Lit::Str(line) = &literal.lit else { continue };
        for line in line.value().split('\n').map(str::trim) {
            match line {
                "" if text.is_empty() || text.ends_with("\n\n") => {}
                "" => text.push_str("\n\n"),
                _ => {
                    if !text.is_empty() && !text.ends_with('\n') {
                        text.push(' ');
                    }
                    text.push_str(line);
                }
            }
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(string("a\"b\\c\nd\u{1}é"), r#""a\"b\\c\nd\u0001é""#);
        assert_eq!(strings(["a", "b"]), r#"["a","b"]"#);
    }

    #[test]
    fn literals_become_json() {
        assert_eq!(literal(&parse_quote!([1_000, -2.5, 3.])).unwrap(), "[1000,-2.5,3.0]");
        assert_eq!(literal(&parse_quote!("crop")).unwrap(), r#""crop""#);
        assert!(literal(&parse_quote!(SIZE)).is_err());
    }

    #[test]
    fn lines_of_a_paragraph_are_joined() {
        let item: syn::ItemStruct = parse_quote! {
            /// First line
            /// goes on.
            ///
            /// Second paragraph.
            struct Doc;
        };
        assert_eq!(doc(&item.attrs), "First line goes on.\n\nSecond paragraph.");
    }
}
