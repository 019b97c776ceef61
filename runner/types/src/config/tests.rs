use std::fmt::Write;

use super::*;

/// A secret that no message may contain.
const SECRET: &str = "wJalrXUtnFEMIK7MDENG";

fn told(result: Result<impl Sized, Vec<SpecFault>>) -> String {
    match result {
        Ok(_) => "no fault".to_owned(),
        Err(faults) => faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

/// The faults of every document, each after its document.
fn all_told<T>(documents: &[&str], read: impl Fn(&[u8]) -> Result<T, Vec<SpecFault>>) -> String {
    let mut text = String::new();
    for document in documents {
        let found = told(read(document.as_bytes()));
        assert_ne!(found, "no fault", "{document}");
        assert!(!found.contains(SECRET), "{found}");
        writeln!(text, "{document}\n  {}\n", found.replace('\n', "\n  ")).unwrap();
    }
    text
}

#[test]
fn each_malformed_configuration_is_reported_with_place_and_reason() {
    let address = format!(
        r#"{{"stores": {{"a": {{"s3": {{"bucket": "b", "endpoint": "https://me:{SECRET}@s3.example"}}}}}}}}"#
    );
    let bare = format!(r#"{{"stores": {{"a": "s3://me:{SECRET}@bucket/train"}}}}"#);
    let inside = format!(
        r#"{{"stores": {{"a": {{"s3": {{"bucket": "b", "aws_access_key_id": "me", "aws_secret_access_key": "{SECRET}"}}}}}}}}"#
    );
    let misplaced =
        format!(r#"{{"stores": {{"a": {{"s3": {{"bucket": "me:{SECRET}", "region": "{SECRET} ?"}}}}}}}}"#);
    insta::assert_snapshot!(all_told(
        &[
            "",
            "[]",
            "null",
            "{",
            r#"{"stores": {}, "stores": {}}"#,
            r#"{"store": {}}"#,
            r#"{"stores": []}"#,
            r#"{"stores": {"a b": {"folder": {"root": "."}}}}"#,
            r#"{"stores": {"../a": {"folder": {"root": "."}}}}"#,
            r#"{"stores": {"a": "./photos"}}"#,
            r#"{"stores": {"a": {}}}"#,
            r#"{"stores": {"a": null}}"#,
            r#"{"stores": {"a": {"fodler": {"root": "."}}}}"#,
            r#"{"stores": {"a": {"gcs": {"bucket": "b"}}}}"#,
            r#"{"stores": {"a": {"folder": "./photos"}}}"#,
            r#"{"stores": {"a": {"folder": {}}}}"#,
            r#"{"stores": {"a": {"folder": {"root": ""}}}}"#,
            r#"{"stores": {"a": {"folder": {"root": 5}}}}"#,
            r#"{"stores": {"a": {"folder": {"root": "a\u0000b"}}}}"#,
            r#"{"stores": {"a": {"folder": {"path": "."}}}}"#,
            r#"{"stores": {"a": {"folder": {"root": ".", "index": ""}}}}"#,
            r#"{"stores": {"a": {"folder": {"root": ".", "reads": 0}}}}"#,
            r#"{"stores": {"a": {"folder": {"root": ".", "reads": 1e9}}}}"#,
            r#"{"stores": {"a": {"folder": {"root": "."}, "s3": {"bucket": "b"}}}}"#,
            r#"{"stores": {"a": {"s3": {}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": ""}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "my bucket"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "bucket/prefix"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "prefix": "/a"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "prefix": "a/../b/"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "endpoint": "s3.example:9000"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "endpoint": "http://"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "endpoint": "http://:9000"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "endpoint": "http://host:99999"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "endpoint": "http://host/?X-Amz-Signature=1"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "endpoint": "http://host name"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "region": "eu central 1"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "path_style": "yes"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "credentials_file": ""}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "credentials_file": "keys", "anonymous": true}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "requester_pays": true, "anonymous": true}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "credentials_flie": "keys"}}}}"#,
            r#"{"stores": {"a": {"s3": {"bucket": "b", "index": "s"}, "x": 1}, "b": {"folder": {"rot": "."}}}, "limit": {}}"#,
            r#"{"listen": "7700"}"#,
            r#"{"listen": "localhost:7700"}"#,
            r#"{"listen": 7700}"#,
            r#"{"hosts": ["penstock.example.org:7700", "penstock", 5]}"#,
            r#"{"hosts": "penstock"}"#,
            r#"{"registries": ["https://ghcr.io", "ghcr.io/team", "u:p@ghcr.io", "a..b", "-a", "", "a:0", "a:+5", "a:65536", "[::1", "::1", 5]}"#,
            r#"{"budget": {"threads": 0, "memory_mib": -1, "gpus": 1}}"#,
            r#"{"limits": {"runs": {"queued": 0}}}"#,
            r#"{"token": "0123456789abcdef"}"#,
            r#"{"token_file": ""}"#,
            r#"{"data_dir": 5}"#,
            &address,
            &bare,
            &inside,
            &misplaced,
        ],
        Config::read
    ));
}

#[test]
fn each_malformed_description_of_a_data_set_is_reported_without_its_values() {
    let with = |members: &str| format!(r#"{{"bucket_name": "b", {members}}}"#);
    let documents = [
        "".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        format!(r#"{{"bucket_name": "b", "aws_secret_access_key": "{SECRET}""#),
        format!(r#"{{"bucket_name": "{SECRET}/x"}}"#),
        r#"{"bucket": "b"}"#.to_owned(),
        with(&format!(r#""aws_access_key_id": "me", "aws_secret_acess_key": "{SECRET}""#)),
        with(r#""aws_access_key_id": "me""#),
        with(&format!(r#""aws_secret_access_key": "{SECRET}""#)),
        with(&format!(r#""aws_session_token": "{SECRET}""#)),
        with(&format!(r#""aws_access_key_id": 17, "aws_secret_access_key": ["{SECRET}"]"#)),
        with(&format!(r#""aws_access_key_id": "", "aws_secret_access_key": "{SECRET}\n""#)),
        with(&format!(r#""aws_access_key_id": "me", "aws_secret_access_key": {{"{SECRET}": 1}}"#)),
        with(&format!(r#""aws_secret_access_key": "{SECRET}", "aws_secret_access_key": "{SECRET}""#)),
        with(r#""aws_access_key_id": true, "aws_session_token": 0.5"#),
        with(r#""index_file_download_url": "https://b.s3.amazonaws.com/index.json""#),
        with(r#""index_file_download_url": "s3://b""#),
        with(r#""index_file_download_url": "s3://b/""#),
        with(&format!(r#""index_file_download_url": "s3://me:{SECRET}@b/index.json""#)),
        with(&format!(r#""endpoint_url": "http://me:{SECRET}@localhost:9000""#)),
        with(r#""endpoint_url": "localhost""#),
        with(&format!(r#""region_name": "{SECRET}/+=""#)),
        with(r#""prefix": "a//b""#),
        with(r#""classes_file_download_url": "s3://b/classes.json""#),
    ];
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    insta::assert_snapshot!(all_told(&documents, DatasetConfig::read));
}

#[test]
fn every_field_reads_and_paths_are_relative_to_the_configuration() {
    let config = Config::read(
        br#"{"stores": {
            "photos": {"folder": {"root": "data/photos", "index": "all.json", "reads": 8, "writable": true}},
            "shared": {"folder": {"root": "/mnt/shared", "links": ["pool", "/mnt/pool"]}},
            "bucket": {"s3": {"bucket": "my-bucket", "prefix": "train", "endpoint": "http://[::1]:9000", "region": "us-east-1",
                "path_style": false, "credentials_file": "keys", "anonymous": false, "requester_pays": true, "sorted": false, "index": "index.json", "reads": 128, "writable": true}},
            "public": {"s3": {"bucket": "open", "anonymous": true}}
        }, "budget": {"threads": 24}, "listen": "[::1]:7700", "hosts": ["Penstock.example.org"], "token_file": "token", "data_dir": "/var/penstock",
            "registries": ["GHCR.io", "127.0.0.1:5000", "[::1]:5000"],
            "tls": {"certificate": "tls.pem", "key": "/etc/keys/tls.pem"}}"#,
    );
    let config =
        config.unwrap_or_else(|faults| panic!("{faults:#?}")).relative_to(Path::new("/etc/penstock"));
    let names: Vec<&str> = config.stores.keys().map(Name::as_str).collect();
    assert_eq!(names, ["bucket", "photos", "public", "shared"]);
    let stores: Vec<&StoreConfig> = config.stores.values().collect();
    let [
        StoreConfig::S3(bucket),
        StoreConfig::Folder(photos),
        StoreConfig::S3(public),
        StoreConfig::Folder(shared),
    ] = stores[..]
    else {
        panic!("{stores:?}")
    };
    assert_eq!(bucket.prefix.as_str(), "train/");
    assert_eq!(bucket.credentials_file.as_ref().unwrap().as_path(), Path::new("/etc/penstock/keys"));
    assert_eq!((bucket.sorted, public.sorted), (false, true));
    assert_eq!((bucket.path_style, bucket.requester_pays, public.requester_pays), (Some(false), true, false));
    assert_eq!(photos.root.as_path(), Path::new("/etc/penstock/data/photos"));
    assert_eq!(photos.reads.unwrap().get(), 8);
    assert_eq!(
        (photos.writable, bucket.writable, shared.writable, public.writable),
        (true, true, false, false)
    );
    assert_eq!(shared.root.as_path(), Path::new("/mnt/shared"));
    let links: Vec<&Path> = shared.links.iter().map(FolderPath::as_path).collect();
    assert_eq!(links, [Path::new("/etc/penstock/pool"), Path::new("/mnt/pool")]);
    assert_eq!((public.anonymous, public.prefix.as_str(), public.path_style), (true, "", None));
    assert_eq!((config.budget.threads.unwrap().get(), config.budget.memory_mib), (24, None));
    assert_eq!(*config.listen.unwrap().address(), "[::1]:7700".parse().unwrap());
    assert_eq!(config.hosts[0].as_str(), "penstock.example.org");
    let registries: Vec<&str> = config.registries.iter().map(RegistryHost::as_str).collect();
    assert_eq!(registries, ["127.0.0.1:5000", "[::1]:5000", "ghcr.io"]);
    assert_eq!(config.token_file.unwrap().as_path(), Path::new("/etc/penstock/token"));
    let tls = config.tls.unwrap();
    assert_eq!(tls.certificate.as_path(), Path::new("/etc/penstock/tls.pem"));
    assert_eq!(tls.key.as_path(), Path::new("/etc/keys/tls.pem"));
    assert_eq!(config.data_dir.unwrap().as_path(), Path::new("/var/penstock"));
    assert_eq!(Config::read(b"{}"), Ok(Config::default()));
}

#[test]
fn the_example_data_set_reads() {
    let written = format!(
        r#"{{
            "aws_access_key_id": "XXX",
            "aws_secret_access_key": "{SECRET}",
            "bucket_name": "iarai-playground",
            "index_file_download_url": "s3://iarai-playground/scratch/imagenet/index-s3-val.json"
        }}"#
    );
    let dataset = DatasetConfig::read(written.as_bytes()).unwrap();
    let index = dataset.index_file_download_url.as_ref().unwrap();
    assert_eq!(
        (index.bucket.as_str(), index.key.as_str()),
        ("iarai-playground", "scratch/imagenet/index-s3-val.json")
    );
    assert_eq!(dataset.aws_secret_access_key.as_ref().unwrap().expose(), SECRET);
    assert!(!format!("{dataset:?}").contains(SECRET));
}

#[test]
fn an_address_of_a_store_is_a_bucket_and_a_prefix() {
    let parts = |address: &str| {
        S3Config::from_address(address)
            .map(|store| format!("{}|{}", store.bucket.as_str(), store.prefix.as_str()))
    };
    assert_eq!(parts("s3://bucket"), Ok("bucket|".to_owned()));
    assert_eq!(parts("s3://bucket/"), Ok("bucket|".to_owned()));
    assert_eq!(parts("s3://bucket/a/b"), Ok("bucket|a/b/".to_owned()));
    assert_eq!(parts("s3://bucket/a/b/"), Ok("bucket|a/b/".to_owned()));
    let wrong: Vec<String> =
        ["s3://", "s3:///a", "s3://me:wJalrXUtnFEMIK7MDENG@bucket/a", "s3://bucket//a", "s3://b/a?x=1#y\n"]
            .iter()
            .filter_map(|address| parts(address).err())
            .collect();
    assert!(!wrong.join("").contains(SECRET));
    insta::assert_snapshot!(wrong.join("\n"));
}

#[test]
fn each_form_of_an_address_is_that_of_a_store_of_its_kind() {
    for kind in StoreKind::VARIANTS {
        let Some(form) = kind.address() else { continue };
        let store = StoreConfig::from_address(form);
        assert_eq!(store.map(|store| store.map(|store| store.kind())), Some(Ok(*kind)), "{form}");
    }
}

#[test]
fn missing_limits_have_their_defaults() {
    let config = Config::read(
        br#"{"limits": {
            "modules": {"functions": 7}, "compile": {"cpu_s": 3}, "runs": {"max_time": "1h 30m"}, "clients": {"runs": 5}, "disk_mib": 9
        }}"#,
    );
    let number = |number| std::num::NonZeroU32::new(number).unwrap();
    let limits = Limits {
        modules: GateBounds { functions: 7, ..GateBounds::default() },
        compile: CompileBounds { cpu_s: number(3), ..CompileBounds::default() },
        runs: RunBounds { max_time: Some(TimeSpan::new("90m").unwrap()), ..RunBounds::default() },
        clients: ClientBounds { runs: Some(number(5)), ..ClientBounds::default() },
        disk_mib: Some(number(9)),
    };
    let config = config.unwrap_or_else(|faults| panic!("{faults:#?}"));
    assert_eq!(config.limits, limits);
    assert_eq!(Config::read(b"{}").unwrap().limits, Limits::default());
}

#[test]
fn invalid_limits_are_reported() {
    insta::assert_snapshot!(told(Config::read(
        br#"{"limits": {"modules": {"functionz": 1, "nesting": -1}, "compile": {"cpu_s": 0}, "run": {},
            "runs": {"max_time": 90, "max_wait": "0s"}, "clients": {"share_percent": 101}, "disk_mib": 0}}"#
    )));
}
