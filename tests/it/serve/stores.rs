//! Stores of a server, and objects of stores for modules that are tried.

use std::fs;

use penstock_tests::{Folder, Serving, photos};
use serde_json::{Value, json};

#[test]
fn a_store_tells_its_kind_and_its_permits_and_lists_keys_in_a_measured_time() {
    let folder = Folder::new();
    let text = json!({
        "out": { "folder": { "root": folder.path(), "writable": true, "reads": 3 } },
    });
    let config = folder.write("penstock.json", json!({ "stores": text }).to_string());
    let served = Serving::default().argument("--config").argument(&config).store("photos", photos()).start();
    let stores = served.get("/stores").is(200).json()["items"].clone();
    let told = json!([
        { "name": "out", "kind": "folder", "writable": true, "reads": 3, "reads_used": 0 },
        { "name": "photos", "kind": "folder", "writable": false, "reads": 64, "reads_used": 0 },
    ]);
    assert_eq!(stores, told);
    let keys = served.get("/stores/photos/keys?limit=2").is(200).json();
    assert_eq!((keys["items"].as_array().unwrap().len(), &keys["more"]), (2, &json!(true)));
    assert!(keys["elapsed_s"].as_f64().unwrap() > 0.0, "{keys}");
    fs::remove_file(&config).unwrap();
    let empty = served.get("/stores/out/keys").is(200).json();
    assert_eq!((&empty["items"], &empty["more"]), (&json!([]), &json!(false)));
}

#[test]
fn a_module_is_tried_with_assets_from_a_store_or_from_the_request() {
    let folder = Folder::new();
    folder.texts(20);
    folder.tokenizer();
    let served = Serving::default().store("text", folder.path()).start();
    let path = "/modules/std%2Ftext/versions/1/try";
    let request = |assets: Value| json!({ "params": { "max_length": 8 }, "samples": [{ "key": "a", "text": "the water of the river" }], "assets": assets });
    let without = served.post(path, &request(json!({}))).is(422).json();
    assert!(without["detail"].as_str().unwrap().contains("tokenizer"), "{without}");
    let stored = request(json!({ "tokenizer": { "store": "text", "key": "tokenizer.json" } }));
    let stored = served.post(path, &stored).is(200).json();
    let outcome = &stored["calls"][0]["samples"][0]["outcome"];
    assert_ne!(outcome, "failed", "{stored}");
    let bytes = fs::read(folder.join("tokenizer.json")).unwrap();
    let given = request(json!({ "tokenizer": { "base64": base64(&bytes) } }));
    assert_eq!(&served.post(path, &given).is(200).json()["calls"][0]["samples"][0]["outcome"], outcome);
    for (assets, status) in [
        (json!({ "tokenizer": { "store": "nowhere", "key": "a" } }), 404),
        (json!({ "tokenizer": { "store": "text", "key": "missing" } }), 404),
        (json!({ "tokenizer": { "base64": "?" } }), 422),
        (json!({ "tokenizer": { "base64": "", "key": "a" } }), 422),
        (json!({ "a/b": { "base64": "" } }), 422),
        (Value::Object((0..17).map(|n| (format!("a{n}"), json!({ "base64": "" }))).collect()), 422),
    ] {
        served.post(path, &request(assets)).is(status);
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let coded = bytes.chunks(3).flat_map(|chunk| {
        let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        let letter = move |at: usize| match at <= chunk.len() {
            true => char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]),
            false => '=',
        };
        (0..4).map(letter)
    });
    coded.collect()
}
