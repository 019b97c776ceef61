//! Expansion of `#[derive(Params)]`: the reader of params, and their JSON Schema.

use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned as _;
use syn::{
    Data, DataEnum, DataStruct, DeriveInput, Error, Expr, Field, Fields, GenericArgument, Ident,
    PathArguments, Result, Type,
};

use crate::json;

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = syn::parse2(item)?;
    if !input.generics.params.is_empty() {
        return Err(Error::new(input.generics.span(), "params cannot be generic"));
    }
    match &input.data {
        Data::Struct(data) => of_struct(&input, data),
        Data::Enum(data) => of_enum(&input, data),
        Data::Union(_) => Err(Error::new(
            input.span(),
            "`Params` can be derived for a struct, or for an enum that is the type of a field",
        )),
    }
}

/// One field of a struct of params.
struct Member<'a> {
    ident: &'a Ident,
    name: String,
    kind: &'a Type,
    doc: String,
    /// Default value as JSON text.
    default: Option<String>,
    /// Value that editors begin with, as JSON text.
    example: Option<String>,
    min: Option<String>,
    max: Option<String>,
}

fn of_struct(input: &DeriveInput, data: &DataStruct) -> Result<TokenStream> {
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(input.span(), "a struct of params needs named fields"));
    };
    let members: Vec<Member<'_>> = fields.named.iter().map(Member::read).collect::<Result<_>>()?;
    let owner = &input.ident;
    let schema = schema(&json::doc(&input.attrs), &members);
    let idents: Vec<&Ident> = members.iter().map(|member| member.ident).collect();
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    let kinds = members.iter().map(|member| member.kind);
    let rules = members.iter().map(Member::rule);

    let default = members.iter().all(|member| member.default.is_some()).then(|| {
        quote! {
            impl ::core::default::Default for #owner {
                fn default() -> Self {
                    <Self as ::penstock_guest::Params>::from_json("").expect("the defaults of params are valid")
                }
            }
        }
    });
    Ok(quote! {
        impl ::penstock_guest::Params for #owner {
            const SCHEMA: ::penstock_guest::__private::Json = #schema;

            fn from_members(
                members: ::penstock_guest::__private::serde_json::Map<
                    ::std::string::String,
                    ::penstock_guest::__private::serde_json::Value,
                >,
            ) -> ::core::result::Result<Self, ::std::string::String> {
                let mut reader = ::penstock_guest::__private::MemberReader::new(members);
                #(let #idents = reader.take::<#kinds>(#rules);)*
                reader.finish(&[#(#names),*])?;
                ::core::result::Result::Ok(Self {
                    #(#idents: #idents.expect("finish fails when a member is missing"),)*
                })
            }
        }

        #default
    })
}

