//! The attribute `#[stage]` and the derive `Params`, documented where `penstock-guest` gives them out.

use proc_macro::TokenStream;

mod json;
mod params;
mod stage;

/// Makes a function or an `impl` block the stage of this module.
///
/// On a function `fn(Item) -> R` or `fn(Item, &P) -> R` it is called with one sample at a time. `R` is what an
/// `IntoOutcome` is: `Result<Item>` keeps, `Result<Option<Item>>` may drop, `Result<Vec<Item>>` fans out; an error
/// blames the data. `P` derives `Params`. The function stays an ordinary one.
///
/// On `impl SampleStage for T` it is called so too, on a `T` that is made once. On `impl BatchStage for T` it is called
/// with whole batches, on `impl StatefulStage for T` it may hold samples back.
///
/// What the module says of itself is written between the brackets, all of it optional:
/// - `wants("a", "b?")`: fields that cross into the module; without it all do. The others are carried past it, which
///   is the cheapest way to be fast. `wants()` is none. A pipeline whose samples lack a field is refused before it runs; a
///   field with a `?` may be missing.
/// - `makes("c")`: fields it makes or replaces.
/// - `removes("a")`: fields among those it wants that do not go on; `removes()` is none. Without it, none of them is relied on
///   behind the module.
/// - `fan_out`: one sample may become several; without it the runner refuses several samples made of one. Stateful stages need none.
/// - `counters("seen")`: counters it may add to, at most 16.
///
/// In lists of fields, `"$input"` stands for the field, or the list of fields, that the parameter `input` names.
///
/// The name and the version are the package's; the description is the doc comment, or else the package's description.
#[proc_macro_attribute]
pub fn stage(arguments: TokenStream, item: TokenStream) -> TokenStream {
    stage::expand(arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct the parameters of a stage, or a plain enum the type of one parameter.
///
/// Every field of the struct is a member of `params`: of type `bool`, a whole or real number, `String`, an enum that
/// derives `Params` too, or `Option` or `Vec` of these. Doc comments become descriptions in the JSON Schema. A member
/// that is unknown, missing, of another type or out of range is an error that names it.
///
/// `#[param(...)]` on a field takes
/// - `default = 224`: its value when it is not written; a literal, or a list `[0.5, 0.5]` of literals, and for an enum
///   the string of a variant. An `Option` is `None` without it, any other field must be written.
/// - `min = 1`, `max = 8192`: least and greatest number, themselves included; for fields that are numbers.
///
/// When every field has a default, the struct implements `Default` by it.
///
/// The variants of an enum are written as lower-case words with dashes: `CenterCrop` is `"center-crop"`.
#[proc_macro_derive(Params, attributes(param))]
pub fn params(item: TokenStream) -> TokenStream {
    params::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
