//! Splits texts into tokens by the file `tokenizer.json` of a model, as the library `tokenizers` of Hugging Face does.

mod filter;
mod part;
#[cfg(target_family = "wasm")]
mod random;

use filter::Filter;
use penstock_guest::DEFAULT_MEMORY_BYTES;
use penstock_guest::prelude::*;
use tokenizers::{
    Encoding, ModelWrapper, PaddingDirection, PaddingParams, PaddingStrategy, Tokenizer, TruncationDirection,
    TruncationParams,
};

/// Names of padding tokens that are tried if neither the params nor the tokenizer name one.
const PAD_TOKENS: [&str; 3] = ["[PAD]", "<pad>", "<|pad|>"];

/// Params that a pipeline may set.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Field with the text; it is removed.
    #[param(default = "text")]
    pub field: String,
    /// Adds the special tokens of the model, such as `[CLS]` and `[SEP]`.
    #[param(default = true)]
    pub add_special_tokens: bool,
    /// Maximum number of tokens, special ones included; by default, texts are not truncated.
    #[param(min = 1, max = 16_777_216)]
    pub max_length: Option<u32>,
    /// End at which long texts are truncated.
    #[param(default = "right")]
    pub truncation_side: Side,
    /// Pads shorter texts to `max_length`, so that texts can be collated.
    #[param(default = false)]
    pub pad: bool,
    /// Token for padding; by default that of the tokenizer, or one of the usual names.
    pub pad_token: Option<String>,
    /// End at which short texts are padded.
    #[param(default = "right")]
    pub padding_side: Side,
    /// Minimum number of tokens, special ones included: shorter texts are dropped.
    #[param(default = 0)]
    pub min_tokens: u32,
    /// Minimum number of characters: shorter texts are dropped.
    #[param(default = 0)]
    pub min_chars: u32,
    /// Maximum number of characters: longer texts are dropped.
    pub max_chars: Option<u32>,
    /// Minimum share of letters among the characters that are not white space; other texts are dropped.
    #[param(default = 0.0, min = 0, max = 1)]
    pub min_letters: f64,
    /// Maximum share of lines that repeat an earlier line, among the lines that are not blank; other texts are dropped.
    #[param(default = 1.0, min = 0, max = 1)]
    pub max_repeated_lines: f64,
    /// Regular expression, in the syntax of the crate `regex`: texts that do not contain a match are dropped.
    pub contains: Option<String>,
    /// Regular expression: texts that contain a match are dropped.
    pub lacks: Option<String>,
}

/// End of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Side {
    /// Start of the text.
    Left,
    /// End of the text.
    Right,
}

impl From<Side> for TruncationDirection {
    fn from(side: Side) -> Self {
        match side {
            Side::Left => Self::Left,
            Side::Right => Self::Right,
        }
    }
}

/// Splits the text into the tokens of a model. The asset `tokenizer` is the model's `tokenizer.json`.
///
/// The result is `input_ids`, and `attention_mask`, 1 for tokens and 0 for padding; both int64, [length]. The counter `tokens`
/// counts tokens without padding, `truncated` and `dropped` count texts. `cut` counts texts longer than 500,000 bytes, of which
/// only a part was split, since the rest has no part in the tokens that stay.
#[derive(Debug)]
pub struct Text {
    settings: Settings,
    filter: Filter,
    tokenizer: Tokenizer,
    /// Length to which texts without special tokens are truncated here, since the tokenizer leaves them one token more.
    truncated_to: Option<usize>,
    /// Maximum length of a text that is split whole, in bytes.
    max_bytes: usize,
}

#[stage(
    wants("$field"),
    makes("input_ids", "attention_mask"),
    removes("$field"),
    counters("tokens", "truncated", "dropped", "cut")
)]
impl SampleStage for Text {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        let file = asset("tokenizer").context("the stage requires `assets: {\"tokenizer\": ...}`")?;
        Self::with_tokenizer(settings, &file)
    }

    fn process(&mut self, mut item: Item) -> Result<Outcome> {
        let text = item.take_text(&self.settings.field)?;
        if !self.filter.admits(&text) {
            count("dropped", 1.0);
            return Ok(Outcome::Drop);
        }
        let encoding = self.encode(&text)?;
        let mask = encoding.get_attention_mask();
        let tokens = mask.iter().filter(|&&is_token| is_token == 1).count();
        if tokens < self.settings.min_tokens as usize {
            count("dropped", 1.0);
            return Ok(Outcome::Drop);
        }
        count("tokens", tokens as f64);
        if !encoding.get_overflowing().is_empty() {
            count("truncated", 1.0);
        }
        let tensor = |numbers: &[u32]| {
            Tensor::new([numbers.len() as u32], numbers.iter().copied().map(i64::from).collect())
        };
        item.set("input_ids", tensor(encoding.get_ids())?);
        item.set("attention_mask", tensor(mask)?);
        Ok(Outcome::Keep(item))
    }
}

