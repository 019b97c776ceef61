//! Values of fields, by the name of the field, as WebDataset decodes them.

use std::io::Read;

use bytes::Bytes;
use penstock_engine::item::Value;

/// Name of a field without the end that names its compression.
pub(crate) fn plain_name(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((inner, "gz" | "zst")) => inner,
        _ => name,
    }
}

/// Value of a field: `NAME.gz` and `NAME.zst` are decompressed, to at most `most` bytes; `cls`, `cls2`, `id`, `index` and `inx` are whole
/// numbers, `txt`, `text`, `transcript`, `json` and `jsn` are texts, and all others are blobs. The error is the end of a sentence.
pub(crate) fn of(name: &str, content: Bytes, most: u64) -> Result<Value, String> {
    let content = match name.rsplit_once('.') {
        Some((_, "gz")) => inflated(flate2::read::MultiGzDecoder::new(&*content), most)?,
        Some((_, "zst")) => {
            let decoder = zstd::Decoder::new(&*content).map_err(|error| format!("is not zstd: {error}"))?;
            inflated(decoder, most)?
        }
        _ => content,
    };
    let name = plain_name(name);
    Ok(match name.rsplit_once('.').map_or(name, |(_, kind)| kind) {
        "cls" | "cls2" | "id" | "index" | "inx" => {
            let text = text(&content)?;
            let number = text.trim().parse();
            Value::Int(number.map_err(|_| format!("is not a whole number: `{}`", shortened(&text)))?)
        }
        "txt" | "text" | "transcript" | "json" | "jsn" => Value::Text(text(&content)?),
        _ => Value::Blob(content),
    })
}

fn inflated(decoder: impl Read, most: u64) -> Result<Bytes, String> {
    let mut bytes = Vec::new();
    let read = decoder.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be decompressed: {error}"))?;
    match bytes.len() as u64 <= most {
        true => Ok(bytes.into()),
        false => Err(format!("has more than {most} bytes when it is decompressed; raise `buffer_mib`")),
    }
}

fn text(content: &[u8]) -> Result<String, String> {
    str::from_utf8(content).map(str::to_owned).map_err(|error| format!("is not a text in UTF-8: {error}"))
}

fn shortened(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}
