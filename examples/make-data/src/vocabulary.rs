//! Vocabulary for the generated texts.

use std::collections::BTreeSet;
use std::path::Path;

use crate::fault::WriteFault;
use crate::photos::write_whole;
use crate::text::WORDS;

/// Vocabulary with one token per line, as the stage `pack-tokens` reads it: three special tokens, all bytes, the punctuation at
/// ends of sentences, and every word as it occurs within a sentence, capitalised, and with a leading space.
pub fn vocabulary() -> String {
    let specials = ["<pad>", "<eos>", "<bos>"].map(str::to_owned);
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
    let marks = [".", "?", ", ", ". ", "? ", "\\n\\n"].map(str::to_owned);
    let mut known = BTreeSet::new();
    let words = WORDS
        .iter()
        .flat_map(|word| [format!(" {word}"), (*word).to_owned(), capitalised(word)])
        .filter(|word| known.insert(word.clone()));
    specials.into_iter().chain(bytes).chain(marks).chain(words).map(|token| token + "\n").collect()
}

/// Writes [`vocabulary`] to `file` atomically; returns the number of tokens.
pub fn write_vocabulary(file: &Path) -> Result<usize, WriteFault> {
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(WriteFault::at(folder))?;
    }
    let vocabulary = vocabulary();
    write_whole(file, vocabulary.as_bytes())?;
    Ok(vocabulary.lines().count())
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_occurs_once_and_every_word_has_one() {
        let vocabulary = vocabulary();
        let tokens: Vec<&str> = vocabulary.lines().collect();
        let unique: BTreeSet<&str> = tokens.iter().copied().collect();
        assert_eq!(tokens.len(), unique.len());
        assert_eq!((tokens[0], tokens[3], tokens[258]), ("<pad>", "<0x00>", "<0xFF>"));
        for word in WORDS {
            assert!(unique.contains(word) && unique.contains(format!(" {word}").as_str()), "{word}");
        }
        assert!(unique.contains("Zürich") && unique.contains("Café"));
    }
}
