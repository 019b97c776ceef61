//! Values of fields.

use std::fmt::Display;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::Value;
use penstock_types::data_set::FieldType;

use crate::reason::Reason;

/// Maximum length of a key, in bytes.
pub(crate) const MAX_KEY: usize = 4096;

pub(crate) fn plain_name(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((inner, "gz" | "zst")) => inner,
        _ => name,
    }
}

/// Value of a field by its name, as WebDataset decodes it: `NAME.gz` and `NAME.zst` are decompressed, to at most `most` bytes; `cls`, `cls2`, `id`, `index` and `inx` are whole
/// numbers, `txt`, `text`, `transcript`, `json` and `jsn` are texts, and all others are blobs. The error is the end of a sentence.
pub(crate) fn of(name: &str, content: Bytes, most: u64) -> Result<Value, Reason> {
    let content = match name.rsplit_once('.') {
        Some((_, "gz")) => read_up_to(flate2::read::MultiGzDecoder::new(&*content), most)?,
        Some((_, "zst")) => unzstd(&content, most)?,
        _ => Some(content),
    };
    let content = content
        .ok_or_else(|| format!("has more than {most} bytes when it is decompressed; raise `buffer_mib`"))?;
    Ok(match kind_of(name) {
        FieldType::Int => {
            let text = text(&content)?;
            let number = text.trim().parse();
            Value::Int(number.map_err(|_| format!("is not a whole number: `{}`", shortened(&text)))?)
        }
        FieldType::Text => Value::Text(text(&content)?),
        _ => Value::Blob(content),
    })
}

pub(crate) fn kind_of(name: &str) -> FieldType {
    let name = plain_name(name);
    match name.rsplit_once('.').map_or(name, |(_, kind)| kind) {
        "cls" | "cls2" | "id" | "index" | "inx" => FieldType::Int,
        "txt" | "text" | "transcript" | "json" | "jsn" => FieldType::Text,
        _ => FieldType::Bytes,
    }
}

/// Content of frames of zstd; `None` if it is more than `most` bytes.
pub(crate) fn unzstd(frames: &[u8], most: u64) -> Result<Option<Bytes>, Reason> {
    let decoder = zstd::Decoder::new(frames).map_err(|error| format!("is not zstd: {error}"))?;
    read_up_to(decoder, most)
}

/// All that a decoder returns; `None` if it is more than `most` bytes.
pub(crate) fn read_up_to(decoder: impl Read, most: u64) -> Result<Option<Bytes>, Reason> {
    let mut bytes = Vec::new();
    let read = decoder.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be decompressed: {error}"))?;
    Ok((bytes.len() as u64 <= most).then(|| bytes.into()))
}

/// A part of a sample. A small one is copied, so that it does not keep the whole in memory.
pub(crate) fn part(whole: &Bytes, range: Range<usize>) -> Bytes {
    match range.len() < whole.len() / 2 {
        true => Bytes::copy_from_slice(&whole[range]),
        false => whole.slice(range),
    }
}

/// A value as the key of a sample. The error is the end of a sentence.
pub(crate) fn key(value: &Value) -> Result<Arc<str>, Reason> {
    let key = match value {
        Value::Text(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Blob(bytes) => text(bytes)?,
        Value::Real(_) | Value::Tensor(_) => return Err("is neither a text nor a whole number".into()),
    };
    match key.len() <= MAX_KEY {
        true => Ok(key.into()),
        false => Err(format!("has {} bytes, more than the {MAX_KEY} of a key", key.len()).into()),
    }
}

/// A number of at most eight bytes, the lowest first.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(crate) fn text(content: &[u8]) -> Result<String, Reason> {
    let text = str::from_utf8(content).map_err(|error| format!("is not a text in UTF-8: {error}"))?;
    Ok(text.to_owned())
}

pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// The first of these names in a message; `more` follows if there are others.
pub(crate) fn listed(names: impl Iterator<Item = impl Display>, more: &str) -> String {
    const SHOWN: usize = 20;
    let mut names = names.map(|name| format!("`{name}`"));
    let first: Vec<String> = names.by_ref().take(SHOWN).collect();
    let more = if names.next().is_some() { more } else { "" };
    format!("{}{more}", first.join(", "))
}
