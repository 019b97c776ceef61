//! Drops texts that are too short and splits those that are too long.

use penstock_guest::prelude::*;

/// Params that a pipeline may set. Lengths are in characters, not in bytes.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Minimum length: shorter texts and parts are dropped. Surrounding white space does not count.
    #[param(default = 1)]
    pub min_chars: usize,
    /// Maximum length: longer texts are split; by default, no text is split.
    #[param(min = 1)]
    pub max_chars: Option<usize>,
    /// Makes every paragraph a separate sample. An empty line ends a paragraph.
    #[param(default = false)]
    pub paragraphs: bool,
}

/// Drops samples whose `text` is too short and splits the others by paragraphs and by length.
///
/// A text is split at the last white space that keeps a part within `max_chars`, or inside a word that is longer than
/// `max_chars`. The counter `dropped` counts texts and parts, the counter `split` texts.
#[stage(wants("text"), makes("text"), counters("dropped", "split"), fan_out)]
pub fn text_filter(mut item: Item, settings: &Settings) -> Result<Outcome> {
    let text = item.take_text("text")?;
    let (kept, short): (Vec<&str>, Vec<&str>) =
        parts(&text, settings).into_iter().partition(|part| part.chars().count() >= settings.min_chars);
    if !short.is_empty() {
        count("dropped", short.len() as f64);
    }
    Ok(match kept.as_slice() {
        [] => Outcome::Drop,
        // A single part does not become a new sample: the item keeps its key.
        [one] => Outcome::Keep(item.with("text", *one)),
        many => {
            count("split", 1.0);
            let children = many.iter().enumerate().map(|(at, part)| item.child(at).with("text", *part));
            Outcome::Many(children.collect())
        }
    })
}

/// Parts of a text, without surrounding white space; a text of white space alone is one empty part.
pub fn parts<'a>(text: &'a str, settings: &Settings) -> Vec<&'a str> {
    let paragraphs = match settings.paragraphs {
        true => paragraphs(text),
        false => vec![text.trim()],
    };
    match settings.max_chars {
        Some(max) => paragraphs.into_iter().flat_map(|paragraph| pieces(paragraph, max)).collect(),
        None => paragraphs,
    }
}

fn paragraphs(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim().is_empty() {
            found.push(text[start..at].trim());
            start = at + line.len();
        }
        at += line.len();
    }
    found.push(text[start..].trim());
    found.retain(|paragraph| !paragraph.is_empty());
    if found.is_empty() { vec![""] } else { found }
}

fn pieces(mut text: &str, max: usize) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some((limit, next)) = text.char_indices().nth(max) {
        // If white space follows right after the limit, the part ends at the limit.
        let end = match next.is_whitespace() {
            true => limit,
            false => text[..limit].rfind(char::is_whitespace).unwrap_or(limit),
        };
        found.push(text[..end].trim_end());
        text = text[end..].trim_start();
    }
    if !text.is_empty() || found.is_empty() {
        found.push(text);
    }
    found
}

#[cfg(test)]
mod tests {
    use penstock_guest::testing::{Instance, counter};

    use super::*;

    fn settings(params: &str) -> Settings {
        Settings::from_json(params).unwrap()
    }

    fn run(text: &str, params: &str) -> Vec<(String, String)> {
        let item = Item::new("doc").with("text", text).with("lang", "en");
        let items = match text_filter(item, &settings(params)).unwrap() {
            Outcome::Keep(item) => vec![item],
            Outcome::Many(items) => items,
            _ => vec![],
        };
        items.iter().map(|item| (item.key().to_owned(), item.text("text").unwrap().to_owned())).collect()
    }

    fn texts(text: &str, params: &str) -> Vec<String> {
        run(text, params).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn a_text_that_is_too_short_is_dropped_and_counted() {
        assert!(run("  short  ", r#"{"min_chars": 6}"#).is_empty());
        assert!(run(" \n ", "{}").is_empty());
        assert_eq!(counter("dropped"), 2.0);
        // The text has five characters in ten bytes; the minimum is in characters.
        assert_eq!(texts("жжжжж", r#"{"min_chars": 5}"#), ["жжжжж"]);
    }

    #[test]
    fn a_whole_text_keeps_its_key() {
        assert_eq!(run("just one\n", "{}"), [("doc".to_owned(), "just one".to_owned())]);
        assert_eq!(counter("split"), 0.0);
    }

    #[test]
    fn paragraphs_become_samples_with_distinct_keys() {
        let made = run("One\nline.\n\n \nTwo.\n\n\nThree.", r#"{"paragraphs": true}"#);
        let expected = [("doc#0", "One\nline."), ("doc#1", "Two."), ("doc#2", "Three.")];
        assert_eq!(made, expected.map(|(key, text)| (key.to_owned(), text.to_owned())));
        assert_eq!(counter("split"), 1.0);
    }

    #[test]
    fn long_texts_are_split_between_words() {
        assert_eq!(texts("aa bb cc dd", r#"{"max_chars": 5}"#), ["aa bb", "cc dd"]);
        assert_eq!(texts("aa bbbb cc", r#"{"max_chars": 5}"#), ["aa", "bbbb", "cc"]);
        assert_eq!(texts("жжжжжжж", r#"{"max_chars": 3}"#), ["жжж", "жжж", "ж"]);
        assert_eq!(texts("short", r#"{"max_chars": 5}"#), ["short"]);
    }

    #[test]
    fn no_part_is_longer_than_allowed_and_no_word_is_lost() {
        let text = "the quick  brown\tfox jumps over the lazy dog ".repeat(20);
        for max in 5..40 {
            let made = texts(&text, &format!(r#"{{"max_chars": {max}}}"#));
            assert!(made.iter().all(|part| part.chars().count() <= max && !part.is_empty()), "{max}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&made.join(" ")), words(&text), "{max}");
        }
    }

    #[test]
    fn a_limit_of_zero_is_refused_by_name() {
        let error = Instance::<text_filter>::new(r#"{"max_chars": 0, "min_chars": -1}"#).unwrap_err();
        assert!(error.contains("`max_chars`: 0 is less than 1"), "{error}");
        assert!(error.contains("`min_chars`: invalid value: integer `-1`"), "{error}");
    }

    #[test]
    fn a_sample_without_text_is_refused() {
        let error = text_filter(Item::new("doc"), &settings("{}")).unwrap_err();
        assert_eq!(error.message(), "no field `text`: the item has no fields that this stage reads");
    }
}
