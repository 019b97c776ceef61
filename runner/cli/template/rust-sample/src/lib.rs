//! A stage for Penstock: see README.md.

use penstock_guest::prelude::*;

/// Params that a pipeline may set.
#[derive(Params)]
pub struct Settings {
    /// Maximum number of words to keep of each text.
    #[param(default = 20, min = 1)]
    pub words: usize,
}

/// Keeps the first words of a text file. Drops a file without words; refuses a file that is not text.
#[stage(wants("bytes"), makes("text", "words"), counters("cut"))]
pub fn first_words(mut item: Item, settings: &Settings) -> Result<Option<Item>> {
    let text = String::from_utf8(item.take_bytes("bytes")?).context("not a text")?;
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() {
        return Ok(None);
    }
    let kept = &words[..words.len().min(settings.words)];
    if kept.len() < words.len() {
        count("cut", 1.0);
    }
    item.set("text", kept.join(" "));
    item.set("words", kept.len() as i64);
    Ok(Some(item))
}

#[cfg(test)]
mod tests {
    use penstock_guest::testing::counter;

    use super::*;

    fn run(bytes: &[u8], params: &str) -> Result<Option<Item>> {
        let settings = Settings::from_json(params).expect("the params fit");
        first_words(Item::new("a.txt").with("bytes", bytes), &settings)
    }

    #[test]
    fn a_long_text_is_cut_and_counted() {
        let item = run(b"one  two\nthree", r#"{"words": 2}"#).unwrap().unwrap();
        assert_eq!(item.text("text").unwrap(), "one two");
        assert_eq!(item.int("words").unwrap(), 2);
        assert_eq!(counter("cut"), 1.0);
    }

    #[test]
    fn a_file_without_words_is_dropped() {
        assert_eq!(run(b" \n", "{}").unwrap(), None);
    }

    #[test]
    fn a_file_that_is_not_text_is_refused() {
        let error = run(b"\xff\xd8", "{}").unwrap_err();
        assert!(error.message().starts_with("not a text: "), "{error}");
    }
}
