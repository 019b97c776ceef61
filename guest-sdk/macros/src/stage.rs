//! Expansion of `#[stage]`: the manifest, and the type through which the host calls a module.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::{
    Attribute, Error, FnArg, Ident, ImplItem, Item, ItemFn, ItemImpl, LitStr, Meta, MetaList, Result, Token,
    Type, TypeReference,
};

use crate::json;

/// Maximum number of counters of a stage; must equal `MAX_COUNTERS` of the runner.
const MAX_COUNTERS: usize = 16;

/// Arguments of `#[stage(...)]`.
#[derive(Default)]
struct Arguments {
    wants: Option<Vec<String>>,
    makes: Vec<String>,
    removes: Option<Vec<String>>,
    reads: Option<Vec<String>>,
    counters: Vec<String>,
    fan_out: bool,
}

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let arguments = Arguments::parse(arguments)?;
    match syn::parse2(item)? {
        Item::Fn(function) => of_function(&arguments, &function),
        Item::Impl(block) => of_impl(&arguments, &block),
        other => Err(Error::new(
            other.span(),
            "a stage is a function, or an `impl` of `SampleStage`, `BatchStage` or `StatefulStage`",
        )),
    }
}

fn of_function(arguments: &Arguments, function: &ItemFn) -> Result<TokenStream> {
    let signature = &function.sig;
    if let Some(odd) = [signature.asyncness.span(), signature.generics.params.span()]
        .into_iter()
        .zip([signature.asyncness.is_some(), !signature.generics.params.is_empty()])
        .find_map(|(span, odd)| odd.then_some(span))
    {
        return Err(Error::new(odd, "the function of a stage cannot be async or generic"));
    }
    let inputs: Vec<&FnArg> = signature.inputs.iter().collect();
    let (params, call) = match inputs.as_slice() {
        [FnArg::Typed(_)] => (quote!(()), quote!(item)),
        [FnArg::Typed(_), FnArg::Typed(params)] => match &*params.ty {
            Type::Reference(TypeReference { mutability: None, elem, .. }) => {
                (quote!(#elem), quote!(item, &self.params))
            }
            other => return Err(Error::new(other.span(), "expected a reference to the params: `&Params`")),
        },
        _ => {
            return Err(Error::new(
                signature.inputs.span(),
                "the function of a stage takes an `Item`, and optionally a reference to its params",
            ));
        }
    };
    let (name, visibility) = (&signature.ident, &function.vis);
    let manifest = arguments.manifest("sample", &function.attrs, &params);
    let init = quote!(<#params as ::penstock_guest::Params>::from_json(params).map(|params| Self { params }));
    let process = one_by_one(&quote!(#name(#call)));
    let exported = exported(&quote!(#name), &manifest, &init, &process, &TokenStream::new(), false);
    Ok(quote! {
        #function

        // Functions and types have separate namespaces, so the type can have the function's name.
        #[doc(hidden)]
        #[allow(non_camel_case_types, missing_debug_implementations, reason = "generated")]
        #visibility struct #name {
            params: #params,
        }

        #exported
    })
}

/// Code that exports the stage `owner` to the runner.
fn exported(
    owner: &TokenStream,
    manifest: &TokenStream,
    init: &TokenStream,
    process: &TokenStream,
    of_stateful: &TokenStream,
    saves: bool,
) -> TokenStream {
    let state = saves.then(|| quote!(, state));
    quote! {
        impl ::penstock_guest::__private::Stage for #owner {
            const MANIFEST: ::penstock_guest::__private::Json = #manifest;

            fn init(params: &str) -> ::core::result::Result<Self, ::std::string::String> {
                #init
            }

            fn process(
                &mut self,
                items: ::std::vec::Vec<::penstock_guest::Item>,
            ) -> ::std::vec::Vec<::penstock_guest::Outcome> {
                #process
            }

            #of_stateful
        }

        ::penstock_guest::__private::export!(#owner #state);
    }
}

/// Code that calls a stage once for each item, in order.
fn one_by_one(call: &TokenStream) -> TokenStream {
    quote! { items.into_iter().map(|item| ::penstock_guest::IntoOutcome::into_outcome(#call)).collect() }
}

fn of_impl(arguments: &Arguments, block: &ItemImpl) -> Result<TokenStream> {
    let kind =
        block.trait_.as_ref().and_then(|(path, _)| path.segments.last()).map(|last| last.ident.to_string());
    let owner = &block.self_ty;
    let has = |name: &str| {
        block.items.iter().any(|item| matches!(item, ImplItem::Fn(function) if function.sig.ident == name))
    };
    let saves = has("save");
    if saves != has("load") {
        return Err(Error::new(block.span(), "`save` and `load` belong together: implement both, or none"));
    }
    let stateful = quote! {
        fn finish(&mut self) -> ::std::vec::Vec<::penstock_guest::Item> {
            <Self as ::penstock_guest::StatefulStage>::finish(self)
        }

        fn save(&self) -> ::std::vec::Vec<u8> {
            <Self as ::penstock_guest::StatefulStage>::save(self)
        }

        fn load(&mut self, saved: &[u8]) -> ::core::result::Result<(), ::std::string::String> {
            <Self as ::penstock_guest::StatefulStage>::load(self, saved)
                .map_err(|error| ::std::string::ToString::to_string(&error))
        }
    };
    let (mode, contract, of_stateful) = match kind.as_deref() {
        Some("SampleStage") => ("sample", quote!(::penstock_guest::SampleStage), TokenStream::new()),
        Some("BatchStage") => ("batch", quote!(::penstock_guest::BatchStage), TokenStream::new()),
        Some("StatefulStage") => ("stateful", quote!(::penstock_guest::StatefulStage), stateful),
        _ => {
            return Err(Error::new(
                block.span(),
                "expected `impl SampleStage for ...`, `impl BatchStage for ...` or `impl StatefulStage for ...`",
            ));
        }
    };
    let params = quote!(<#owner as #contract>::Params);
    let manifest = arguments.manifest(mode, &block.attrs, &params);
    let init = quote! {
        let params = <#params as ::penstock_guest::Params>::from_json(params)?;
        <Self as #contract>::new(&params).map_err(|error| ::std::string::ToString::to_string(&error))
    };
    let process = match mode {
        "batch" => quote!(<Self as #contract>::process(self, items)),
        _ => one_by_one(&quote!(<Self as #contract>::process(self, item))),
    };
    let exported = exported(&quote!(#owner), &manifest, &init, &process, &of_stateful, saves);
    Ok(quote! {
        #block

        #exported
    })
}

impl Arguments {
    fn parse(tokens: TokenStream) -> Result<Self> {
        let mut arguments = Self::default();
        for meta in Punctuated::<Meta, Token![,]>::parse_terminated.parse2(tokens)? {
            if let Meta::Path(path) = &meta
                && path.is_ident("fan_out")
            {
                arguments.fan_out = true;
                continue;
            }
            let Meta::List(list) = &meta else { return Err(Error::new(meta.span(), EXPECTED)) };
            let names = names(list)?;
            match list.path.get_ident().map(Ident::to_string).as_deref() {
                Some("wants") => arguments.wants = Some(names),
                Some("makes") => arguments.makes = names,
                Some("removes") => arguments.removes = Some(names),
                Some("reads") if names.iter().any(String::is_empty) => {
                    return Err(Error::new(list.span(), "`` is no ending of a file such as `.jpg`"));
                }
                Some("reads") => arguments.reads = Some(names),
                Some("counters") if names.len() > MAX_COUNTERS => {
                    let message = format!("a stage can have at most {MAX_COUNTERS} counters");
                    return Err(Error::new(list.span(), message));
                }
                Some("counters") => arguments.counters = names,
                _ => return Err(Error::new(meta.span(), EXPECTED)),
            }
        }
        Ok(arguments)
    }

    /// The manifest as pieces of JSON: the schema of the params depends on types and is evaluated by the compiler.
    fn manifest(&self, mode: &str, attributes: &[Attribute], params: &TokenStream) -> TokenStream {
        let package = |name: &str| std::env::var(name).unwrap_or_default();
        let doc = match json::doc(attributes) {
            empty if empty.is_empty() => package("CARGO_PKG_DESCRIPTION"),
            doc => doc,
        };
        let list = |names: &[String]| json::strings(names.iter().map(String::as_str));
        let head = format!(
            r#"{{"name":{},"version":{},"doc":{},"mode":"{mode}","wants":{},"makes":{},{}{}{}"counters":{},"params":"#,
            json::string(&package("CARGO_PKG_NAME")),
            json::string(&package("CARGO_PKG_VERSION")),
            json::string(&doc),
            self.wants.as_deref().map_or_else(|| "null".to_owned(), list),
            list(&self.makes),
            self.removes
                .as_deref()
                .map_or_else(String::new, |names| format!(r#""removes":{},"#, list(names))),
            match mode {
                "stateful" => String::new(),
                _ => format!(r#""fan_out":{},"#, self.fan_out),
            },
            self.reads
                .as_deref()
                .map_or_else(String::new, |endings| format!(r#""reads":{},"#, list(endings))),
            list(&self.counters),
        );
        quote! {
            ::penstock_guest::__private::Json::Parts(&[
                ::penstock_guest::__private::Json::Text(#head),
                <#params as ::penstock_guest::Params>::SCHEMA,
                ::penstock_guest::__private::Json::Text("}"),
            ])
        }
    }
}

const EXPECTED: &str = r#"expected `wants("field", ...)`, `makes("field", ...)`, `removes("field", ...)`, `reads(".ending", ...)`, `counters("name", ...)` or `fan_out`"#;

fn names(list: &MetaList) -> Result<Vec<String>> {
    let names = list.parse_args_with(Punctuated::<LitStr, Token![,]>::parse_terminated)?;
    Ok(names.iter().map(LitStr::value).collect())
}
