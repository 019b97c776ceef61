use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::index::write_index;

fn read(index: &[u8], size: usize) -> Result<PackedKeys, String> {
    let mut parser = Parser::default();
    let read = index.chunks(size).try_for_each(|block| parser.read(block));
    read.and_then(|()| parser.finish()).map_err(|fault| fault.to_string())
}

fn keys(index: &str, size: usize) -> Vec<String> {
    let keys = read(index.as_bytes(), size).unwrap_or_else(|reason| panic!("{index}: {reason}"));
    keys.iter().collect()
}

#[test]
fn keys_come_in_the_order_of_the_index_for_any_block_size() {
    let index = "\u{feff} [\r\n\t\"b/2.jpg\" ,\"a\\u002f1.jpg\",\n\"b/2.jpg\", \"na\\u00efve \\\"\u{1f5bb}\\\" \\\\\" ] \n";
    let expected = ["b/2.jpg", "a/1.jpg", "b/2.jpg", "na\u{ef}ve \"\u{1f5bb}\" \\"];
    for size in [3, 4, 5, 7, 16, 1000] {
        assert_eq!(keys(index, size), expected, "in blocks of {size} bytes");
    }
    let escaped = format!(r#"["{}"]"#, r"\u0061".repeat(1024));
    assert_eq!(keys(&escaped, 100), ["a".repeat(1024)]);
}

#[test]
fn each_malformed_index_is_reported_with_place_and_reason() {
    let long_key = format!(r#"["a", "{}"]"#, "k".repeat(1025));
    let long_text = format!(r#"["a", "{}"#, "k".repeat(1 << 20));
    let indexes: [&[u8]; 43] = [
        b"",
        b" \n\t ",
        b"[]",
        b"[ ]\n",
        b"{}",
        br#"{"keys": ["a"]}"#,
        b"null",
        b"17",
        br#""a.jpg""#,
        b"a.jpg\nb.jpg\n",
        br#"('a.jpg',)"#,
        b"# keys\n[]",
        b"[",
        br#"["a.jpg""#,
        br#"["a.jpg", "#,
        br#"["a.jpg", "b.j"#,
        br#"["a.jpg", "b.j\"#,
        br#"["a.jpg",]"#,
        br#"[,"a.jpg"]"#,
        br#"["a.jpg",,"b.jpg"]"#,
        br#"["a.jpg" "b.jpg"]"#,
        br#"["a.jpg"; "b.jpg"]"#,
        br#"["a.jpg", 7]"#,
        br#"["a.jpg", -1.5]"#,
        br#"["a.jpg", NaN]"#,
        br#"["a.jpg", Infinity]"#,
        br#"["a.jpg", null]"#,
        br#"["a.jpg", true, "b.jpg"]"#,
        br#"["a.jpg", {"key": "b.jpg"}]"#,
        br#"["a.jpg", ["b.jpg"]]"#,
        br#"['a.jpg']"#,
        br#"["a.jpg", // first
            "b.jpg"]"#,
        br#"["a.jpg"] ["b.jpg"]"#,
        br#"["a.jpg"]]"#,
        b"[\"a.jpg\"]\n\0",
        br#"["a.jpg", ""]"#,
        br#"["a.jpg", "b/../../c.jpg"]"#,
        br#"["s3://bucket/a.jpg"]"#,
        br#"["a\u0000.jpg"]"#,
        br#"["a\ud800.jpg"]"#,
        br#"["a\x.jpg"]"#,
        b"[\"a\tb\nc.jpg\"]",
        b"[\"caf\xe9.jpg\"]",
    ];
    let mut reported = String::new();
    for index in indexes {
        let reason = read(index, 4096).unwrap_err();
        writeln!(reported, "{}\n  the index {reason}\n", index.escape_ascii()).unwrap();
    }
    for (index, what) in [(&long_key, "a key of 1025 bytes"), (&long_text, "a text without end")] {
        writeln!(reported, "({what})\n  the index {}\n", read(index.as_bytes(), 4096).unwrap_err()).unwrap();
    }
    for (index, what) in [(b"\xff\xfe[\0", "UTF-16"), (b"\x1f\x8b\x08\0", "gzip")] {
        writeln!(reported, "({what})\n  the index {}\n", read(index, 4096).unwrap_err()).unwrap();
    }
    insta::assert_snapshot!(reported);
}

proptest! {
    #[test]
    fn a_written_index_is_read_back_unchanged(
        written in proptest::collection::vec("[^/\0]{1,30}(/[^/\0]{1,9})?", 1..20), size in 3_usize..50,
    ) {
        let mut keys = PackedKeys::default();
        written.iter().filter(|key| check_named_key(key).is_ok()).for_each(|key| keys.push(key));
        prop_assume!(!keys.is_empty());
        let mut index = Vec::new();
        write_index(&keys, &mut index).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Vec<String>>(&index).unwrap(), keys.iter().collect::<Vec<_>>());
        prop_assert_eq!(read(&index, size), Ok(keys));
    }

    #[test]
    fn the_parser_accepts_the_same_indexes_as_serde_json(
        index in r#"(\[|\[ ?("[a-c\\"u0]{0,5}",? ?){0,4}|["\[\],1 {}]{0,9}){1}(\]|\] ?.{0,2}|)"#, size in 3_usize..30,
    ) {
        let expected = serde_json::from_str::<Vec<String>>(&index).ok();
        let expected = expected.filter(|keys| !keys.is_empty() && keys.iter().all(|key| check_named_key(key).is_ok()));
        let read = read(index.as_bytes(), size).ok();
        let read: Option<Vec<String>> = read.map(|keys| keys.iter().collect());
        prop_assert_eq!(read, expected);
    }
}
