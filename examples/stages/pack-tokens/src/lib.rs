//! Packs the tokens of texts into sequences of equal length.

mod vocabulary;

use penstock_guest::prelude::*;

pub use vocabulary::{Cut, Vocabulary};

/// Params that a pipeline may set.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Number of tokens in a sequence.
    #[param(default = 512, min = 2, max = 1048576)]
    pub length: u32,
    /// Special token after each document.
    #[param(default = "<eos>")]
    pub separator: String,
    /// Treatment of an incomplete sequence at the end of an epoch: `pad` fills it with padding, `drop` discards it.
    #[param(default = "pad")]
    pub last: Last,
    /// Special token for padding; required with `last: pad` only.
    #[param(default = "<pad>")]
    pub pad: String,
}

/// Treatment of an incomplete sequence at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Last {
    /// Fills the sequence with padding.
    Pad,
    Drop,
}

/// Splits every `text` into tokens and packs them, one document after the other, into sequences of `length`.
///
/// The vocabulary is the asset `vocabulary`, one token per line. A sequence has `tokens`, `documents` (number of the token's
/// document in the sequence: 1, 2, ..., and 0 for padding) and `positions` (of a token within its document's part of the
/// sequence, from 0), each int32, [length]. The key of a sequence is that of the document that filled it, with a number.
#[derive(Debug)]
pub struct PackTokens {
    vocabulary: Vocabulary,
    length: usize,
    separator: i32,
    /// Padding token; `None` discards incomplete sequences.
    pad: Option<i32>,
    open: Sequence,
    /// Last document, and the number of sequences that it has filled; the key of the next sequence is made of both.
    last: Option<(Item, usize)>,
}

/// A sequence that is being filled.
#[derive(Debug, Default)]
struct Sequence {
    tokens: Vec<i32>,
    documents: Vec<i32>,
    positions: Vec<i32>,
}

#[stage(
    wants("text"),
    makes("tokens", "documents", "positions"),
    removes("text"),
    counters("tokens", "fallback", "padding", "discarded")
)]
impl StatefulStage for PackTokens {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        let file = asset("vocabulary").context("the stage requires `assets: {\"vocabulary\": ...}`")?;
        let vocabulary = Vocabulary::read(&file)?;
        let pad = match settings.last {
            Last::Pad => Some(vocabulary.special(&settings.pad).context("`pad`")?),
            Last::Drop => None,
        };
        Ok(Self {
            length: settings.length as usize,
            separator: vocabulary.special(&settings.separator).context("`separator`")?,
            vocabulary,
            pad,
            open: Sequence::default(),
            last: None,
        })
    }

    /// Holds the sample until its tokens fill a sequence. Drops an empty text.
    fn process(&mut self, mut item: Item) -> Result<Outcome> {
        let mut cut = self.vocabulary.cut(&item.take_text("text")?);
        if cut.tokens.is_empty() {
            return Ok(Outcome::Drop);
        }
        cut.tokens.push(self.separator);
        count("tokens", cut.tokens.len() as f64);
        count("fallback", cut.fallback as f64);
        let mut full = Vec::new();
        let mut rest = &cut.tokens[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(self.length - self.open.tokens.len()));
            self.open.push_document(now);
            rest = later;
            if self.open.tokens.len() == self.length {
                let sequence = item.child(full.len());
                full.push(std::mem::take(&mut self.open).put_into(sequence)?);
            }
        }
        self.last = Some((item, full.len()));
        Ok(if full.is_empty() { Outcome::Held } else { Outcome::Many(full) })
    }

    fn finish(&mut self) -> Vec<Item> {
        let mut open = std::mem::take(&mut self.open);
        let Some((document, filled)) = self.last.take().filter(|_| !open.tokens.is_empty()) else {
            return Vec::new();
        };
        let Some(pad) = self.pad else {
            count("discarded", open.tokens.len() as f64);
            return Vec::new();
        };
        count("padding", (self.length - open.tokens.len()) as f64);
        open.fill_up(self.length, pad);
        open.put_into(document.child(filled)).into_iter().collect()
    }
}

impl Sequence {
    /// Adds a document, or a part of one.
    fn push_document(&mut self, tokens: &[i32]) {
        let number = self.documents.last().map_or(1, |last| last + 1);
        self.tokens.extend_from_slice(tokens);
        self.documents.resize(self.tokens.len(), number);
        self.positions.extend(0..tokens.len() as i32);
    }

    fn fill_up(&mut self, length: usize, pad: i32) {
        self.tokens.resize(length, pad);
        self.documents.resize(length, 0);
        self.positions.resize(length, 0);
    }

    fn put_into(self, item: Item) -> Result<Item> {
        let tensor = |numbers: Vec<i32>| Tensor::new([numbers.len() as u32], numbers);
        Ok(item
            .with("tokens", tensor(self.tokens)?)
            .with("documents", tensor(self.documents)?)
            .with("positions", tensor(self.positions)?))
    }
}

#[cfg(test)]
mod tests;
