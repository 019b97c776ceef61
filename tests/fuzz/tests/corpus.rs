//! Runs every fuzz target once on its corpus.

use std::fs;
use std::path::{Path, PathBuf};

use penstock_fuzz::{document, document_words, manifest, returned, schemas, upload, values};

/// Paths and contents of the inputs of a target.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(&corpus).expect("every target has a corpus");
    let inputs: Vec<_> = entries
        .map(|entry| entry.expect("a folder can be read").path())
        .map(|path| (path.clone(), fs::read(path).expect("an input can be read")))
        .collect();
    assert!(!inputs.is_empty(), "the corpus of `{name}` is empty");
    inputs
}

fn replay(name: &str, target: fn(&[u8])) {
    for (path, input) in corpus(name) {
        let ended = std::panic::catch_unwind(|| target(&input));
        assert!(ended.is_ok(), "{}", path.display());
    }
}

#[test]
fn every_word_of_the_document_is_in_an_input() {
    let inputs = corpus("document");
    let is_used = |word: &String| {
        let quoted = format!("\"{word}\"");
        inputs.iter().any(|(_, input)| String::from_utf8_lossy(input).contains(&quoted))
    };
    let words = document_words();
    assert!(["stages", "wasm", "files", "dead_letter"].iter().all(|word| words.contains(*word)), "{words:?}");
    let unused: Vec<&String> = words.iter().filter(|word| !is_used(word)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn documents_of_the_corpus_pass_the_target() {
    replay("document", document);
}

#[test]
fn manifests_of_the_corpus_pass_the_target() {
    replay("manifest", manifest);
}

#[test]
fn uploads_of_the_corpus_pass_the_target() {
    replay("upload", upload);
}

#[test]
fn answers_of_the_corpus_pass_the_target() {
    replay("returned", returned);
}

#[test]
fn schemas_of_the_corpus_pass_the_target() {
    replay("schemas", schemas);
}

#[test]
fn values_of_the_corpus_pass_the_target() {
    replay("values", values);
}
