//! Output of lines, and formatting of numbers.

use std::io::{self, Write};

use penstock_types::amount;
pub(crate) use penstock_types::amount::count;
use serde::Serialize;

/// Writes a line on standard output.
pub(crate) fn say(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Writes a value on standard output, as JSON or in words.
pub(crate) fn say_as<T: Serialize + ?Sized>(
    json: bool,
    value: &T,
    in_words: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let text = if json { serde_json::to_string_pretty(value)? } else { in_words(value) };
    Ok(say(&text)?)
}

pub(crate) fn say_json(value: &impl Serialize) -> anyhow::Result<()> {
    say_as(true, value, |_| String::new())
}

/// Joins the non-empty parts with blank lines between them.
pub(crate) fn paragraphs(parts: impl IntoIterator<Item = String>) -> String {
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n\n")
}

/// Writes a line on standard error; ignores errors, as for a closed standard error.
pub(crate) fn warn(text: &str) {
    writeln!(io::stderr().lock(), "{text}").unwrap_or_default();
}

/// Formats a duration as in the summary lines of stages: `102.2 [ms]`.
pub(crate) fn bracketed(seconds: f64) -> String {
    let (value, unit) = amount::scaled(seconds);
    format!("{value} [{unit}]")
}

/// Formats a duration for a table: `102.2 ms`, or a dash if nothing was measured.
pub(crate) fn duration(seconds: Option<f64>) -> String {
    seconds.map_or_else(dash, amount::duration)
}

/// Formats a share in percent, or a dash if nothing was measured.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(dash, amount::percent)
}

/// Formats a rate per second, or a dash if nothing was measured.
pub(crate) fn rate(per_second: Option<f64>) -> String {
    per_second.map_or_else(dash, amount::rate)
}

pub(crate) fn dash() -> String {
    "-".to_owned()
}
