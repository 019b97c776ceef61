//! Tests of the delimiters, quotes and encodings of tables.

use std::collections::BTreeMap;

use penstock_engine::item::{Sample, Value};
use penstock_formats::{Damage, RecordFormat};
use penstock_types::spec::{OnDamage, TableForm, TextEncoding};
use penstock_types::traversal::TraversalSettings;
use proptest::prelude::*;

use crate::records::{Drained, drain_boxed, one, records};
use crate::store_of;

const SHUFFLED: TraversalSettings =
    TraversalSettings { seed: 3, shuffle: true, ..TraversalSettings::IN_ORDER };

fn form(delimiter: u8, quote: Option<u8>, encoding: TextEncoding) -> TableForm {
    TableForm { delimiter, is_named: true, quote, encoding }
}

/// Reads a table in order and shuffled. The samples, in order, and the fault are the same.
async fn read(bytes: &[u8], form: impl Into<TableForm>, damage: Damage) -> Drained {
    let store = store_of(&[("t.csv", bytes.to_vec())]).await;
    let format = RecordFormat::rows(form, BTreeMap::new()).with_damage(damage);
    let found = drain_boxed(records(&store, one("t.csv"), format.clone(), TraversalSettings::IN_ORDER)).await;
    let mut shuffled = drain_boxed(records(&store, one("t.csv"), format, SHUFFLED)).await;
    shuffled.samples.sort_by_key(|sample| sample.origin.index);
    let told = |found: &Drained| found.fault.as_ref().map(ToString::to_string);
    assert_eq!(told(&found), told(&shuffled));
    if found.fault.is_none() {
        assert_eq!(found.samples, shuffled.samples);
    }
    found
}

/// Names and values of the fields of each sample.
fn rows(samples: &[Sample]) -> Vec<Vec<(String, String)>> {
    let field = |field: &penstock_engine::item::Field| match &field.value {
        Value::Text(text) => (field.name.to_string(), text.clone()),
        other => panic!("{other:?}"),
    };
    samples.iter().map(|sample| sample.fields.iter().map(field).collect()).collect()
}

fn utf16(text: &str, is_big_endian: bool) -> Vec<u8> {
    let bytes = |unit: u16| if is_big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() };
    text.encode_utf16().flat_map(bytes).collect()
}

