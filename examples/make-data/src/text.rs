//! Generation of text records that resemble texts of web crawls and books.

use std::path::Path;
use std::sync::LazyLock;

use serde_json::json;

use crate::fault::WriteFault;
use crate::photos::write_whole;
use crate::random::Random;

/// Words of the texts, common ones first: words are drawn so that earlier ones occur more often.
pub(crate) static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    "the of water and a to in is flows from it that valley pipe with river was for on mill over turns \
    wheel below stone until they small under bridge when spring rain falls slowly into reservoir whose \
    gate opens early morning keeper counts every drop before evening comes again without sound through \
    narrow channel turbine hums while snow melts above village lamps burn brighter than ever since \
    copper wires carry light across mountains pressure measured by an old gauge needle trembles between \
    two marks nobody remembers who drew them perhaps engineer from far away naïve café Zürich façade \
    señor 100 1931 3.5"
        .split(' ')
        .collect()
});

/// Creates the record number `index` of the set with this `seed`: one line of JSON with `key` and `text`, without the line
/// end. One text in eight has a few words, like a title; the others have one to twelve paragraphs, separated by empty lines.
pub fn record(seed: u64, index: u64) -> String {
    let mut random = Random::new(seed, index);
    let text = if random.one_in(8) {
        let length = random.between(1, 6);
        words(&mut random, length)
    } else {
        // The smaller of two draws: most texts are short, some are long.
        let paragraphs = random.between(1, 12).min(random.between(1, 12));
        (0..paragraphs).map(|_| paragraph(&mut random)).collect::<Vec<_>>().join("\n\n")
    };
    json!({ "key": format!("text-{index:06}"), "text": text }).to_string()
}

/// Writes `count` records to `file`, one per line. The file is written atomically.
pub fn write_records(file: &Path, seed: u64, count: u64) -> Result<(), WriteFault> {
    let mut lines = String::new();
    for index in 0..count {
        lines.push_str(&record(seed, index));
        lines.push('\n');
    }
    write_whole(file, lines.as_bytes())
}

fn paragraph(random: &mut Random) -> String {
    let sentences = random.between(1, 7);
    (0..sentences).map(|_| sentence(random)).collect::<Vec<_>>().join(" ")
}

fn sentence(random: &mut Random) -> String {
    let length = random.between(3, 22);
    let mut text = words(random, length);
    text.push(if random.one_in(12) { '?' } else { '.' });
    text
}

/// Joins random words, the first one capitalised.
fn words(random: &mut Random, count: i32) -> String {
    let mut text = String::new();
    for number in 0..count {
        let last = WORDS.len() as i32 - 1;
        let place = random.between(0, last).min(random.between(0, last)).min(random.between(0, last));
        let word = WORDS[place.unsigned_abs() as usize];
        if number == 0 {
            text.extend(word.chars().take(1).flat_map(char::to_uppercase));
            text.extend(word.chars().skip(1));
        } else {
            text.push_str(if random.one_in(15) { ", " } else { " " });
            text.push_str(word);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;
    use sha2::{Digest, Sha256};

    use super::*;

    fn texts(count: u64) -> Vec<String> {
        let records = (0..count).map(|index| serde_json::from_str::<Value>(&record(1, index)).unwrap());
        records.map(|record| record["text"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn records_are_the_same_bytes_on_every_machine() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sub/text.ndjson");
        write_records(&file, 1, 100).unwrap();
        let found: String =
            Sha256::digest(std::fs::read(file).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, "30d30aaf675e750fc4216f36af2786069ab7b8f5ed88d7e12086ad13b8a32f9d");
    }

    #[test]
    fn texts_differ_in_length_and_have_paragraphs() {
        let texts = texts(500);
        let short = texts.iter().filter(|text| text.split_whitespace().count() <= 6).count();
        assert!((30..120).contains(&short), "{short} of 500 are short");
        assert!(texts.iter().any(|text| text.len() > 3_000));
        assert!(texts.iter().filter(|text| text.contains("\n\n")).count() > 200);
        assert!(texts.iter().collect::<BTreeSet<_>>().len() > 490, "texts repeat");
    }
}
