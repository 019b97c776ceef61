//! Definition of stores by the operator's configuration and by `--store`.

use std::fs;
use std::path::Path;

use penstock_tests::{Call, Finished, Folder, shown};
use serde_json::{Value, json};

macro_rules! assert_shown {
    ($text:expr) => {
        shown().bind(|| insta::assert_snapshot!($text))
    };
}

/// Secrets that must not appear in any output.
const SECRETS: [&str; 4] =
    ["CanaryOfTheSecretKey", "CanaryOfTheToken", "CanaryOfThePassword", "CanaryOfTheKeyId"];

/// A document that reads all of store `data`.
fn document(folder: &Folder) -> std::path::PathBuf {
    folder.document(
        &json!({ "source": { "list": { "store": "data", "suffix": ".jpg" } }, "stages": [{ "fetch": {} }] }),
    )
}

fn config(folder: &Folder, config: &Value) -> std::path::PathBuf {
    folder.write("etc/penstock.json", config.to_string())
}

fn delivered(finished: Finished) -> u64 {
    finished.exits(0).snapshot().ledger.total.delivered
}

fn refused(call: Call) -> String {
    let Finished { stdout, stderr, .. } = call.finish().exits(2);
    assert_eq!(stdout, "");
    stderr
}

#[test]
fn a_root_is_relative_to_the_configuration_and_flags_take_precedence() {
    let folder = Folder::new();
    folder.write("data/one.jpg", b"1");
    folder.write("other/one.jpg", b"1");
    folder.write("other/two.jpg", b"2");
    let document = document(&folder);
    let config = config(
        &folder,
        &json!({ "stores": {
        "data": { "folder": { "root": "../data", "reads": 2 } }, "other": { "folder": { "root": "../other" } }
    } }),
    );
    let run = || Call::run(&document).json();
    assert_eq!(delivered(run().argument("--config").argument(&config).finish()), 1);
    let flag = run().argument("--config").argument(&config).store("data", &folder.join("other"));
    assert_eq!(delivered(flag.finish()), 2);
    // The flag takes precedence even if the store of the configuration cannot be opened.
    let broken = folder.write("etc/broken.json", r#"{"stores": {"data": {"folder": {"root": "nowhere"}}}}"#);
    let flag = run().argument("--config").argument(&broken).store("data", &folder.join("other"));
    assert_eq!(delivered(flag.finish()), 2);

    let mut command = run().command();
    let output = command.env("PENSTOCK_CONFIG", &config).output().unwrap();
    let snapshot: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(snapshot["ledger"]["total"]["delivered"], 1);
    // An empty variable counts as unset.
    let output =
        run().store("data", &folder.join("data")).command().env("PENSTOCK_CONFIG", "").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_configuration_of_a_folder_may_name_its_index() {
    let folder = Folder::new();
    folder.write("data/one.jpg", b"1");
    folder.write("data/index.json", r#"["one.jpg", "one.jpg"]"#);
    let document =
        folder.document(&json!({ "source": { "index": { "store": "data" } }, "stages": [{ "fetch": {} }] }));
    let config = config(
        &folder,
        &json!({ "stores": { "data": { "folder": { "root": "../data", "index": "index.json" } } } }),
    );
    assert_eq!(delivered(Call::run(&document).json().argument("--config").argument(&config).finish()), 2);
}

#[test]
fn all_faults_of_a_configuration_are_reported_at_once() {
    let folder = Folder::new();
    let document = document(&folder);
    let told = |content: &[u8]| {
        let path = folder.write("etc/penstock.json", content);
        refused(Call::check(&document).argument("--config").argument(path))
    };
    fs::create_dir(folder.join("data")).unwrap();
    assert_shown!(
        [
            refused(Call::check(&document).argument("--config").argument(folder.join("none.json"))),
            refused(Call::check(&document).argument("--config").argument(folder.join("data"))),
            told(b"stores:\n  data: ./data\n"),
            told(br#"{"stores": {"data": {"folder": {"rot": "."}}, "a b": {"s3": {"bucket": ""}}, "c": {"s4": {}}}, "limit": 1}"#),
            told(br#"{"stores": {"data": {"folder": {"root": "a"}}, "more": {"folder": {"root": "penstock.json"}}}}"#),
            told(br#"{"stores": {"data": {"folder": {"root": "../data", "index": "../index.json"}}}}"#),
            told(br#"{"stores": {"data": {"s3": {"bucket": "b", "credentials_file": "none"}}}}"#),
            told(br#"{"stores": {"photos": {"folder": {"root": "../data"}}}}"#),
        ]
        .join("\n")
    );
}

#[test]
fn faults_of_store_flags_are_reported() {
    let folder = Folder::new();
    let document = document(&folder);
    let file = folder.write("photos.zip", b"PK");
    let dataset =
        folder.write("dataset.json", r#"{"bucket_name": "b", "index_file": "i", "aws_access_key_id": 5}"#);
    let text = folder.write("text.json", "bucket_name: b");
    let store = |what: &str| refused(Call::check(&document).argument(format!("--store={what}")));
    let at = |path: &Path| store(&format!("data={}", path.display()));
    assert_shown!(
        [
            store("data"),
            store("data="),
            store("=data"),
            store("a b=data"),
            store("s3://me:CanaryOfThePassword@bucket"),
            store("data=s3://"),
            store("data=s3:///train"),
            store("data=s3://me:CanaryOfThePassword@bucket/train"),
            store("data=s3://bucket/../other"),
            store("data=https://me:CanaryOfThePassword@bucket.example/train"),
            store("data=gs://bucket/train"),
            at(&folder.join("none")),
            at(&folder.join("none.json")),
            at(&file),
            at(&dataset),
            at(&text),
            refused(Call::check(&document).store("data", folder.path()).store("data", folder.path())),
        ]
        .join("\n")
    );
}

/// Runs `call` with credentials in the environment and logs at the most verbose level, and checks that none of them is printed.
fn shows_no_secret(call: &Call, out: &Path) -> Finished {
    let mut command = call.command();
    command
        .env("PENSTOCK_LOG", "trace")
        .env("AWS_ACCESS_KEY_ID", "CanaryOfTheKeyId")
        .env("AWS_SECRET_ACCESS_KEY", "CanaryOfTheSecretKey")
        .env("AWS_SESSION_TOKEN", "CanaryOfTheToken")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        .env_remove("AWS_PROFILE")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let finished = call.finished(command.spawn().unwrap());
    let mut shown = vec![finished.stdout.clone(), finished.stderr.clone()];
    for file in fs::read_dir(out).into_iter().flatten() {
        shown.push(fs::read_to_string(file.unwrap().path()).unwrap());
    }
    for secret in SECRETS {
        for text in &shown {
            assert!(!text.contains(secret), "`{secret}` is shown:\n{text}");
        }
    }
    finished
}

#[test]
fn credentials_are_never_printed() {
    let folder = Folder::new();
    let document = document(&folder);
    let dataset = json!({
        "bucket_name": "b", "endpoint_url": "http://127.0.0.1:1", "aws_access_key_id": "CanaryOfTheKeyId",
        "aws_secret_access_key": "CanaryOfTheSecretKey", "aws_session_token": "CanaryOfTheToken"
    });
    let with = |member: &str, value: Value| {
        let mut dataset = dataset.clone();
        dataset[member] = value;
        folder.write(&format!("{member}.json"), dataset.to_string())
    };
    let good = with("prefix", json!("train"));
    let keys = folder.write(
        "keys",
        "[default]\naws_access_key_id=CanaryOfTheKeyId\naws_secret_access_key=CanaryOfTheSecretKey\n",
    );
    let operators = config(
        &folder,
        &json!({ "stores": { "data": { "s3": {
        "bucket": "b", "endpoint": "http://127.0.0.1:1", "credentials_file": keys
    } } } }),
    );
    // No service listens at the endpoints: the attempts fail and their errors are reported.
    let ways: [(&str, String, i32); 8] = [
        ("--store", format!("data={}", good.display()), 1),
        ("--config", operators.display().to_string(), 1),
        ("--store", "data=s3://b/train".to_owned(), 1),
        ("--store", format!("data={}", with("bucket_name", json!("CanaryOfTheSecretKey ?")).display()), 2),
        (
            "--store",
            format!("data={}", with("aws_access_key_id", json!(["CanaryOfTheSecretKey"])).display()),
            2,
        ),
        (
            "--store",
            format!("data={}", with("endpoint_url", json!("http://me:CanaryOfThePassword@host")).display()),
            2,
        ),
        ("--store", "data=s3://me:CanaryOfThePassword@b/train".to_owned(), 2),
        ("--store", "https://me:CanaryOfThePassword@b/train".to_owned(), 2),
    ];
    for (number, (flag, value, code)) in ways.into_iter().enumerate() {
        let out = folder.join(&format!("out{number}"));
        let run = Call::run(&document).argument(flag).argument(&value).out(&out);
        let finished = shows_no_secret(&run, &out);
        assert_eq!(finished.code, Some(code), "{flag} {value}\n{}", finished.stderr);
        assert_eq!(out.join("spec.json").exists(), code == 1, "{flag} {value}");
        if code == 2 {
            shows_no_secret(&Call::check(&document).argument(flag).argument(&value), &out);
            shows_no_secret(&Call::new(&["index", "create"]).argument(flag).argument(&value), &out);
        }
    }
}
