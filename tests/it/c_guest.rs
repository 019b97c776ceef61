//! A stage written in C, without Rust code of Penstock: the stage follows the contract, and no input makes it access memory out
//! of bounds.

use penstock_engine::item::{Dtype, Item, Value};
use penstock_tests::{Call, Folder, lines, module, repository, shown};
use penstock_types::run::FailureRecord;

use crate::delivered::Example;

/// Creates a WAV file of 16-bit samples.
fn wav(channels: u16, samples: impl IntoIterator<Item = i16>) -> Vec<u8> {
    let data: Vec<u8> = samples.into_iter().flat_map(i16::to_le_bytes).collect();
    let length = |more: usize| (data.len() as u32 + more as u32).to_le_bytes();
    let block = 2 * channels;
    let rates = [16_000_u32.to_le_bytes(), (16_000 * u32::from(block)).to_le_bytes()].concat();
    let format =
        [&[16, 0, 0, 0, 1, 0][..], &channels.to_le_bytes(), &rates, &block.to_le_bytes(), &[16, 0]].concat();
    [b"RIFF", &length(36)[..], b"WAVEfmt ", &format, b"data", &length(0), &data].concat()
}

/// Key, shape and classes of every sample, sorted by key.
fn encoded(folder: &Folder) -> Vec<(String, Vec<u32>, Vec<u8>)> {
    let (_, items) = Example::new("mu-law.json", &["mu-law"]).store("audio", folder.path()).run();
    let of = |item| match item {
        Item::Sample(sample) => match sample.fields.as_slice() {
            [field] if &*field.name == "codes" => match &field.value {
                Value::Tensor(tensor) if tensor.dtype == Dtype::Uint8 => {
                    (sample.key.to_string(), tensor.shape.clone(), tensor.data.to_vec())
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let mut encoded: Vec<_> = items.into_iter().map(of).collect();
    encoded.sort();
    encoded
}

#[test]
fn every_sample_has_the_class_of_the_formula() {
    let folder = Folder::new();
    folder.write("all.wav", wav(1, i16::MIN..=i16::MAX));
    let expected: Vec<u8> = (i16::MIN..=i16::MAX)
        .map(|sample| {
            let x = f64::from(sample) / 32_768.0;
            let companded = x.signum() * (255.0 * x.abs()).ln_1p() / 256_f64.ln();
            // Zero has no sign.
            if sample == 0 { 128 } else { ((companded + 1.0) / 2.0 * 255.0 + 0.5) as u8 }
        })
        .collect();
    assert_eq!(encoded(&folder), [("all.wav".to_owned(), vec![65_536, 1], expected)]);
}

#[test]
fn channels_are_interleaved_and_empty_files_have_no_frames() {
    let folder = Folder::new();
    folder.write("empty.wav", wav(1, []));
    folder.write("stereo.wav", wav(2, [0, i16::MAX, i16::MIN, 0, 0, 0]));
    // A file larger than the module's initial memory.
    folder.write("long.wav", wav(1, vec![0; 3_000_000]));
    let encoded = encoded(&folder);
    assert_eq!(encoded[0], ("empty.wav".to_owned(), vec![0, 1], vec![]));
    assert_eq!(
        (encoded[1].1.as_slice(), encoded[1].2.iter().all(|&class| class == 128)),
        (&[3_000_000, 1][..], true)
    );
    assert_eq!(encoded[2], ("stereo.wav".to_owned(), vec![3, 2], vec![128, 255, 0, 128, 128, 128]));
}

#[test]
fn damaged_files_are_named_and_no_call_ends_in_a_trap() {
    let folder = Folder::new();
    let whole = wav(1, 0..50);
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    folder.write("0-whole.wav", &whole);
    folder.write("1-empty.wav", b"");
    folder.write("2-no-wave.wav", changed(8, b"WAVY"));
    folder.write("3-format-past-the-end.wav", changed(16, &u32::MAX.to_le_bytes()));
    folder.write("4-short-format.wav", changed(16, &[2]));
    folder.write("5-float.wav", changed(20, &[3]));
    folder.write("6-no-channels.wav", changed(22, &[0]));
    folder.write("7-many-channels.wav", changed(22, &[0xff, 0xff]));
    folder.write("8-more-data-than-there-is.wav", changed(40, &0x7fff_ffff_u32.to_le_bytes()));
    folder.write("9-half-a-frame.wav", changed(40, &[99]));
    folder.write("a-unknown-chunk-past-the-end.wav", changed(36, b"junk\xff\xff\xff\xff"));
    folder.write("b-no-data.wav", &whole[..36]);
    let out = Folder::new();
    let call = Call::run(&repository().join("examples/pipelines/mu-law.json")).store("audio", folder.path());
    let call = call.set("/max_failures=null");
    let finished = call.module("mu-law", "mu-law").out(out.path()).finish().exits(0);
    let total = finished.snapshot().ledger.total;
    assert_eq!((total.delivered, total.skipped), (1, 11));
    let mut errors: Vec<FailureRecord> = lines(&out.join("errors.ndjson"));
    errors.sort_by_key(|error| error.index);
    shown().bind(|| insta::assert_json_snapshot!(errors));
}

/// The section with the types of the contract is stored beside the stage, as the Rust toolchain wrote it; with
/// `UPDATE_COMPONENT_TYPE=1` this test updates it.
#[test]
fn the_types_of_the_c_module_agree_with_the_contract() {
    let file = repository().join("guest-sdk/c/component-type.bin");
    let rust = std::fs::read(module("text-filter")).unwrap();
    let wanted = type_section(&rust);
    if std::env::var_os("UPDATE_COMPONENT_TYPE").is_some() {
        std::fs::write(&file, wanted).unwrap();
    }
    assert!(
        contract(&std::fs::read(&file).unwrap()) == contract(wanted),
        "guest-sdk/wit/stage.wit or wit-bindgen changed: compare penstock.h with the contract, and run this test once with \
         UPDATE_COMPONENT_TYPE=1"
    );
}

/// The SDK contains the code that wit-bindgen generates; `guest-batch` generates it by macro from the same contract.
#[test]
fn the_bindings_of_the_sdk_agree_with_the_contract() {
    let [sdk, generated] = ["text-filter", "guest-batch"].map(|name| std::fs::read(module(name)).unwrap());
    assert!(
        contract(type_section(&sdk)) == contract(type_section(&generated)),
        "guest-sdk/wit/stage.wit or wit-bindgen changed: generate the bindings of the SDK with `make bindings`"
    );
}

/// Content of the custom section with which wit-bindgen declares the world `stage` of a module.
fn type_section(module: &[u8]) -> &[u8] {
    let mut rest = &module[8..];
    while let [id, after @ ..] = rest {
        let (length, after) = number(after);
        let (section, next) = after.split_at(length);
        if *id == 0 {
            let (length, after) = number(section);
            let (name, content) = after.split_at(length);
            if name.starts_with(b"component-type:") && name.windows(7).any(|part| part == b":stage:") {
                return content;
            }
        }
        rest = next;
    }
    panic!("no section with the types")
}

/// A type section without its last part, which names the programs that wrote the section.
fn contract(section: &[u8]) -> &[u8] {
    let end = section.windows(9).position(|part| part == b"producers").unwrap();
    &section[..end]
}

/// Decodes a LEB128 number; returns it with the bytes after it.
fn number(bytes: &[u8]) -> (usize, &[u8]) {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let value = bytes[..length].iter().rev().fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f));
    (value, &bytes[length..])
}