#[tokio::test]
async fn a_table_that_seems_to_have_another_delimiter_is_refused_unless_the_document_names_one() {
    let cases: [(&str, u8, Option<&str>); 22] = [
        (
            "name;age\ncafe;3\n",
            b',',
            Some(
                "is `name;age`, one column with the delimiter `,`, and 2 with `;`; set `\"delimiter\": \";\"` if that separates the \
                 columns, or `\"delimiter\": \",\"` to read them as they are",
            ),
        ),
        (
            "name\tage\ncafe\t3\n",
            b',',
            Some(
                "is `name\\tage`, one column with the delimiter `,`, and 2 with `\\t`; set `\"delimiter\": \"\\t\"`",
            ),
        ),
        ("name|age\r\ncafe|3\r\n", b',', Some("set `\"delimiter\": \"|\"`")),
        ("name\u{1}age\na\u{1}3\n", b',', Some("set `\"delimiter\": \"\\u0001\"`")),
        ("\"name\";\"age\"\n\"a\";\"3\"\n", b',', Some("and 2 with `;`")),
        ("\"name;age\"\n\"a;3\"\n", b',', Some("is `\"name;age\"`, one column with `;` in its name; set")),
        ("name;a|b\n1;2\n", b',', Some("and 2 with `;`")),
        // The comma of decimal numbers makes two columns of each row by chance.
        ("name;price,EUR;age\nx;1,5;3\n", b',', Some("2 columns with the delimiter `,`, and 3 with `;`")),
        ("a;b,c;d\n1;2,3;4\n", b',', Some("2 columns with the delimiter `,`, and 3 with `;`")),
        ("name;age,\ncafe;3,\n", b',', Some("is `name;age,`, one column with `;` in its name")),
        ("name,age\ncafe,3\n", b'\t', Some("set `\"delimiter\": \",\"`")),
        ("name;age\ncafe;3\n", b'\t', Some("set `\"delimiter\": \";\"`")),
        (
            "sep=;\nname;age\n",
            b',',
            Some(
                "is `sep=;`, by which spreadsheets name the delimiter; set `\"delimiter\": \";\"`, and the row is passed over",
            ),
        ),
        ("sep=,\nname,age\n", b',', Some("is `sep=,`")),
        ("\"sep=;\"\r\nname;age\r\n", b',', Some("is `\"sep=;\"`")),
        ("SEP=\t\nname\tage\n", b'\t', Some("is `SEP=\\t`")),
        (
            "sep=\nname,age\n",
            b',',
            Some("is `sep=`, by which spreadsheets name the delimiter; set `delimiter`"),
        ),
        // Names that hold such characters among other columns.
        ("id,genre|Action,genre|Drama\n1,0,1\n", b',', None),
        ("id,\"a;b;c\"\n1,2\n", b',', None),
        ("name, first\tage\nx\t1\n", b'\t', None),
        ("name\na;b\n", b',', None),
        ("sep=x1\na\n", b',', None),
    ];
    for (text, delimiter, told) in cases {
        let found = read(text.as_bytes(), delimiter, Damage::default()).await;
        match told {
            None => assert!(found.fault.is_none() && !found.samples.is_empty(), "{text}: {:?}", found.fault),
            Some(told) => {
                let fault = found.fault();
                let place = "line 1 of `t.csv` in store `data` ";
                assert!(
                    found.samples.is_empty() && fault.starts_with(place) && fault.contains(told),
                    "{text}: {fault}"
                );
                assert!(found.fault.is_some_and(|fault| !fault.is_damage));
                // What a setting cures is not left out.
                let damage = || Damage { policy: OnDamage::Skip, ..Damage::default() };
                assert!(read(text.as_bytes(), delimiter, damage()).await.fault.is_some(), "{text}");
            }
        }
    }
    for (text, delimiter, names, keys) in [
        ("name;age\ncafe;3\n", b',', vec!["name;age"], vec!["2"]),
        ("name;age\ncafe;3\n", b';', vec!["name", "age"], vec!["2"]),
        ("name;price,EUR;age\nx;1,5;3\n", b';', vec!["name", "price,EUR", "age"], vec!["2"]),
        ("sep=;\nname;age\ncafe;3\n\nx;4", b';', vec!["name", "age"], vec!["3", "4"]),
        ("\u{feff}\"sep=;\"\r\nname;age\r\ncafe;3\r\n", b';', vec!["name", "age"], vec!["3"]),
        ("sep=\nname\tage\ncafe\t3\n", b'\t', vec!["name", "age"], vec!["3"]),
        ("a b c\n1 \"2 x\" 3\n", b' ', vec!["a", "b", "c"], vec!["2"]),
    ] {
        let found =
            read(text.as_bytes(), form(delimiter, Some(b'"'), TextEncoding::Utf8), Damage::default()).await;
        assert_eq!(found.keys(), keys, "{text}");
        let named = rows(&found.samples);
        assert!(
            named.iter().all(|row| row.iter().map(|(name, _)| name.as_str()).eq(names.iter().copied())),
            "{named:?}"
        );
    }
    let other =
        read(b"sep=;\nname;age\n", form(b',', Some(b'"'), TextEncoding::Utf8), Damage::default()).await;
    assert!(
        other
            .fault()
            .ends_with("is `sep=;`, by which spreadsheets name the delimiter, and `delimiter` is `,`")
    );
}

#[tokio::test]
async fn quotes_are_other_characters_or_text() {
    let text = b"a,b\n'x, ''y''','1\n2'\n\"z\",'\"'\n";
    let found = read(text, form(b',', Some(b'\''), TextEncoding::Utf8), Damage::default()).await;
    let row = |a: &str, b: &str| vec![("a".to_owned(), a.to_owned()), ("b".to_owned(), b.to_owned())];
    assert_eq!(rows(&found.samples), [row("x, 'y'", "1\n2"), row("\"z\"", "\"")]);
    let text = b"a,b\n\"x,5\" tall\n\",\"\"\n";
    let found = read(text, form(b',', None, TextEncoding::Utf8), Damage::default()).await;
    assert_eq!(rows(&found.samples), [row("\"x", "5\" tall"), row("\"", "\"\"")]);
}