fn of_enum(input: &DeriveInput, data: &DataEnum) -> Result<TokenStream> {
    if let Some(odd) = data.variants.iter().find(|variant| !matches!(variant.fields, Fields::Unit)) {
        return Err(Error::new(odd.span(), "an enum of params can only have variants without fields"));
    }
    if data.variants.is_empty() {
        return Err(Error::new(input.span(), "an enum of params needs at least one variant"));
    }
    let owner = &input.ident;
    let variants: Vec<&Ident> = data.variants.iter().map(|variant| &variant.ident).collect();
    let words: Vec<String> = variants.iter().map(|variant| dashed(&variant.to_string())).collect();
    let members = format!(r#""type":"string","enum":{}"#, json::strings(words.iter().map(String::as_str)));
    let listed = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    Ok(quote! {
        impl ::penstock_guest::Param for #owner {
            const MEMBERS: ::penstock_guest::__private::Json = ::penstock_guest::__private::Json::Text(#members);
        }

        impl<'de> ::penstock_guest::__private::serde::Deserialize<'de> for #owner {
            fn deserialize<D: ::penstock_guest::__private::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::core::result::Result<Self, D::Error> {
                let word =
                    <::std::string::String as ::penstock_guest::__private::serde::Deserialize>::deserialize(deserializer)?;
                match word.as_str() {
                    #(#words => ::core::result::Result::Ok(Self::#variants),)*
                    other => ::core::result::Result::Err(::penstock_guest::__private::serde::de::Error::custom(
                        ::core::format_args!("`{other}` is not one of {}", #listed),
                    )),
                }
            }
        }
    })
}

impl<'a> Member<'a> {
    fn read(field: &'a Field) -> Result<Self> {
        let ident = field.ident.as_ref().ok_or_else(|| Error::new(field.span(), "expected a named field"))?;
        let mut member = Self {
            ident,
            name: ident.to_string().trim_start_matches("r#").to_owned(),
            kind: &field.ty,
            doc: json::doc(&field.attrs),
            default: None,
            example: None,
            min: None,
            max: None,
        };
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("param")) {
            attribute.parse_nested_meta(|meta| {
                const EXPECTED: &str =
                    "expected `default = ...`, `example = ...`, `min = ...` or `max = ...`";
                let word = meta.path.get_ident().map(Ident::to_string).unwrap_or_default();
                let slot = match &*word {
                    "default" => &mut member.default,
                    "example" => &mut member.example,
                    "min" => &mut member.min,
                    "max" => &mut member.max,
                    _ => return Err(meta.error(EXPECTED)),
                };
                let expression = meta.value()?.parse::<Expr>()?;
                let text = json::literal(&expression)?;
                if matches!(&*word, "min" | "max") && text.parse::<f64>().is_err() {
                    return Err(Error::new(expression.span(), "expected a number"));
                }
                *slot = Some(text);
                Ok(())
            })?;
        }
        member.check_range()?;
        if member.default.is_none() && option_of(member.kind).is_some() {
            member.default = Some("null".to_owned());
        }
        Ok(member)
    }

    /// Checks that a range is set for numbers only, and that it contains the default.
    fn check_range(&self) -> Result<()> {
        let [min, max] = [&self.min, &self.max].map(|bound| bound.as_ref()?.parse::<f64>().ok());
        if min.is_none() && max.is_none() {
            return Ok(());
        }
        let Type::Path(kind) = option_of(self.kind).unwrap_or(self.kind) else { return Ok(()) };
        if let Some(last) = kind.path.segments.last()
            && ["bool", "String", "Vec"].iter().any(|other| last.ident == other)
        {
            let message = format!("`min` and `max` are for numbers, but a `{}` is not a number", last.ident);
            return Err(Error::new(self.kind.span(), message));
        }
        let Some(default) = &self.default else { return Ok(()) };
        let number: f64 = default.parse().map_err(|_| {
            let message =
                format!("`min` and `max` are for numbers, but the default {default} is not a number");
            Error::new(self.ident.span(), message)
        })?;
        if min.is_some_and(|min| number < min) || max.is_some_and(|max| number > max) {
            let message = format!("the default {default} is not between `min` and `max`");
            return Err(Error::new(self.ident.span(), message));
        }
        Ok(())
    }

    fn rule(&self) -> TokenStream {
        let name = &self.name;
        let default = option(self.default.as_ref().map(|text| quote!(#text)));
        // The JSON text of a number also parses as a Rust `f64`.
        let bound = |text: &Option<String>| {
            option(text.as_ref().and_then(|text| text.parse::<f64>().ok()).map(|number| quote!(#number)))
        };
        let (min, max) = (bound(&self.min), bound(&self.max));
        quote!(::penstock_guest::__private::Rule { name: #name, default: #default, min: #min, max: #max })
    }

    /// Entry of the member in the `properties` of the JSON Schema, as pieces of JSON.
    fn pieces(&self) -> TokenStream {
        let kind = self.kind;
        let head = format!("{}:{{", json::string(&self.name));
        let range = |text: &Option<String>, word: &str, constant: TokenStream| match text {
            Some(number) => {
                let piece = format!(r#","{word}":{number}"#);
                quote!(::penstock_guest::__private::Json::Text(#piece))
            }
            None => quote!(<#kind as ::penstock_guest::Param>::#constant),
        };
        let min = range(&self.min, "minimum", quote!(MINIMUM));
        let max = range(&self.max, "maximum", quote!(MAXIMUM));
        let mut tail = String::new();
        if let Some(default) = &self.default {
            tail.push_str(&format!(r#","default":{default}"#));
        }
        if let Some(example) = &self.example {
            tail.push_str(&format!(r#","examples":[{example}]"#));
        }
        if !self.doc.is_empty() {
            tail.push_str(&format!(r#","description":{}"#, json::string(&self.doc)));
        }
        tail.push('}');
        quote! {
            ::penstock_guest::__private::Json::Text(#head),
            <#kind as ::penstock_guest::Param>::MEMBERS,
            #min,
            #max,
            ::penstock_guest::__private::Json::Text(#tail)
        }
    }
}

fn schema(doc: &str, members: &[Member<'_>]) -> TokenStream {
    let mut head = String::from(r#"{"type":"object","#);
    if !doc.is_empty() {
        head.push_str(&format!(r#""description":{},"#, json::string(doc)));
    }
    head.push_str(r#""properties":{"#);
    let required =
        members.iter().filter(|member| member.default.is_none()).map(|member| member.name.as_str());
    let tail = format!(r#"}},"required":{},"additionalProperties":false}}"#, json::strings(required));
    let mut pieces = Vec::new();
    for (at, member) in members.iter().enumerate() {
        if at > 0 {
            pieces.push(quote!(::penstock_guest::__private::Json::Text(",")));
        }
        pieces.push(member.pieces());
    }
    quote! {
        ::penstock_guest::__private::Json::Parts(&[
            ::penstock_guest::__private::Json::Text(#head),
            #(#pieces,)*
            ::penstock_guest::__private::Json::Text(#tail),
        ])
    }
}

fn option(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

/// Type argument of an `Option`; `None` for other types.
fn option_of(kind: &Type) -> Option<&Type> {
    let Type::Path(path) = kind else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Option")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(kind) => Some(kind),
        _ => None,
    })
}

/// Converts `CenterCrop` to `center-crop`.
fn dashed(name: &str) -> String {
    let mut out = String::new();
    for (at, character) in name.chars().enumerate() {
        if character.is_uppercase() && at > 0 {
            out.push('-');
        }
        out.extend(character.to_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::expand;

    #[test]
    fn a_range_is_for_numbers_and_contains_the_default() {
        let fields = [
            (
                quote!(#[param(min = 1)] a: Vec<u32>),
                "`min` and `max` are for numbers, but a `Vec` is not a number",
            ),
            (
                quote!(#[param(max = 1)] a: Option<bool>),
                "`min` and `max` are for numbers, but a `bool` is not a number",
            ),
            (
                quote!(#[param(max = 1)] a: std::string::String),
                "`min` and `max` are for numbers, but a `String` is not a number",
            ),
            (
                quote!(#[param(default = "fit", min = 1)] a: Crop),
                "`min` and `max` are for numbers, but the default \"fit\" is not a number",
            ),
            (quote!(#[param(default = 0, min = 1)] a: u32), "the default 0 is not between `min` and `max`"),
            (
                quote!(#[param(default = 1.5, min = 0, max = 1)] a: Option<f64>),
                "the default 1.5 is not between `min` and `max`",
            ),
        ];
        for (field, message) in fields {
            assert_eq!(expand(quote!(struct P { #field })).unwrap_err().to_string(), message);
        }
        let fits = quote!(
            struct P {
                #[param(default = -1, min = -1, max = 0)]
                a: i8,
                #[param(min = 1)]
                b: Option<u8>,
            }
        );
        assert!(expand(fits).is_ok());
    }

    #[test]
    fn an_example_is_a_part_of_the_schema() {
        let of = quote!(
            struct P {
                #[param(example = [0.5, 1])]
                mean: Vec<f32>,
            }
        );
        let expanded = expand(of).unwrap().to_string();
        assert!(expanded.contains(r#",\"examples\":[[0.5,1]]"#), "{expanded}");
    }

    #[test]
    fn variants_are_written_with_dashes() {
        assert_eq!(super::dashed("CenterCrop"), "center-crop");
        assert_eq!(super::dashed("Bicubic"), "bicubic");
    }
}
