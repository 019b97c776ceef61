use anyhow::Result;

use crate::COMPLETED;
use crate::text::say;

/// Prints the JSON Schema of the pipeline document.
pub(crate) fn print() -> Result<u8> {
    say(&serde_json::to_string_pretty(&penstock_types::spec::schema())?)?;
    Ok(COMPLETED)
}
