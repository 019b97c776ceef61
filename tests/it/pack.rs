//! The packing pipeline: no token is lost, epochs never mix, and the ledger balances although one sample may become several.

use penstock_engine::item::{Collated, Dtype};
use penstock_tests::{Folder, lines};
use penstock_types::run::RunSnapshot;
use serde_json::Value;

use crate::delivered::{Example, batches, stacked};

const LENGTH: usize = 256;
/// Ids of `<pad>`, `<unk>` and `<eos>` in the tokenizer of `make-data`.
const PAD: i64 = 0;
const UNKNOWN: i64 = 1;
const END: i64 = 2;

fn corpus(count: u64) -> Folder {
    let folder = Folder::new();
    folder.texts(count);
    folder.tokenizer();
    folder
}

fn packed(folder: &Folder, settings: &[(&str, Value)]) -> (RunSnapshot, Vec<Collated>) {
    let example = Example::new("pack.json", &[]).store("text", folder.path());
    let example =
        settings.iter().fold(example, |example, (pointer, value)| example.set(pointer, value.clone()));
    let (snapshot, items) = example.run();
    (snapshot, batches(items))
}

/// Rows of the stacked field `name`, over all batches.
fn rows(batches: &[Collated], name: &str) -> Vec<Vec<i64>> {
    let of = |batch: &Collated| {
        let (shape, numbers) = stacked(batch, name, Dtype::Int64, i64::from_le_bytes);
        assert_eq!(shape, [batch.keys.len() as u32, LENGTH as u32]);
        numbers.chunks(LENGTH).map(<[i64]>::to_vec).collect::<Vec<_>>()
    };
    batches.iter().flat_map(of).collect()
}

/// Texts that the tokens represent, without spaces, split at `<eos>`.
fn told(tokens: &[i64], tokenizer: &Value) -> Vec<String> {
    let words = tokenizer["model"]["vocab"].as_object().unwrap();
    let word = |id: i64| words.iter().find(|(_, found)| **found == id).unwrap().0;
    let (mut texts, mut text) = (Vec::new(), String::new());
    for &token in tokens {
        match token {
            PAD => {}
            UNKNOWN => panic!("a word without a token after `{text}`"),
            END => texts.push(std::mem::take(&mut text)),
            _ => text.push_str(word(token)),
        }
    }
    assert!(text.is_empty(), "every document ends with a separator");
    texts
}

#[test]
fn every_text_is_packed_once_and_completely() {
    let folder = corpus(300);
    let (snapshot, batches) = packed(&folder, &[("/source/records/shuffle", false.into())]);
    let sequences = rows(&batches, "input_ids");
    let tokenizer = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let records: Vec<Value> = lines(&folder.join("corpus.ndjson"));
    let text = |record: &Value| record["text"].as_str().unwrap().split_whitespace().collect::<String>();
    let texts: Vec<String> = records.iter().map(text).collect();
    assert_eq!(told(&sequences.concat(), &serde_json::from_slice(&tokenizer).unwrap()), texts);

    let counted = &snapshot.counters["2:pack"];
    let padding = sequences.concat().iter().filter(|&&token| token == PAD).count();
    assert_eq!(counted["padding"], padding as f64);
    assert_eq!(counted["tokens"] + counted["padding"], (sequences.len() * LENGTH) as f64);
    assert_eq!(snapshot.ledger.total.delivered, sequences.len() as u64);
}

#[test]
fn segments_and_positions_mark_the_start_of_each_document() {
    let folder = corpus(60);
    let (_, batches) = packed(&folder, &[]);
    let (tokens, documents, positions) =
        (rows(&batches, "input_ids"), rows(&batches, "segment_ids"), rows(&batches, "position_ids"));
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
    let (one, two) = (rows(&one, "input_ids"), rows(&two, "input_ids"));
    assert_eq!(two, [one.clone(), one.clone()].concat());

    let dropped = [once[0].clone(), ("/stages/1/wasm/params/last", "drop".into())];
    let (snapshot, full) = packed(&folder, &dropped);
    assert_eq!(rows(&full, "input_ids"), one[..one.len() - 1]);
    let counted = &snapshot.counters["2:pack"];
    let last = one[one.len() - 1].iter().filter(|&&token| token != PAD).count();
    assert_eq!((counted["discarded"], counted.get("padding").copied().unwrap_or(0.0)), (last as f64, 0.0));
}
