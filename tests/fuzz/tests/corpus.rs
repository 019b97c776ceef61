//! Runs every fuzz target once on its corpus.

use std::fs;
use std::path::{Path, PathBuf};

use penstock_fuzz::{
    DECODERS, Decoder, READERS, document, document_words, example, index, manifest, reader, reader_seeds,
    returned, schemas, upload, values,
};

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

#[test]
fn examples_of_the_corpus_pass_the_target() {
    replay("example", example);
}

#[test]
fn indexes_of_the_corpus_pass_the_target() {
    replay("index", index);
}

/// The fixtures of the formats, these fixtures with damage, and what fuzzing found.
#[test]
fn objects_of_each_format_are_read_or_refused_with_a_reason() {
    for format in READERS {
        let mut paths = reader_seeds(format);
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/reader").join(format);
        paths.extend(fs::read_dir(corpus).into_iter().flatten().map(|entry| entry.unwrap().path()));
        assert!(!paths.is_empty(), "no objects of `{format}`");
        let whole: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        let mut compared = 0;
        for (path, object) in paths.iter().zip(&whole) {
            let ended = std::panic::catch_unwind(|| reader(format, object));
            compared += ended.unwrap_or_else(|_| panic!("{}", path.display()));
        }
        assert!(compared > 0, "{compared} samples of `{format}` were compared");
        let mut random = fastrand::Rng::with_seed(7);
        for number in 0..DAMAGED {
            let object = damaged(&whole[number % whole.len()], &mut random);
            let ended = std::panic::catch_unwind(|| reader(format, &object));
            assert!(ended.is_ok(), "damaged object {number} of `{format}`");
        }
    }
}

/// The file with up to five bytes changed, and perhaps cut.
fn damaged(whole: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut file = whole.to_vec();
    for _ in 0..random.usize(1..=5) {
        // Headers are where damage does most.
        let end = if random.bool() { file.len().min(100) } else { file.len() };
        file[random.usize(..end)] = random.u8(..);
    }
    if random.u8(..5) == 0 {
        file.truncate(random.usize(..file.len()));
    }
    file
}

/// Number of damaged files of each format.
const DAMAGED: usize = 1000;

/// The fixtures of the stages, these fixtures with damage, and what fuzzing found.
#[test]
fn files_of_each_format_are_decoded_or_refused_with_a_reason() {
    for decoder in &DECODERS {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/decoder").join(decoder.name);
        let found = fs::read_dir(corpus).into_iter().flatten().map(|entry| entry.unwrap().path());
        let whole: Vec<Vec<u8>> = decoder.seeds().iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(!whole.is_empty(), "no files of `{}`", decoder.name);
        for path in found.chain(decoder.seeds()) {
            let file = fs::read(&path).unwrap();
            let ended = std::panic::catch_unwind(|| decoder.decode(&file));
            assert!(ended.is_ok(), "{}", path.display());
        }
        let mut random = fastrand::Rng::with_seed(7);
        for number in 0..DAMAGED {
            let file = damaged(&whole[number % whole.len()], &mut random);
            let ended = std::panic::catch_unwind(|| decoder.decode(&file));
            assert!(ended.is_ok(), "damaged file {number} of `{}`", decoder.name);
        }
    }
}

/// A PNG of this many rows of 4 MiB each, whose pixels are damaged. Its length chooses params with which only a part is decoded.
fn tall_png(decoder: &Decoder, rows: u32) -> Vec<u8> {
    let chunk = |name: &[u8], content: &[u8]| {
        let named = [name, content].concat();
        [&(content.len() as u32).to_be_bytes()[..], &named, &crc32fast::hash(&named).to_be_bytes()].concat()
    };
    let size = [(1_u32 << 20).to_be_bytes(), rows.to_be_bytes()].concat();
    let header = chunk(b"IHDR", &[&size[..], &[8, 6, 0, 0, 0]].concat());
    let mut png =
        [&b"\x89PNG\r\n\x1a\n"[..], &header, &chunk(b"IDAT", &[0x78, 0x9c, 0xff, 0, 0, 0])].concat();
    while !decoder.params_of(&png).contains("bicubic") {
        png.push(0);
    }
    png
}

#[test]
fn images_of_growing_size_fit_into_the_memory_of_one_instance() {
    let decoder = Decoder::find("png").unwrap();
    for rows in [10, 20, 45] {
        decoder.decode(&tall_png(decoder, rows));
    }
}
