//! What fuzzing found worth keeping, once through every target.

use std::fs;
use std::path::Path;

use penstock_fuzz::{document, manifest, returned, upload};

fn replay(name: &str, target: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut inputs = 0;
    for entry in fs::read_dir(&corpus).expect("every target has a corpus") {
        let path = entry.expect("a folder can be read").path();
        let input = fs::read(&path).expect("an input can be read");
        let ended = std::panic::catch_unwind(|| target(&input));
        assert!(ended.is_ok(), "{}", path.display());
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus of `{name}` is empty");
}

#[test]
fn documents_that_were_found_keep_the_targets_promises() {
    replay("document", document);
}

#[test]
fn manifests_that_were_found_keep_the_targets_promises() {
    replay("manifest", manifest);
}

#[test]
fn uploads_that_were_found_keep_the_targets_promises() {
    replay("upload", upload);
}

#[test]
fn answers_that_were_found_keep_the_targets_promises() {
    replay("returned", returned);
}
