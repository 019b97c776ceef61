//! Packs the tokens of documents into rows of equal length.

use penstock_guest::prelude::*;

/// Params that a pipeline may set.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Number of tokens in a row.
    #[param(default = 2048, min = 2, max = 1048576)]
    pub length: u32,
    /// Token to add after each document, such as the end-of-text token, if the tokenizer does not add one.
    pub separator: Option<i64>,
    /// Continues a document that does not fit in the next row; `false` starts a new row with it and pads the old one.
    #[param(default = true)]
    pub split_documents: bool,
    /// Treatment of the incomplete row at the end of an epoch: `pad` fills it with padding, `drop` discards it.
    #[param(default = "pad")]
    pub last: Last,
    /// Id of the token that fills up incomplete rows.
    #[param(default = 0)]
    pub pad_token: i64,
}

/// Treatment of an incomplete row at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Last {
    /// Fills the row with padding.
    Pad,
    Drop,
}

/// Packs the `input_ids` of documents, one after the other, into rows of `length` tokens.
///
/// A row has `input_ids`, `segment_ids` (number of the token's document in the row: 1, 2, ..., and 0 for padding) and
/// `position_ids` (of a token within its document's part of the row, from 0), each int64, [length]. Its key is that of the document
/// that filled it, with a number.
#[derive(Debug)]
pub struct Pack {
    settings: Settings,
    open: Row,
    /// Last document, and the number of rows that it has filled; the key of the next row is made of both.
    last: Option<(Item, usize)>,
}

/// A row that is being filled.
#[derive(Debug, Default)]
struct Row {
    tokens: Vec<i64>,
    segments: Vec<i64>,
    positions: Vec<i64>,
}

#[stage(
    wants("input_ids", "attention_mask?"),
    makes("input_ids", "segment_ids", "position_ids"),
    removes("attention_mask"),
    counters("tokens", "padding", "discarded")
)]
impl StatefulStage for Pack {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        Ok(Self { settings: settings.clone(), open: Row::default(), last: None })
    }

    /// Holds the document until its tokens fill a row. Drops a document without tokens.
    fn process(&mut self, mut item: Item) -> Result<Outcome> {
        let length = self.settings.length as usize;
        let mut tokens = tokens(&item)?;
        if tokens.is_empty() {
            return Ok(Outcome::Drop);
        }
        tokens.extend(self.settings.separator);
        item.remove("input_ids");
        item.remove("attention_mask");
        let mut full = Vec::new();
        if !self.settings.split_documents {
            ensure!(
                tokens.len() <= length,
                "the document has {} tokens, more than `length`, {length}: truncate it, or set `split_documents`",
                tokens.len()
            );
            let is_begun = !self.open.tokens.is_empty();
            if let Some((document, filled)) = self.last.take()
                && is_begun
                && self.open.tokens.len() + tokens.len() > length
            {
                full.push(self.padded(document.child(filled))?);
            }
        }
        count("tokens", tokens.len() as f64);
        let before = full.len();
        let mut rest = &tokens[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(length - self.open.tokens.len()));
            self.open.push_document(now);
            rest = later;
            if self.open.tokens.len() == length {
                let row = item.child(full.len() - before);
                full.push(std::mem::take(&mut self.open).put_into(row)?);
            }
        }
        self.last = Some((item, full.len() - before));
        Ok(if full.is_empty() { Outcome::Held } else { Outcome::Many(full) })
    }

    fn finish(&mut self) -> Vec<Item> {
        let Some((document, filled)) = self.last.take().filter(|_| !self.open.tokens.is_empty()) else {
            return Vec::new();
        };
        if self.settings.last == Last::Drop {
            count("discarded", std::mem::take(&mut self.open).tokens.len() as f64);
            return Vec::new();
        }
        self.padded(document.child(filled)).into_iter().collect()
    }

    /// The open row and the document that its rest belongs to, as numbers of variable length, and the document's key.
    fn save(&self) -> Vec<u8> {
        let Some((document, filled)) = self.last.as_ref().filter(|_| !self.open.tokens.is_empty()) else {
            return Vec::new();
        };
        let parts: Vec<u64> =
            self.open.segments.chunk_by(|one, next| one == next).map(|part| part.len() as u64).collect();
        let mut saved = Vec::new();
        let head = [document.seed(), *filled as u64, parts.len() as u64];
        let tokens = self.open.tokens.iter().map(|token| token.cast_unsigned());
        head.into_iter().chain(parts).chain(tokens).for_each(|number| write_number(&mut saved, number));
        saved.extend_from_slice(document.key().as_bytes());
        saved
    }

    fn load(&mut self, mut saved: &[u8]) -> Result<()> {
        let mut number = || read_number(&mut saved).context("the saved row is incomplete");
        let (seed, filled, parts) = (number()?, number()? as usize, number()?);
        let mut lengths = Vec::new();
        for _ in 0..parts {
            lengths.push(number()? as usize);
            let tokens = lengths.iter().fold(0, |sum: usize, length| sum.saturating_add(*length));
            ensure!(tokens < self.settings.length as usize, "the saved row is longer than `length`");
        }
        let mut open = Row::default();
        for length in lengths {
            let tokens = (0..length).map(|_| Ok(number()?.cast_signed())).collect::<Result<Vec<i64>>>()?;
            open.push_document(&tokens);
        }
        let key = str::from_utf8(saved)?;
        (self.open, self.last) = (open, Some((Item::new(key).with_seed(seed), filled)));
        Ok(())
    }
}

/// Appends a number with 7 bits in each byte, the lowest first; all bytes but the last have the highest bit set.
fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads a number from the begin of the bytes.
fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

impl Pack {
    /// Closes the open row with padding.
    fn padded(&mut self, item: Item) -> Result<Item> {
        let mut row = std::mem::take(&mut self.open);
        let length = self.settings.length as usize;
        count("padding", (length - row.tokens.len()) as f64);
        row.tokens.resize(length, self.settings.pad_token);
        row.segments.resize(length, 0);
        row.positions.resize(length, 0);
        row.put_into(item)
    }
}

impl Row {
    /// Adds a document, or a part of one.
    fn push_document(&mut self, tokens: &[i64]) {
        let number = self.segments.last().map_or(1, |last| last + 1);
        self.tokens.extend_from_slice(tokens);
        self.segments.resize(self.tokens.len(), number);
        self.positions.extend(0..tokens.len() as i64);
    }

    fn put_into(self, item: Item) -> Result<Item> {
        let tensor = |numbers: Vec<i64>| Tensor::new([numbers.len() as u32], numbers);
        Ok(item
            .with("input_ids", tensor(self.tokens)?)
            .with("segment_ids", tensor(self.segments)?)
            .with("position_ids", tensor(self.positions)?))
    }
}

/// Tokens of a document: a tensor of int64 or int32, [length].
fn tokens(item: &Item) -> Result<Vec<i64>> {
    if let Ok(small) = item.tensor::<i32>("input_ids") {
        small.dimensions::<1>()?;
        return Ok(small.as_slice().iter().copied().map(i64::from).collect());
    }
    let tokens = item.tensor::<i64>("input_ids")?;
    tokens.dimensions::<1>()?;
    Ok(tokens.as_slice().to_vec())
}

#[cfg(test)]
mod tests;
