use penstock_guest::testing::{Instance, counter, manifest, reset};

use super::*;

fn stage(params: &str) -> Instance<Pack> {
    reset();
    Instance::new(params).unwrap()
}

fn document(key: &str, tokens: &[i64]) -> Item {
    let mask = Tensor::new([tokens.len() as u32], vec![1_i64; tokens.len()]).unwrap();
    let tokens = Tensor::new([tokens.len() as u32], tokens.to_vec()).unwrap();
    Item::new(key).with("input_ids", tokens).with("attention_mask", mask).with("source", key)
}

fn numbers(item: &Item, name: &str) -> Vec<i64> {
    item.tensor::<i64>(name).unwrap().as_slice().to_vec()
}

/// Key of the item, and the values of its three tensors.
fn content(item: &Item) -> (&str, [Vec<i64>; 3]) {
    assert!(item.get("attention_mask").is_none());
    (item.key(), ["input_ids", "segment_ids", "position_ids"].map(|name| numbers(item, name)))
}

fn rows(outcome: &Outcome) -> &[Item] {
    match outcome {
        Outcome::Many(rows) => rows,
        other => panic!("{other:?}"),
    }
}

#[test]
fn documents_are_packed_one_after_the_other() {
    let mut stage = stage(r#"{"length": 5, "separator": 1, "pad_token": 2}"#);
    let outcomes =
        stage.process(vec![document("one", &[3, 4]), document("two", &[5, 6, 3]), document("three", &[4])]);
    assert_eq!((&outcomes[0], &outcomes[2]), (&Outcome::Held, &Outcome::Held));
    let full = rows(&outcomes[1]);
    assert_eq!(content(&full[0]), ("two#0", [vec![3, 4, 1, 5, 6], vec![1, 1, 1, 2, 2], vec![0, 1, 2, 0, 1]]));
    assert_eq!((full.len(), full[0].get("source")), (1, None));
    let rest = stage.finish();
    // The rest of `two` is the first document of this row.
    let expected = [vec![3, 1, 4, 1, 2], vec![1, 1, 2, 2, 0], vec![0, 1, 0, 1, 0]];
    assert_eq!((rest.len(), content(&rest[0])), (1, ("three#0", expected)));
    assert_eq!(["tokens", "padding", "discarded"].map(counter), [9.0, 1.0, 0.0]);
}

#[test]
fn a_long_document_fills_several_rows() {
    let mut stage = stage(r#"{"length": 4}"#);
    let outcomes = stage.process(vec![document("long", &[3, 4, 5, 6, 3, 4, 5, 6, 7])]);
    let full = rows(&outcomes[0]);
    assert_eq!(full.iter().map(Item::key).collect::<Vec<_>>(), ["long#0", "long#1"]);
    assert!(full.iter().all(|item| numbers(item, "input_ids") == [3, 4, 5, 6]));
    let rest = stage.finish();
    assert_eq!(content(&rest[0]), ("long#2", [vec![7, 0, 0, 0], vec![1, 0, 0, 0], vec![0; 4]]));
}

#[test]
fn whole_documents_start_a_new_row_if_they_do_not_fit() {
    let mut stage = stage(r#"{"length": 4, "split_documents": false}"#);
    let outcomes = stage.process(vec![
        document("a", &[1, 2]),
        document("b", &[3, 4, 5]),
        document("c", &[6]),
        document("d", &[7]),
        document("long", &[1; 5]),
    ]);
    assert_eq!(outcomes[0], Outcome::Held);
    assert_eq!(
        content(&rows(&outcomes[1])[0]),
        ("a#0", [vec![1, 2, 0, 0], vec![1, 1, 0, 0], vec![0, 1, 0, 0]])
    );
    assert_eq!(
        content(&rows(&outcomes[2])[0]),
        ("c#0", [vec![3, 4, 5, 6], vec![1, 1, 1, 2], vec![0, 1, 2, 0]])
    );
    assert_eq!(outcomes[3], Outcome::Held);
    let Outcome::Failed(why) = &outcomes[4] else { panic!("{outcomes:?}") };
    assert!(why.starts_with("the document has 5 tokens, more than `length`, 4"), "{why}");
    assert_eq!(content(&stage.finish()[0]).1[0], [7, 0, 0, 0]);
    assert_eq!((counter("tokens"), counter("padding")), (7.0, 5.0));
}

#[test]
fn epochs_never_share_a_row() {
    let mut stage = stage(r#"{"length": 4, "separator": 1, "pad_token": 2}"#);
    for _ in 0..2 {
        assert_eq!(stage.process(vec![document("a", &[3, 4])]), [Outcome::Held]);
        let rest = stage.finish();
        assert_eq!(numbers(&rest[0], "input_ids"), [3, 4, 1, 2]);
        assert!(stage.finish().is_empty());
    }
}

#[test]
fn an_incomplete_row_can_be_dropped_and_a_full_one_leaves_no_rest() {
    let mut stage = stage(r#"{"length": 4, "last": "drop"}"#);
    let outcomes = stage.process(vec![document("a", &[3, 4, 5, 6, 7, 8])]);
    assert_eq!(rows(&outcomes[0]).len(), 1);
    assert!(stage.finish().is_empty());
    assert_eq!((counter("discarded"), counter("padding")), (2.0, 0.0));
    assert_eq!(rows(&stage.process(vec![document("b", &[1, 2, 3, 4])])[0])[0].key(), "b#0");
    assert!(stage.finish().is_empty());
    assert_eq!(counter("discarded"), 2.0);
}

#[test]
fn unusable_samples_do_not_affect_the_rows() {
    let mut stage = stage(r#"{"length": 4}"#);
    let square = Item::new("square").with("input_ids", Tensor::<i64>::zeros([2, 2]));
    let small = Item::new("small").with("input_ids", Tensor::new([2], vec![7_i32, 8]).unwrap());
    let outcomes =
        stage.process(vec![document("a", &[3, 4]), Item::new("none"), document("empty", &[]), square, small]);
    assert_eq!((&outcomes[0], &outcomes[2]), (&Outcome::Held, &Outcome::Drop));
    assert!(matches!((&outcomes[1], &outcomes[3]), (Outcome::Failed(_), Outcome::Failed(_))), "{outcomes:?}");
    assert_eq!(
        content(&rows(&outcomes[4])[0]),
        ("small#0", [vec![3, 4, 7, 8], vec![1, 1, 2, 2], vec![0, 1, 0, 1]])
    );
}

#[test]
fn invalid_params_are_named() {
    assert_eq!(Instance::<Pack>::new(r#"{"length": 1}"#).unwrap_err(), "`length`: 1 is less than 2");
    let manifest = manifest::<Pack>();
    assert!(manifest.contains(r#""mode":"stateful","wants":["input_ids","attention_mask?"]"#), "{manifest}");
}

#[test]
fn a_saved_row_goes_on_in_another_instance() {
    let documents = || {
        (1..40).map(|number| document(&format!("document {number}"), &vec![number - 20; number as usize % 9]))
    };
    for params in [r#"{"length": 8, "separator": 300}"#, r#"{"length": 12, "split_documents": false}"#] {
        let mut whole = stage(params);
        let mut expected: Vec<Outcome> =
            documents().map(|item| whole.process(vec![item]).remove(0)).collect();
        expected.push(Outcome::Many(whole.finish()));
        let mut parts = stage(params);
        let mut found = Vec::new();
        for item in documents() {
            found.extend(parts.process(vec![item]));
            let saved = parts.save();
            parts = stage(params);
            if !saved.is_empty() {
                parts.load(&saved).unwrap();
            }
        }
        found.push(Outcome::Many(parts.finish()));
        assert_eq!(found, expected);
        assert!(parts.save().is_empty());
    }
}

#[test]
fn a_damaged_state_is_refused() {
    let mut full = stage(r#"{"length": 8}"#);
    full.process(vec![document("long", &[1; 12])]);
    let saved = full.save();
    for end in 0..saved.len() - "long".len() {
        assert!(stage(r#"{"length": 8}"#).load(&saved[..end]).is_err(), "{end}");
    }
    let refused = stage(r#"{"length": 4}"#).load(&saved).unwrap_err();
    assert_eq!(refused, "the saved row is longer than `length`");
    assert!(stage(r#"{"length": 8}"#).load(&[0xff; 20]).is_err());
}
