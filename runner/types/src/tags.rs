//! Tags of runs: short texts that group and find runs. Tags are not part of a run's document.

use std::borrow::Cow;
use std::ops::Deref;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::text::printable;

/// Maximum number of tags of a run.
pub const MAX_TAGS: usize = 16;
/// Maximum number of characters of a tag.
pub const MAX_TAG_CHARS: usize = 64;

/// Tags of a run, in the order given and without repetitions: at most 16 tags of at most 64 characters each, without commas or
/// control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Tags(Vec<String>);

/// Reason why tags are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagFault {
    /// More different tags than a run may have, with their number.
    #[error("found {0} tags, a run has at most {MAX_TAGS}")]
    TooMany(usize),
    /// A tag that is empty, too long, or has a character that no tag may have.
    #[error(
        "`{0}` is not a tag: a tag has 1 to {MAX_TAG_CHARS} characters without commas, control characters or spaces at its ends"
    )]
    Malformed(String),
}

impl TryFrom<Vec<String>> for Tags {
    type Error = TagFault;

    fn try_from(given: Vec<String>) -> Result<Self, TagFault> {
        let mut tags: Vec<String> = Vec::new();
        for tag in given {
            // `printable` escapes the characters that no page or terminal should show.
            let is_plain = printable(&tag, usize::MAX) == tag && tag.trim() == tag && !tag.contains(',');
            if tag.is_empty() || tag.chars().count() > MAX_TAG_CHARS || !is_plain {
                return Err(TagFault::Malformed(printable(&tag, 4 * MAX_TAG_CHARS)));
            }
            if !tags.contains(&tag) {
                tags.push(tag);
            }
            if tags.len() > MAX_TAGS {
                return Err(TagFault::TooMany(tags.len()));
            }
        }
        Ok(Self(tags))
    }
}

/// Reads a list of tags separated by commas; empty tags are skipped.
impl FromStr for Tags {
    type Err = TagFault;

    fn from_str(text: &str) -> Result<Self, TagFault> {
        let tags = text.split(',').map(str::trim).filter(|tag| !tag.is_empty());
        tags.map(str::to_owned).collect::<Vec<_>>().try_into()
    }
}

impl From<Tags> for Vec<String> {
    fn from(tags: Tags) -> Self {
        tags.0
    }
}

impl Deref for Tags {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

impl JsonSchema for Tags {
    fn schema_name() -> Cow<'static, str> {
        "Tags".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Tags of a run, each once. A tag has no comma, no control character and no space at its ends.",
            "type": "array",
            "maxItems": MAX_TAGS,
            "items": { "type": "string", "minLength": 1, "maxLength": MAX_TAG_CHARS },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(given: &[&str]) -> Result<Tags, TagFault> {
        given.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>().try_into()
    }

    #[test]
    fn tags_keep_their_order_and_stand_once() {
        assert_eq!(*tags(&["b", "a b", "b", "größe=2"]).unwrap(), ["b", "a b", "größe=2"]);
        assert_eq!("b, a ,,b".parse::<Tags>(), tags(&["b", "a"]));
        assert_eq!("".parse::<Tags>(), Ok(Tags::default()));
    }

    #[test]
    fn malformed_tags_are_refused() {
        for tag in ["", " a", "a ", "a,b", "a\nb", "a\tb", "\u{202e}a", &"x".repeat(65)] {
            assert_eq!(tags(&["fine", tag]), Err(TagFault::Malformed(printable(tag, 256))));
        }
        // The limit counts characters, not bytes.
        assert!(tags(&[&"ß".repeat(64)]).is_ok());
    }

    #[test]
    fn more_than_16_different_tags_are_refused() {
        let many: Vec<String> = (0..17).map(|number| number.to_string()).collect();
        assert_eq!(Tags::try_from(many.clone()), Err(TagFault::TooMany(17)));
        assert_eq!(Tags::try_from([&many[..16], &many[..16]].concat()).map(|tags| tags.len()), Ok(16));
    }
}
