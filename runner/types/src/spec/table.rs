//! Form of tables, as a document states it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::TableCharacter;

/// Encoding of the text of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TextEncoding {
    /// UTF-8, with or without a byte order mark.
    #[default]
    #[serde(rename = "utf-8", alias = "utf8")]
    Utf8,
    /// UTF-16. Without a byte order mark, its line ends tell the order of the bytes.
    #[serde(rename = "utf-16", alias = "utf16")]
    Utf16,
    /// Windows-1252. The five bytes without a character are faults.
    #[serde(rename = "windows-1252", alias = "cp1252")]
    Windows1252,
    /// ISO 8859-1: each byte is the character with its number.
    #[serde(rename = "latin-1", alias = "latin1", alias = "iso-8859-1")]
    Latin1,
}

/// Form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableForm {
    /// Character between two values.
    pub delimiter: u8,
    /// Set if the document names the delimiter.
    pub is_named: bool,
    /// Character around values that contain delimiters or line ends; `None` if there is none.
    pub quote: Option<u8>,
    /// Encoding of the text.
    pub encoding: TextEncoding,
}

impl TableForm {
    /// Form of a table with this delimiter unless the document names another.
    pub(crate) fn new(
        usual: u8,
        delimiter: Option<&TableCharacter>,
        quote: Option<&TableCharacter>,
        encoding: TextEncoding,
    ) -> Self {
        Self {
            delimiter: delimiter.map_or(usual, TableCharacter::byte),
            is_named: delimiter.is_some(),
            quote: quote.map(TableCharacter::byte),
            encoding,
        }
    }
}

impl From<u8> for TableForm {
    /// The usual form with this delimiter.
    fn from(delimiter: u8) -> Self {
        Self { delimiter, is_named: false, quote: Some(b'"'), encoding: TextEncoding::Utf8 }
    }
}

impl TableCharacter {
    /// The character.
    pub fn byte(&self) -> u8 {
        self.as_str().as_bytes()[0]
    }
}

/// The usual quote.
pub(crate) fn double_quote() -> Option<TableCharacter> {
    TableCharacter::new("\"")
}

#[expect(clippy::ref_option, reason = "serde passes a reference")]
pub(crate) fn is_double_quote(quote: &Option<TableCharacter>) -> bool {
    *quote == double_quote()
}
