//! The attribute `#[stage]` and the derive `Params`, re-exported by `penstock-guest`.

use proc_macro::TokenStream;

mod json;
mod params;
mod stage;

/// Makes a function or an `impl` block the stage of this module.
///
/// A function `fn(Item) -> R` or `fn(Item, &P) -> R` is called with one sample at a time. `R` implements `IntoOutcome`:
/// `Result<Item>` keeps the sample, `Result<Option<Item>>` may drop it, `Result<Vec<Item>>` replaces it by several; an error
/// counts as a fault of the data. `P` derives `Params`. The function itself remains callable.
///
/// An `impl SampleStage for T` is also called with one sample at a time, on a `T` that is created once. An
/// `impl BatchStage for T` is called with whole batches; an `impl StatefulStage for T` may hold samples back.
///
/// The arguments of the attribute become the module's manifest. All of them are optional:
/// - `wants("a", "b?")`: fields that are copied into the module; without the list, all fields are. Other fields bypass the
///   module, which saves the cost of copying them. `wants()` is an empty list. A pipeline whose samples lack a field is refused
///   before it runs; a field with a `?` may be missing.
/// - `makes("c")`: fields that the stage adds or replaces.
/// - `removes("a")`: wanted fields that the stage removes; `removes()` is an empty list. Without the list, later stages
///   cannot rely on any of the wanted fields.
/// - `reads(".jpg", ".png")`: endings of the files that the stage reads. The suffix `{"of": MODULE}` of a source stands for them.
/// - `fan_out`: one sample may become several; without it, the runner refuses several results for one sample. Stateful stages
///   do not need it.
/// - `counters("seen")`: counters that the stage may add to, at most 16.
///
/// In lists of fields, `"$input"` refers to the field, or the list of fields, that the parameter `input` names.
///
/// The name and the version are those of the package; the description is the doc comment, or else the description of the
/// package.
#[proc_macro_attribute]
pub fn stage(arguments: TokenStream, item: TokenStream) -> TokenStream {
    stage::expand(arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct the parameters of a stage, or a plain enum the type of one parameter.
///
/// Every field of the struct is a member of `params`: of type `bool`, a whole or real number, `String`, an enum that also
/// derives `Params`, or `Option` or `Vec` of these. Doc comments become descriptions in the JSON Schema. A member that is
/// unknown, missing, of another type or out of range is an error that names it.
///
/// Arguments of `#[param(...)]` on a field:
/// - `default = 224`: value of a missing member; a literal, or a list `[0.5, 0.5]` of literals, and for an enum the
///   name of a variant as a string. Without a default, an `Option` is `None`, and any other member is required.
/// - `example = 224`: value with which the editor of the pages begins; written like a default.
/// - `min = 1`, `max = 8192`: inclusive bounds; for numeric fields.
///
/// If every field has a default, the struct implements `Default` with these values.
///
/// Variants of an enum are written in lower case with dashes: `CenterCrop` is `"center-crop"`.
#[proc_macro_derive(Params, attributes(param))]
pub fn params(item: TokenStream) -> TokenStream {
    params::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
