//! The packing pipeline: no token is lost, epochs never mix, and the ledger balances although one sample may become several.

use penstock_engine::item::{Collated, Dtype};
use penstock_tests::{Folder, lines};
use penstock_types::run::RunSnapshot;
use serde_json::Value;

use crate::delivered::{Example, batches, stacked};

const LENGTH: usize = 256;
/// Numbers of `<pad>` and `<eos>` in the vocabulary of `make-data`.
const PAD: i32 = 0;
const END: i32 = 1;

fn corpus(count: u64) -> Folder {
    let folder = Folder::new();
    folder.texts(count);
    folder.vocabulary();
    folder
}

fn packed(folder: &Folder, settings: &[(&str, Value)]) -> (RunSnapshot, Vec<Collated>) {
    let example = Example::new("pack-tokens.json", &["pack-tokens"]).store("text", folder.path());
    let example =
        settings.iter().fold(example, |example, (pointer, value)| example.set(pointer, value.clone()));
    let (snapshot, items) = example.run();
    (snapshot, batches(items))
}

/// Rows of the stacked field `name`, over all batches.
fn rows(batches: &[Collated], name: &str) -> Vec<Vec<i32>> {
    let of = |batch: &Collated| {
        let (shape, numbers) = stacked(batch, name, Dtype::Int32, i32::from_le_bytes);
        assert_eq!(shape, [batch.keys.len() as u32, LENGTH as u32]);
        numbers.chunks(LENGTH).map(<[i32]>::to_vec).collect::<Vec<_>>()
    };
    batches.iter().flat_map(of).collect()
}

/// Texts that the tokens represent, split at `<eos>`.
fn told(tokens: &[i32], vocabulary: &str) -> Vec<String> {
    let vocabulary: Vec<&str> = vocabulary.lines().collect();
    let (mut texts, mut text) = (Vec::new(), Vec::new());
    for &token in tokens {
        let written = vocabulary[token as usize];
        match token {
            PAD => {}
            END => texts.push(String::from_utf8(std::mem::take(&mut text)).unwrap()),
            3..=258 => text.push((token - 3) as u8),
            _ => text.extend_from_slice(written.replace("\\n", "\n").as_bytes()),
        }
    }
    assert!(text.is_empty(), "every document ends with a separator");
    texts
}

#[test]
fn every_text_is_packed_once_and_completely() {
    let folder = corpus(300);
    let (snapshot, batches) = packed(&folder, &[("/source/records/shuffle", false.into())]);
    let sequences = rows(&batches, "tokens");
    let vocabulary = std::fs::read_to_string(folder.join("vocabulary.txt")).unwrap();
    let records: Vec<Value> = lines(&folder.join("corpus.ndjson"));
    let texts: Vec<&str> = records.iter().map(|record| record["text"].as_str().unwrap()).collect();
    assert_eq!(told(&sequences.concat(), &vocabulary), texts);

    let counted = &snapshot.counters["1:pack-tokens"];
    let padding = sequences.concat().iter().filter(|&&token| token == PAD).count();
    assert_eq!(counted["padding"], padding as f64);
    assert_eq!(counted["tokens"] + counted["padding"], (sequences.len() * LENGTH) as f64);
    assert_eq!(snapshot.ledger.total.delivered, sequences.len() as u64);
}

#[test]
fn documents_and_positions_mark_the_start_of_each_document() {
    let folder = corpus(60);
    let (_, batches) = packed(&folder, &[]);
    let (tokens, documents, positions) =
        (rows(&batches, "tokens"), rows(&batches, "documents"), rows(&batches, "positions"));
    for ((tokens, documents), positions) in tokens.iter().zip(&documents).zip(&positions) {
        assert_eq!((documents[0], positions[0]), (1, 0));
        for at in 1..LENGTH {
            let expected = match tokens[at - 1] {
                _ if tokens[at] == PAD => (0, 0),
                END => (documents[at - 1] + 1, 0),
                _ => (documents[at - 1], positions[at - 1] + 1),
            };
            assert_eq!((documents[at], positions[at]), expected, "at {at} of {tokens:?}");
        }
    }
}

#[test]
fn epochs_never_share_a_sequence_and_the_last_one_can_be_dropped() {
    let folder = corpus(50);
    let once = [("/source/records/shuffle", false.into())];
    let twice = [once[0].clone(), ("/source/records/epochs", 2.into())];
    let (_, one) = packed(&folder, &once);
    let (_, two) = packed(&folder, &twice);
    let (one, two) = (rows(&one, "tokens"), rows(&two, "tokens"));
    assert_eq!(two, [one.clone(), one.clone()].concat());

    let dropped = [once[0].clone(), ("/stages/0/wasm/params/last", "drop".into())];
    let (snapshot, full) = packed(&folder, &dropped);
    assert_eq!(rows(&full, "tokens"), one[..one.len() - 1]);
    let counted = &snapshot.counters["1:pack-tokens"];
    let last = one[one.len() - 1].iter().filter(|&&token| token != PAD).count();
    assert_eq!((counted["discarded"], counted.get("padding").copied().unwrap_or(0.0)), (last as f64, 0.0));
}