#[tokio::test]
async fn text_is_decoded_and_text_of_another_encoding_is_named() {
    use TextEncoding::{Latin1, Utf8, Utf16, Windows1252};
    let text = "name,note\nJosé,\"a\n€ 𝄞\"\n一,ÿ\n";
    let marked = |text: &str, is_big| [utf16("\u{feff}", is_big), utf16(text, is_big)].concat();
    let expected = [("José", "a\n€ 𝄞"), ("一", "ÿ")];
    for (number, bytes) in
        [utf16(text, false), utf16(text, true), marked(text, false), marked(text, true)].iter().enumerate()
    {
        let found = read(bytes, form(b',', Some(b'"'), Utf16), Damage::default()).await;
        let found = rows(&found.samples);
        let values: Vec<_> = found.iter().map(|row| (row[0].1.as_str(), row[1].1.as_str())).collect();
        assert_eq!(values, expected, "{number}");
    }
    // Excel writes "Unicode text" so: tabs in UTF-16 with a mark.
    let found =
        read(&marked("a\tb\r\n1\t2\r\n", false), form(b'\t', Some(b'"'), Utf16), Damage::default()).await;
    assert_eq!(found.keys(), ["2"]);
    let single = b"name\nJos\xe9 \x80\x9f\xff\n";
    let found = read(single, form(b',', Some(b'"'), Windows1252), Damage::default()).await;
    assert_eq!(rows(&found.samples)[0][0].1, "José €Ÿÿ");
    let found =
        read(b"name\nJos\xe9 \x80\x81\x9d\xff\n", form(b',', Some(b'"'), Latin1), Damage::default()).await;
    assert_eq!(rows(&found.samples)[0][0].1, "José \u{80}\u{81}\u{9d}ÿ");

    let utf32 = |text: &str, is_big: bool| -> Vec<u8> {
        let bytes = |c: char| if is_big { u32::from(c).to_be_bytes() } else { u32::from(c).to_le_bytes() };
        text.chars().flat_map(bytes).collect()
    };
    let cases: Vec<(Vec<u8>, TextEncoding, &str)> = vec![
        (utf16(text, false), Utf8, "is UTF-16; set `\"encoding\": \"utf-16\"`"),
        (utf16(text, true), Utf8, "is UTF-16; set `\"encoding\": \"utf-16\"`"),
        (marked(text, false), Utf8, "is UTF-16; set `\"encoding\": \"utf-16\"`"),
        (marked(text, true), Latin1, "is UTF-16; set `\"encoding\": \"utf-16\"`"),
        (utf16("一,b\n1,2\n", true), Utf8, "is the text UTF-16? then set `\"encoding\": \"utf-16\"`"),
        (utf16("一,b\n1,2\n", false), Windows1252, "is the text UTF-16? then set `\"encoding\": \"utf-16\"`"),
        (
            utf32(text, false),
            Utf8,
            "is UTF-32; it is not read: convert it, for example with `iconv -f UTF-32 -t UTF-8`",
        ),
        (utf32(text, true), Utf16, "is UTF-32; it is not read"),
        (utf32("\u{feff}a\n", false), Utf16, "is UTF-32; it is not read"),
        (utf32("\u{feff}a\n", true), Utf8, "is UTF-32; it is not read"),
        (text.as_bytes().to_vec(), Utf16, "is not UTF-16, which has zero bytes; remove `encoding`"),
        (
            [b"\xef\xbb\xbf", text.as_bytes()].concat(),
            Utf16,
            "is UTF-8, by its byte order mark; remove `encoding`",
        ),
        (
            [b"\xef\xbb\xbf", text.as_bytes()].concat(),
            Windows1252,
            "is UTF-8, by its byte order mark; remove `encoding`",
        ),
    ];
    for (bytes, encoding, told) in cases {
        let found = read(&bytes, form(b',', Some(b'"'), encoding), Damage::default()).await;
        let fault = found.fault();
        assert!(fault.starts_with("line 1 of `t.csv` in store `data` ") && fault.contains(told), "{fault}");
        assert!(found.fault.is_some_and(|fault| !fault.is_damage), "{told}");
    }
    for is_big in [false, true] {
        for text in [utf16("{\"a\": 1}\n", is_big), marked("{\"a\": 1}\n", is_big)] {
            let store = store_of(&[("n.ndjson", text)]).await;
            for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
                let format = RecordFormat::lines([].into());
                let found = drain_boxed(records(&store, one("n.ndjson"), format, settings)).await;
                assert_eq!(
                    found.fault(),
                    "line 1 of `n.ndjson` in store `data` is UTF-16; NDJSON is UTF-8: convert it, for example with `iconv -f UTF-16 -t UTF-8`"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_row_with_bytes_that_are_no_text_is_one_damaged_record() {
    use TextEncoding::{Utf8, Utf16, Windows1252};
    let units = |units: &[u16]| units.iter().flat_map(|unit| unit.to_le_bytes()).collect::<Vec<u8>>();
    let halves = |half: &[u16]| [utf16("a,b\n1,x\n2,", false), units(half), utf16("\n3,z\n", false)].concat();
    let cases: Vec<(Vec<u8>, TextEncoding, &str)> = vec![
        (
            b"a,b\n1,x\n2,caf\xe9\n3,z\n".to_vec(),
            Utf8,
            "is not UTF-8: it has the byte 0xe9 in the column `b`; set `encoding`, for example `\"encoding\": \"windows-1252\"`",
        ),
        (
            b"a,b\n1,x\n2,\x81\n3,z\n".to_vec(),
            Windows1252,
            "is not Windows-1252: no character is the byte 0x81 in the column `b`; `\"encoding\": \"latin-1\"` reads each byte as a character",
        ),
        (halves(&[0xd834]), Utf16, "is not UTF-16: it has half of a surrogate pair in the column `b`"),
        (halves(&[0xdd1e]), Utf16, "is not UTF-16: it has half of a surrogate pair in the column `b`"),
        (
            halves(&[0xdd1e, 0xd834]),
            Utf16,
            "is not UTF-16: it has half of a surrogate pair in the column `b`",
        ),
        (
            halves(&[0xd834, 0xd834, 0xdd1e]),
            Utf16,
            "is not UTF-16: it has half of a surrogate pair in the column `b`",
        ),
    ];
    for (bytes, encoding, told) in cases {
        let form = form(b',', Some(b'"'), encoding);
        let found = read(&bytes, form, Damage::default()).await;
        assert_eq!(found.fault(), format!("row 3 of `t.csv` in store `data` {told}"));
        let damage = Damage { policy: OnDamage::Skip, ..Damage::default() };
        assert_eq!(read(&bytes, form, damage).await.keys(), ["2", "4"], "{told}");
    }
    let utf_16 = form(b',', Some(b'"'), Utf16);
    let whole = utf16("a,b\n1,𝄞\n2,𝄞", false);
    for length in 10..whole.len() {
        let fault =
            read(&whole[..length], utf_16, Damage::default()).await.fault.map(|fault| fault.to_string());
        assert!(
            length % 2 == 0 || fault.is_some_and(|fault| fault.contains("is not UTF-16: it")),
            "{length}"
        );
    }
    let cut = read(&whole[..whole.len() - 2], utf_16, Damage::default()).await;
    assert_eq!(
        cut.fault(),
        "row 3 of `t.csv` in store `data` is not UTF-16: it has half of a surrogate pair in the column `b`"
    );
    assert!(
        read(b"a,caf\xe9\n1,2\n", b',', Damage::default())
            .await
            .fault()
            .contains("is not UTF-8: it has the byte 0xe9 in column 2")
    );
}

#[tokio::test]
async fn encoded_rows_across_block_borders_are_complete() {
    let mut text = "a,b\n".to_owned();
    let mut expected = Vec::new();
    for number in 0_usize.. {
        let value = format!("{}\"\r\n,{number}", "𝄞é一".repeat(number * 7919 % 9_001));
        text.push_str(&format!("{number},\"{}\"\r\n", value.replace('"', "\"\"")));
        expected.push(value);
        if text.len() > 5 << 20 {
            break;
        }
    }
    for is_big in [false, true] {
        // Blocks end within units and pairs.
        let bytes = utf16(&text, is_big);
        let found = read(&bytes, form(b',', Some(b'"'), TextEncoding::Utf16), Damage::default()).await;
        assert!(rows(&found.samples).iter().map(|row| &row[1].1).eq(&expected));
    }
    let latin = text.replace(['𝄞', '一'], "ü");
    let bytes: Vec<u8> = latin.chars().map(|character| u8::try_from(character).unwrap()).collect();
    let found = read(&bytes, form(b',', Some(b'"'), TextEncoding::Latin1), Damage::default()).await;
    let of_latin = expected.iter().map(|value| value.replace(['𝄞', '一'], "ü"));
    assert!(rows(&found.samples).iter().map(|row| row[1].1.clone()).eq(of_latin));
}

#[tokio::test]
async fn the_order_of_bytes_is_found_where_no_line_ends_with_a_line_feed() {
    let form = form(b',', Some(b'"'), TextEncoding::Utf16);
    for is_big in [false, true] {
        let found = read(&utf16("name,b\rx,2\ry,3", is_big), form, Damage::default()).await;
        assert!(found.fault.is_none(), "{:?}", found.fault);
        assert_eq!(
            rows(&found.samples)[1],
            [("name".to_owned(), "y".to_owned()), ("b".to_owned(), "3".to_owned())]
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn tables_of_any_form_are_read_as_written(
        values in proptest::collection::vec(["[a'\"\\n\\r,;|\\t éü€Ÿ]{1,6}", "[a'\"\\n\\r,;|\\t éü€Ÿ]{1,6}"], 0..9),
        delimiter in proptest::sample::select(vec![b',', b';', b'|', b'\t', b' ', 1]),
        quote in proptest::sample::select(vec![b'"', b'\'']), encoding in 0..4_u8, is_big: bool, marked: bool, crlf: bool, ends: bool,
    ) {
        let (end, quoted) = (if crlf { "\r\n" } else { "\n" }, char::from(quote));
        let field = |value: &str| format!("{quoted}{}{quoted}", value.replace(quoted, &format!("{quoted}{quoted}")));
        let delimited = |[a, b]: &[String; 2]| format!("{}{}{}", field(a), char::from(delimiter), field(b));
        let latin = |text: &str| if encoding == 3 { text.replace(['€', 'Ÿ'], "é") } else { text.to_owned() };
        let written: Vec<[String; 2]> = values.iter().map(|[a, b]| [latin(a), latin(b)]).collect();
        let header = ["first".to_owned(), "second".to_owned()];
        let mut text = std::iter::once(&header).chain(&written).map(delimited).collect::<Vec<_>>().join(end);
        if ends {
            text.push_str(end);
        }
        let single = |character: char| match character {
            '€' => 0x80,
            'Ÿ' => 0x9f,
            other => u8::try_from(other).unwrap(),
        };
        let (encoding, bytes) = match encoding {
            0 => (TextEncoding::Utf8, text.into_bytes()),
            1 => (TextEncoding::Utf16, utf16(&format!("{}{text}", if marked { "\u{feff}" } else { "" }), is_big)),
            2 => (TextEncoding::Windows1252, text.chars().map(single).collect()),
            _ => (TextEncoding::Latin1, text.chars().map(single).collect()),
        };
        // Without a line end nor a mark, nothing tells the order of the bytes.
        prop_assume!(!(encoding == TextEncoding::Utf16 && is_big && !marked && !ends && written.is_empty()));
        let form = form(delimiter, Some(quote), encoding);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let found = runtime.block_on(read(&bytes, form, Damage::default()));
        prop_assert!(found.fault.is_none(), "{:?}", found.fault);
        let found: Vec<Vec<String>> =
            rows(&found.samples).into_iter().map(|row| row.into_iter().map(|(_, value)| value).collect()).collect();
        prop_assert_eq!(found, written.iter().map(|row| row.to_vec()).collect::<Vec<_>>());
    }
}
