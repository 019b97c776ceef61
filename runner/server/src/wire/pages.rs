//! Pages, orders and lists of words in queries.

use std::str::FromStr;

use penstock_types::tags::Tags;
use schemars::JsonSchema;
use serde::de::{Error, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use strum::VariantNames;

/// Default number of entries of a page.
const LIMIT: u32 = 50;
/// Maximum number of entries of a page.
pub const MAX_LIMIT: u32 = 200;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PageOf{T}")]
pub struct Page<T> {
    /// Entries of this page.
    pub items: Vec<T>,
    /// Cursor of the next page; `null` at the end of the list.
    pub next: Option<String>,
}

/// Order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String", bound = "C: Default + FromStr + VariantNames")]
pub struct SortBy<C> {
    pub by: C,
    /// True for descending order.
    pub is_descending: bool,
}

/// Error of a text that names no column of a list.
#[derive(Debug, thiserror::Error)]
#[error("`sort` must be one of `{}`, with a `-` in front for descending order", .0.join("`, `"))]
pub struct UnknownColumn(&'static [&'static str]);

impl<C: Default> Default for SortBy<C> {
    /// Order by the time at which entries were added, newest first: the default column is that time.
    fn default() -> Self {
        Self { by: C::default(), is_descending: true }
    }
}

impl<C: FromStr> SortBy<C> {
    /// Parses the name of a column, with a `-` in front for descending order.
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.strip_prefix('-');
        Some(Self { by: name.unwrap_or(text).parse().ok()?, is_descending: name.is_some() })
    }
}

/// Parses the order of a list; an empty text selects the default order.
impl<C: Default + FromStr + VariantNames> TryFrom<String> for SortBy<C> {
    type Error = UnknownColumn;

    fn try_from(text: String) -> Result<Self, UnknownColumn> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        Self::parse(&text).ok_or(UnknownColumn(C::VARIANTS))
    }
}

/// Reads a list of words separated by commas.
pub(super) fn words<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let list = String::deserialize(from)?;
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| T::deserialize(word.to_owned().into_deserializer())).collect()
}

/// Parses tags separated by commas.
pub fn tags<'de, D: Deserializer<'de>>(from: D) -> Result<Tags, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// Number of entries of a page: the requested number, or the default.
pub(crate) fn limit(wanted: Option<u32>) -> u32 {
    wanted.unwrap_or(LIMIT).clamp(1, MAX_LIMIT)
}

/// Reads a number from 1 to `MOST`.
pub(super) fn at_most<'de, const MOST: u32, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let found = u32::deserialize(from)?;
    if (1..=MOST).contains(&found) {
        return Ok(Some(found));
    }
    Err(D::Error::custom(format!("found `{found}`, expected 1 to {MOST}")))
}
