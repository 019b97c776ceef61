use penstock_guest::testing::{Instance, counter, manifest, reset, set_asset};

use super::*;

/// One token per letter: `a` is 3, `b` is 4 and so on.
const LETTERS: &[u8] = b"<unk>\n<eos>\n<pad>\na\nb\nc\nd\n";

fn stage(params: &str) -> Instance<PackTokens> {
    reset();
    set_asset("vocabulary", LETTERS);
    Instance::new(params).unwrap()
}

fn document(key: &str, text: &str) -> Item {
    Item::new(key).with("text", text)
}

fn numbers(item: &Item, name: &str) -> Vec<i32> {
    item.tensor::<i32>(name).unwrap().as_slice().to_vec()
}

/// Key of the item, and the values of its three tensors.
fn content(item: &Item) -> (&str, [Vec<i32>; 3]) {
    (item.key(), ["tokens", "documents", "positions"].map(|name| numbers(item, name)))
}

#[test]
fn documents_are_packed_one_after_the_other() {
    let mut stage = stage(r#"{"length": 5}"#);
    let outcomes = stage.process(vec![document("one", "ab"), document("two", "cda"), document("three", "b")]);
    assert_eq!(outcomes[0], Outcome::Held);
    let Outcome::Many(full) = &outcomes[1] else { panic!("{outcomes:?}") };
    assert_eq!(content(&full[0]), ("two#0", [vec![3, 4, 1, 5, 6], vec![1, 1, 1, 2, 2], vec![0, 1, 2, 0, 1]]));
    assert_eq!((full.len(), &outcomes[2]), (1, &Outcome::Held));
    let rest = stage.finish();
    // The rest of `two` is the first document of this sequence.
    assert_eq!(
        content(&rest[0]),
        ("three#0", [vec![3, 1, 4, 1, 2], vec![1, 1, 2, 2, 0], vec![0, 1, 0, 1, 0]])
    );
    assert_eq!(rest.len(), 1);
    let counters = ["tokens", "fallback", "padding", "discarded"].map(counter);
    assert_eq!(counters, [9.0, 0.0, 1.0, 0.0]);
}

#[test]
fn a_long_document_fills_several_sequences() {
    let mut stage = stage(r#"{"length": 4}"#);
    let outcomes = stage.process(vec![document("long", "abcdabcdabcd")]);
    let Outcome::Many(full) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(full.iter().map(Item::key).collect::<Vec<_>>(), ["long#0", "long#1", "long#2"]);
    assert!(full.iter().all(|item| numbers(item, "tokens") == [3, 4, 5, 6]));
    let rest = stage.finish();
    assert_eq!(content(&rest[0]), ("long#3", [vec![1, 2, 2, 2], vec![1, 0, 0, 0], vec![0; 4]]));
}

#[test]
fn epochs_never_share_a_sequence() {
    let mut stage = stage(r#"{"length": 4}"#);
    for _ in 0..2 {
        assert_eq!(stage.process(vec![document("a", "ab")]), [Outcome::Held]);
        let rest = stage.finish();
        assert_eq!(numbers(&rest[0], "tokens"), [3, 4, 1, 2]);
        assert!(stage.finish().is_empty());
    }
}

#[test]
fn an_incomplete_sequence_can_be_dropped() {
    let mut stage = stage(r#"{"length": 4, "last": "drop", "pad": "<none>"}"#);
    let outcomes = stage.process(vec![document("a", "abcda")]);
    assert!(matches!(&outcomes[0], Outcome::Many(full) if full.len() == 1));
    assert!(stage.finish().is_empty());
    assert_eq!((counter("discarded"), counter("padding")), (2.0, 0.0));
}

#[test]
fn an_exactly_full_sequence_leaves_no_rest() {
    let mut stage = stage(r#"{"length": 3}"#);
    let outcomes = stage.process(vec![document("a", "ab")]);
    assert!(matches!(&outcomes[0], Outcome::Many(full) if numbers(&full[0], "tokens") == [3, 4, 1]));
    assert!(stage.finish().is_empty());
}

#[test]
fn unusable_samples_do_not_affect_the_sequences() {
    let mut stage = stage(r#"{"length": 4}"#);
    let outcomes =
        stage.process(vec![document("a", "a"), Item::new("none"), document("empty", ""), document("b", "b")]);
    let refused = Outcome::Failed("no field `text`: the item has no fields that this stage reads".to_owned());
    assert_eq!(outcomes[..3], [Outcome::Held, refused, Outcome::Drop]);
    let Outcome::Many(full) = &outcomes[3] else { panic!("{outcomes:?}") };
    assert_eq!(content(&full[0]), ("b#0", [vec![3, 1, 4, 1], vec![1, 1, 2, 2], vec![0, 1, 0, 1]]));
}

#[test]
fn letters_without_a_token_are_counted() {
    let mut stage = stage(r#"{"length": 4}"#);
    stage.process(vec![document("a", "xay")]);
    assert_eq!((counter("tokens"), counter("fallback")), (4.0, 2.0));
}

#[test]
fn invalid_params_and_assets_are_named() {
    reset();
    let refused = |params: &str| Instance::<PackTokens>::new(params).unwrap_err();
    assert!(
        refused("{}").starts_with("the stage requires `assets: {\"vocabulary\": ...}`: "),
        "{}",
        refused("{}")
    );
    set_asset("vocabulary", b"<unk>\n<eos>\n");
    assert_eq!(
        refused("{}"),
        "`pad`: the vocabulary has no token `<pad>`; its special tokens are: `<unk>`, `<eos>`"
    );
    assert_eq!(
        refused(r#"{"separator": "</s>", "last": "drop"}"#),
        "`separator`: the vocabulary has no token `</s>`; its special tokens are: `<unk>`, `<eos>`"
    );
    assert_eq!(refused(r#"{"length": 1}"#), "`length`: 1 is less than 2");
    set_asset("vocabulary", b"a");
    assert!(refused("{}").contains("neither `<0x00>` to `<0xFF>` nor `<unk>`"));
}

#[test]
fn the_manifest_declares_stateful_mode() {
    let manifest = manifest::<PackTokens>();
    assert!(
        manifest.contains(r#""mode":"stateful","wants":["text"],"makes":["tokens","documents","positions"]"#)
    );
}
