//! Long texts: the part of a text that suffices for the tokens that stay after truncation, and the check of whole ones.

use tokenizers::{Encoding, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer};

use crate::Side;

/// Maximum length of a text that needs no care, in bytes. The regular expressions of tokenizers give up after a million steps without an
/// error, such as within a million spaces, and take the rest for one word; those of models take one step per letter.
pub(crate) const SAFE_BYTES: usize = 500_000;
/// Number of words between the tokens that stay and the place of a cut. A cut changes words beside it; no usual rule looks further.
const MARGIN: usize = 16;
/// Numbers of characters by which a part is shortened: its tokens must stay, which they do not if words have fixed lengths from
/// the start of the text on.
const SHORTENED: [usize; 2] = [1, 2];

/// Tokens of a long text after truncation to `length` at the other end than `kept`, from a part of the text; `None` if no part of up to
/// [`SAFE_BYTES`] has certainly the tokens of the whole.
pub(crate) fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    special: bool,
    length: usize,
    kept: Side,
) -> tokenizers::Result<Option<Encoding>> {
    let mut bytes = length.saturating_mul(8).saturating_add(4096).min(SAFE_BYTES);
    loop {
        let part = part(text, bytes, kept);
        let encoding = tokenizer.encode(part, special)?;
        if is_settled(tokenizer, part, &encoding, length, kept)? {
            let mut is_same = true;
            for by in SHORTENED {
                let shorter = tokenizer.encode_fast(shortened(part, by, kept), special)?;
                is_same &= shorter.get_ids() == encoding.get_ids();
            }
            if is_same {
                return Ok(Some(encoding));
            }
        }
        if bytes == SAFE_BYTES {
            return Ok(None);
        }
        bytes = bytes.saturating_mul(4).min(SAFE_BYTES);
    }
}

/// True if all tokens that stay are there, and enough words between them and the cut.
fn is_settled(
    tokenizer: &Tokenizer,
    part: &str,
    encoding: &Encoding,
    length: usize,
    kept: Side,
) -> tokenizers::Result<bool> {
    let tokens = encoding.get_attention_mask().iter().filter(|&&is_token| is_token == 1).count();
    let places = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
    let mut places = places.filter(|&(_, &is_special)| is_special == 0).map(|(place, _)| *place);
    let first = places.next();
    let (Some((start, _)), true) = (first, tokens == length) else { return Ok(false) };
    let end = places.next_back().or(first).map_or(0, |(_, end)| end);
    let words = words(tokenizer, part)?;
    let between = words.iter().filter(|&&(from, to)| match kept {
        Side::Left => from >= end,
        Side::Right => to <= start,
    });
    Ok(between.count() >= MARGIN)
}

/// Length of the longest word of a text, in bytes.
pub(crate) fn longest_word(tokenizer: &Tokenizer, text: &str) -> tokenizers::Result<usize> {
    Ok(words(tokenizer, text)?.iter().map(|(start, end)| end - start).max().unwrap_or(0))
}

/// Places of the words into which the tokenizer splits a text before it looks for tokens, in bytes.
fn words(tokenizer: &Tokenizer, text: &str) -> tokenizers::Result<Vec<(usize, usize)>> {
    let normalizer = tokenizer.get_normalizer();
    let mut split: PreTokenizedString =
        tokenizer.get_added_vocabulary().extract_and_normalize(normalizer, text);
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut split)?;
    }
    let words = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
    Ok(words.into_iter().map(|(_, place, _)| place).collect())
}

/// The start of a text, or its end, of at most this many bytes.
fn part(text: &str, bytes: usize, kept: Side) -> &str {
    match kept {
        Side::Left => &text[..text.floor_char_boundary(bytes)],
        Side::Right => &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..],
    }
}

/// The part without this many characters at the cut.
fn shortened(part: &str, by: usize, kept: Side) -> &str {
    let place = match kept {
        Side::Left => part.char_indices().nth_back(by - 1),
        Side::Right => part.char_indices().nth(by),
    };
    let place = place.map_or(0, |(place, _)| place);
    match kept {
        Side::Left => &part[..place],
        Side::Right => &part[place..],
    }
}