impl Text {
    fn encode(&self, text: &str) -> Result<Encoding> {
        let mut encoding = self.encode_to_limit(text)?;
        if let Some(length) = self.truncated_to {
            encoding.truncate(length, 0, self.settings.truncation_side.into());
        }
        Ok(encoding)
    }

    fn encode_to_limit(&self, text: &str) -> Result<Encoding> {
        let Settings { add_special_tokens: special, truncation_side, .. } = self.settings;
        let refused = |error| Error::new(format_args!("the text cannot be split: {error}"));
        if text.len() > part::SAFE_BYTES {
            if let Some(truncation) = self.tokenizer.get_truncation() {
                let kept = match truncation_side {
                    Side::Left => Side::Right,
                    Side::Right => Side::Left,
                };
                let found = part::encode(&self.tokenizer, text, special, truncation.max_length, kept);
                if let Some(encoding) = found.map_err(refused)? {
                    count("cut", 1.0);
                    return Ok(encoding);
                }
            }
            ensure!(
                text.len() <= self.max_bytes,
                "the text has {} bytes, more than the limit of {}{}; split it first, or raise `memory_mib`",
                text.len(),
                self.max_bytes,
                if self.settings.max_length.is_some() {
                    ", and the tokens to keep cannot be determined from a part of it"
                } else {
                    ""
                }
            );
            let longest = part::longest_word(&self.tokenizer, text).map_err(refused)?;
            ensure!(
                longest <= part::SAFE_BYTES,
                "the tokenizer sees a word of {longest} bytes in the text, more than the limit of {}; split the text first",
                part::SAFE_BYTES
            );
        }
        self.tokenizer.encode_fast(text, special).map_err(refused)
    }

    fn with_tokenizer(settings: &Settings, file: &[u8]) -> Result<Self> {
        let read = Tokenizer::from_bytes(file);
        let mut tokenizer = read.map_err(|error| {
            Error::new(format_args!(
                "the asset `tokenizer` is not a tokenizer.json that can be read: {error}"
            ))
        })?;
        if let ModelWrapper::BPE(model) = tokenizer.get_model() {
            let dropout = model.dropout.unwrap_or_default();
            ensure!(
                dropout == 0.0,
                "the tokenizer drops merges at random (`dropout` {dropout}), which is not repeatable; set it to null"
            );
        }
        let of_model = tokenizer
            .get_post_processor()
            .map_or(0, |post| tokenizers::PostProcessor::added_tokens(post, false));
        let added = if settings.add_special_tokens { of_model } else { 0 };
        let length = settings.max_length.map(|length| length as usize);
        if let Some(length) = length {
            ensure!(
                length > added,
                "`max_length` is {length}, but the model adds {added} special tokens; use a larger length"
            );
        }
        let truncated_to = length.filter(|_| added == 0);
        let truncation = length.map(|length| TruncationParams {
            // Models stop at the maximum: one token more tells a text that goes on, where special tokens do not leave room for it.
            max_length: truncated_to.map_or(length, |length| (length + 1).max(of_model)),
            direction: settings.truncation_side.into(),
            ..TruncationParams::default()
        });
        // The memory for the tokens of a text grows with its length.
        let max_bytes = part::SAFE_BYTES as u64 * memory_limit() / DEFAULT_MEMORY_BYTES;
        let padding = padding(settings, &tokenizer)?;
        let refused = |error| Error::new(format_args!("`max_length`: {error}"));
        tokenizer.with_truncation(truncation).map_err(refused)?;
        tokenizer.with_padding(padding);
        Ok(Self {
            settings: settings.clone(),
            filter: Filter::new(settings)?,
            tokenizer,
            truncated_to,
            max_bytes: (max_bytes as usize).max(part::SAFE_BYTES),
        })
    }
}

fn padding(settings: &Settings, tokenizer: &Tokenizer) -> Result<Option<PaddingParams>> {
    if !settings.pad {
        return Ok(None);
    }
    let Some(length) = settings.max_length else { bail!("`pad` needs `max_length`, the length to pad to") };
    let own = tokenizer.get_padding().map(|own| own.pad_token.clone());
    let usual = || PAD_TOKENS.into_iter().find(|token| tokenizer.token_to_id(token).is_some());
    let Some(token) = settings.pad_token.clone().or(own).or_else(|| usual().map(str::to_owned)) else {
        bail!("the tokenizer has no padding token; name one of its tokens in `pad_token`")
    };
    let Some(id) = tokenizer.token_to_id(&token) else { bail!("the tokenizer has no token `{token}`") };
    Ok(Some(PaddingParams {
        strategy: PaddingStrategy::Fixed(length as usize),
        direction: match settings.padding_side {
            Side::Left => PaddingDirection::Left,
            Side::Right => PaddingDirection::Right,
        },
        pad_id: id,
        pad_token: token,
        ..PaddingParams::default()
    }))
}

#[cfg(test)]
mod tests;
