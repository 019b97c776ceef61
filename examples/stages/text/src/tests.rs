use std::path::PathBuf;

use penstock_guest::prelude::*;
use penstock_guest::testing::{Instance, counter, set_asset, set_memory_limit};
use serde_json::Value as Json;

use super::*;

/// Folder of the fixtures; `PENSTOCK_TEXT_DATA` names one with more lines, made by `reference.py`.
fn data() -> PathBuf {
    let usual = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    std::env::var_os("PENSTOCK_TEXT_DATA").map_or_else(|| usual.into(), PathBuf::from)
}

fn file(name: &str) -> Vec<u8> {
    let path = data().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn stage(model: &str, params: &str) -> Result<Instance<Text>, String> {
    set_asset("tokenizer", &file(model));
    Instance::new(params)
}

/// A stage that starts with this many bytes of memory.
fn with_memory<T>(bytes: u64, start: impl FnOnce() -> T) -> T {
    set_memory_limit(bytes);
    let started = start();
    set_memory_limit(DEFAULT_MEMORY_BYTES);
    started
}

fn ids(stage: &mut Instance<Text>, text: &str) -> Vec<i64> {
    match stage.process(vec![Item::new("line").with("text", text)]).remove(0) {
        Outcome::Keep(item) => item.tensor::<i64>("input_ids").unwrap().as_slice().to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tokens_are_those_of_the_library() {
    let expected: Json = serde_json::from_slice(&file("expected.json")).unwrap();
    let lines = expected["lines"].as_array().unwrap();
    assert!(lines.len() >= 100);
    for (params, kind) in [("{}", "whole"), (r#"{"max_length": 16, "pad": true}"#, "padded")] {
        for model in ["bpe", "wordpiece", "unigram"] {
            let mut stage = stage(&format!("{model}.json"), params).unwrap();
            for (line, expected) in lines.iter().zip(expected[model][kind].as_array().unwrap()) {
                let found = ids(&mut stage, line.as_str().unwrap());
                assert_eq!(&serde_json::json!(found), expected, "{model}, {kind}: {line}");
            }
        }
    }
}

#[test]
fn texts_are_truncated_padded_and_masked_at_either_end() {
    let run = |params: &str| {
        let item = Item::new("line").with("text", "aa bb cc").with("other", 1);
        match stage("wordpiece.json", params).unwrap().process(vec![item]).remove(0) {
            Outcome::Keep(item) => {
                assert!(item.get("text").is_none() && item.get("other").is_some());
                let numbers = |name| item.tensor::<i64>(name).unwrap().as_slice().to_vec();
                (numbers("input_ids"), numbers("attention_mask"))
            }
            other => panic!("{other:?}"),
        }
    };
    let (whole, mask) = run("{}");
    assert_eq!((whole[0], whole[whole.len() - 1], mask), (2, 3, vec![1; whole.len()]));
    let inner = &whole[1..whole.len() - 1];
    assert_eq!(run(r#"{"max_length": 4}"#).0, [&[2], &inner[..2], &[3]].concat());
    assert_eq!(
        run(r#"{"max_length": 4, "truncation_side": "left"}"#).0,
        [&[2], &inner[inner.len() - 2..], &[3]].concat()
    );
    let length = whole.len() + 2;
    let (padded, mask) = run(&format!(r#"{{"max_length": {length}, "pad": true, "padding_side": "left"}}"#));
    assert_eq!(padded, [&[0, 0], &whole[..]].concat());
    assert_eq!(mask, [vec![0, 0], vec![1; whole.len()]].concat());
    assert_eq!(run(r#"{"add_special_tokens": false}"#).0, inner);
}

#[test]
fn a_text_counts_as_truncated_exactly_if_tokens_are_missing() {
    const WORDS: &[u8] = br#"{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2, "?": 3}, "unk_token": "?"}}"#;
    for (text, side, expected, truncated) in [
        ("a b c", "right", [0, 1, 2], 0.0),
        ("a b c", "left", [0, 1, 2], 0.0),
        ("a b c a", "right", [0, 1, 2], 1.0),
        ("a b c a", "left", [1, 2, 0], 1.0),
        ("a b c a b c", "right", [0, 1, 2], 1.0),
    ] {
        penstock_guest::testing::reset();
        set_asset("tokenizer", WORDS);
        let params = format!(r#"{{"max_length": 3, "truncation_side": "{side}"}}"#);
        assert_eq!(ids(&mut Instance::new(&params).unwrap(), text), expected, "{text}, {side}");
        assert_eq!(counter("truncated"), truncated, "{text}, {side}");
    }
    let params = r#"{"max_length": 1, "add_special_tokens": false}"#;
    assert_eq!(ids(&mut stage("wordpiece.json", params).unwrap(), "aa bb cc").len(), 1);
}

#[test]
fn short_texts_are_dropped_and_counted() {
    penstock_guest::testing::reset();
    let mut stage = stage("bpe.json", r#"{"min_tokens": 1, "max_length": 2}"#).unwrap();
    let outcomes =
        stage.process(vec![Item::new("a").with("text", ""), Item::new("b").with("text", "a b c d e f")]);
    assert!(matches!(&outcomes[..], [Outcome::Drop, Outcome::Keep(_)]), "{outcomes:?}");
    assert_eq!((counter("dropped"), counter("truncated"), counter("tokens")), (1.0, 1.0, 2.0));
}

#[test]
fn texts_outside_of_the_filters_are_dropped() {
    for (filters, kept, dropped) in [
        (r#"{"min_chars": 3}"#, "äöü", "äö"),
        (r#"{"max_chars": 3}"#, "äöü", "äöüß"),
        (r#"{"min_letters": 0.5}"#, "ab 1 2", "ab 1 2 3"),
        (r#"{"max_repeated_lines": 0.25}"#, "a\nb\n\nc\n a", "a\nb\n\na"),
        (r#"{"contains": "(?i)water|fire"}"#, "Fire!", "earth"),
        (r#"{"lacks": "^\\s*lorem"}"#, "a lorem", " lorem"),
        ("{}", "", ""),
    ] {
        let mut stage = stage("bpe.json", filters).unwrap();
        let mut outcome = |text: &str| stage.process(vec![Item::new("a").with("text", text)]).remove(0);
        assert!(matches!(outcome(kept), Outcome::Keep(_)), "{filters}: {kept}");
        assert_eq!(matches!(outcome(dropped), Outcome::Drop), filters != "{}", "{filters}: {dropped}");
    }
    let told = stage("bpe.json", r#"{"lacks": "("}"#).unwrap_err();
    assert!(told.starts_with("`lacks`: regex parse error"), "{told}");
}

#[test]
fn long_texts_have_the_right_tokens_or_are_refused() {
    let mut stage = stage("bpe.json", "{}").unwrap();
    let spaces = " ".repeat(499_990);
    let found = ids(&mut stage, &format!("{spaces} ab"));
    // All spaces but the one before the word are one piece, which has the same tokens alone.
    let mut expected = ids(&mut stage, &spaces);
    expected.extend(ids(&mut stage, " ab"));
    assert_eq!(found, expected);
    assert_eq!(
        failure(&mut stage, &"a".repeat(500_001)),
        "the text has 500001 bytes, more than the limit of 500000; split it first, or raise `memory_mib`"
    );
}

fn failure(stage: &mut Instance<Text>, text: &str) -> String {
    match stage.process(vec![Item::new("a").with("text", text)]).remove(0) {
        Outcome::Failed(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// A text of more than 500,000 bytes, of all scripts.
fn long_text() -> String {
    let expected: Json = serde_json::from_slice(&file("expected.json")).unwrap();
    let lines: Vec<&str> = expected["lines"].as_array().unwrap().iter().filter_map(Json::as_str).collect();
    let text = lines.join(" ");
    text.repeat(520_000 / text.len() + 1)
}

#[test]
fn a_long_text_that_is_truncated_has_the_tokens_of_the_whole() {
    let text = long_text();
    for model in ["bpe", "wordpiece", "unigram"] {
        let whole = ids(
            &mut with_memory(5 << 30, || {
                stage(&format!("{model}.json"), r#"{"add_special_tokens": false}"#).unwrap()
            }),
            &text,
        );
        for length in [3, 128, 3000] {
            for side in ["left", "right"] {
                penstock_guest::testing::reset();
                let params = format!(
                    r#"{{"max_length": {length}, "truncation_side": "{side}", "add_special_tokens": false, "pad": true}}"#
                );
                let found = ids(&mut stage(&format!("{model}.json"), &params).unwrap(), &text);
                let expected =
                    if side == "right" { &whole[..length] } else { &whole[whole.len() - length..] };
                assert!(found == expected, "{model}, {length}, {side}");
                assert_eq!(
                    (counter("cut"), counter("truncated"), counter("tokens")),
                    (1.0, 1.0, length as f64)
                );
            }
        }
        penstock_guest::testing::reset();
    }
    let found = ids(&mut stage("wordpiece.json", r#"{"max_length": 16}"#).unwrap(), &text);
    assert_eq!((found.len(), found[0], found[15]), (16, 2, 3));
}

#[test]
fn a_long_text_of_which_no_part_has_certain_tokens_is_refused_or_split_whole() {
    let told = "and the tokens to keep cannot be determined from a part of it; split it first";
    for side in ["left", "right"] {
        let params = format!(r#"{{"max_length": 8, "truncation_side": "{side}"}}"#);
        let mut stage = stage("bpe.json", &params).unwrap();
        // One word without an end.
        let reason = failure(&mut stage, &"ab".repeat(300_000));
        assert!(reason.contains(told), "{reason}");
    }
    // Words of fixed lengths from the start on, which a part without the start does not have.
    let fixed = String::from_utf8(file("bpe.json")).unwrap();
    let at = fixed.find(r#""pre_tokenizer":"#).unwrap() + r#""pre_tokenizer":"#.len();
    let end = at + fixed[at..].find('}').unwrap() + 1;
    let fixed = [&fixed[..at], r#"{"type":"FixedLength","length":5}"#, &fixed[end..]].concat();
    set_asset("tokenizer", fixed.as_bytes());
    let text = "abcdefg".repeat(80_000);
    let params = r#"{"max_length": 8, "truncation_side": "left", "add_special_tokens": false}"#;
    let mut left = Instance::<Text>::new(params).unwrap();
    // Words that differ by where they begin may still have the same tokens, as letters do that are never joined.
    for text in [&text, &(0..80_000).map(|number| format!("{number:07}")).collect()] {
        let whole = ids(&mut with_memory(5 << 30, || Instance::<Text>::new("{}").unwrap()), text);
        assert_eq!(ids(&mut left, text), whole[whole.len() - 8..]);
    }
    let mut right = Instance::<Text>::new(r#"{"max_length": 8}"#).unwrap();
    assert_eq!(ids(&mut right, &text), ids(&mut right, &text[..1000]));
    // A word in which the regular expression gives up.
    let mut whole = with_memory(5 << 30, || stage("bpe.json", "{}").unwrap());
    let reason = failure(&mut whole, &format!("{}a", " ".repeat(1_200_000)));
    assert!(reason.starts_with("the tokenizer sees a word of "), "{reason}");
}

#[test]
fn tokenizers_and_params_that_cannot_work_are_refused() {
    let refused = |model: &str, params: &str| stage(model, params).unwrap_err();
    for (params, told) in [
        (r#"{"pad": true}"#, "`pad` needs `max_length`"),
        (r#"{"max_length": 2}"#, "`max_length` is 2, but the model adds 2 special tokens"),
        (r#"{"max_length": 9, "pad": true, "pad_token": "nothing"}"#, "the tokenizer has no token `nothing`"),
    ] {
        let error = refused("wordpiece.json", params);
        assert!(error.contains(told), "{error}");
    }
    let random =
        String::from_utf8(file("bpe.json")).unwrap().replacen("\"dropout\":null", "\"dropout\":0.1", 1);
    set_asset("tokenizer", random.as_bytes());
    let error = Instance::<Text>::new("{}").unwrap_err();
    assert!(error.contains("drops merges at random (`dropout` 0.1)"), "{error}");
    for broken in [
        &b"{}"[..],
        b"",
        b"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": [\"a b\"]}}",
        &[b'['; 100_000],
    ] {
        set_asset("tokenizer", broken);
        let error = Instance::<Text>::new("{}").expect_err(&String::from_utf8_lossy(broken));
        assert!(error.contains("is not a tokenizer.json that can be read"), "{error}");
    }
}
