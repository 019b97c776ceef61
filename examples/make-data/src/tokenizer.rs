//! Tokenizer for the generated texts.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::fault::WriteFault;
use crate::photos::write_whole;
use crate::text::WORDS;

/// Tokens by their ids: padding, unknown words, the end of a text, the punctuation of the texts, and every word, small and capitalised.
fn tokens() -> Vec<String> {
    let first = ["<pad>", "<unk>", "<eos>", ".", "?", ","].map(str::to_owned);
    let mut known = BTreeSet::new();
    // Texts are split at punctuation, which is in some words.
    let words =
        WORDS.iter().flat_map(|word| word.split('.')).flat_map(|word| [word.to_owned(), capitalised(word)]);
    first.into_iter().chain(words.filter(|word| known.insert(word.clone()))).collect()
}

/// A `tokenizer.json` of Hugging Face's `tokenizers` with one token per word, and the token `<eos>` after each text.
pub fn tokenizer() -> Value {
    let tokens = tokens();
    let special = |id: usize| {
        json!({
            "id": id, "content": tokens[id], "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
        })
    };
    let vocabulary: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let end = json!({ "SpecialToken": { "id": "<eos>", "type_id": 0 } });
    let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(0), special(1), special(2)],
        "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [text("A"), end],
            "pair": [text("A"), end, text("B"), end],
            "special_tokens": { "<eos>": { "id": "<eos>", "ids": [2], "tokens": ["<eos>"] } }
        },
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>" }
    })
}

/// Writes [`tokenizer`] to `file` atomically; returns the number of tokens.
pub fn write_tokenizer(file: &Path) -> Result<usize, WriteFault> {
    write_whole(file, tokenizer().to_string().as_bytes())?;
    Ok(tokens().len())
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_one_token() {
        let tokens = tokens();
        let unique: BTreeSet<&str> = tokens.iter().map(String::as_str).collect();
        assert_eq!(tokens.len(), unique.len());
        let mut parts = WORDS.iter().flat_map(|word| word.split('.'));
        assert!(parts.all(|part| unique.contains(part) && part.chars().all(char::is_alphanumeric)));
        assert!(unique.contains("Zürich") && unique.contains("Café"));
        let written = tokenizer();
        assert_eq!(written["model"]["vocab"].as_object().unwrap().len(), tokens.len());
        assert_eq!(written["model"]["vocab"]["<eos>"], 2);
    }
}
