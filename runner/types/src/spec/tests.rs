use std::collections::BTreeMap;
use std::fmt::Write;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::policy::{Concurrency, Mismatch, OnError, Order, Ragged};
use crate::traversal::{Shard, Uneven};

fn faults(document: &str) -> String {
    match Spec::read(document.as_bytes()) {
        Ok(_) => "no fault".to_owned(),
        Err(faults) => faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

fn with_stage(stage: &str) -> String {
    format!(r#"{{"source": {{"range": {{"count": 1}}}}, "stages": [{stage}]}}"#)
}

/// The schema as editors use it: draft 2020-12, rejecting unknown members.
fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&schema()).unwrap()
}

#[test]
fn a_document_of_a_source_alone_reads_with_all_defaults() {
    let spec = Spec::read(br#"{"source": {"range": {"count": 3}}}"#).unwrap();
    insta::assert_json_snapshot!(spec);
}

#[test]
fn every_kind_reads_with_the_defaults_of_the_design() {
    let spec = Spec::read(
        br#"{"source": {"list": {"store": "photos"}}, "stages": [
            {"aggregate": {"size": 8}}, {"fetch": {}}, {"disaggregate": {}}, {"wasm": {"module": "m@1"}},
            {"sleep": {"mean_ms": 1}}, {"aggregate": {"size": 4}}, {"collate": {}}, {"transfer": {}}],
            "consumer": {"simulate": {"step_ms": 30}}}"#,
    )
    .unwrap();
    insta::assert_json_snapshot!(spec);
}

#[test]
fn all_stores_of_a_document_are_found() {
    let stores = |source: Value| {
        let document = json!({
            "source": source,
            "stages": [{"fetch": {"store": "b"}}, {"wasm": {"module": "m", "assets": {"x": {"store": "c", "key": "k"}}}}],
            "consumer": {"files": {"store": "d"}}
        });
        let spec = Spec::from_value(document).unwrap();
        spec.stores().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(stores(json!({"list": {"store": "a"}})), ["a", "b", "c", "d"]);
    assert_eq!(stores(json!({"index": {"store": "a"}})), ["a", "b", "c", "d"]);
    assert_eq!(stores(json!({"records": {"store": "a", "key": "k"}})), ["a", "b", "c", "d"]);
    assert_eq!(stores(json!({"csv": {"store": "a", "key": "k"}})), ["a", "b", "c", "d"]);
    assert_eq!(stores(json!({"parquet": {"store": "a", "shards": "k"}})), ["a", "b", "c", "d"]);
    assert_eq!(stores(json!({"tar": {"store": "a", "index": "k"}})), ["a", "b", "c", "d"]);
    let labelled = json!({"list": {"store": "a", "labels": {"store": "e", "key": "k.csv"}}});
    assert_eq!(stores(labelled), ["a", "e", "b", "c", "d"]);
    assert_eq!(stores(json!({"tfrecord": {"store": "a", "prefix": ""}})), ["a", "b", "c", "d"]);
    assert_eq!(stores(json!({"mds": {"store": "a"}})), ["a", "b", "c", "d"]);
    let has_store = |kind: &&Value| kind.pointer("/properties/store").is_some();
    let kinds = schema()["$defs"].as_object().unwrap().values().filter(has_store).count();
    assert_eq!(kinds, 12, "add the new place of a store here and in `Spec::stores`");
}

#[test]
fn faults_in_the_paths_of_a_route_are_reported_at_their_places() {
    let path =
        |stages: &str| format!(r#"{{"route": {{"by": {{"field": "kind"}}, "paths": {{"a": [{stages}]}}}}}}"#);
    let deep = (0..=MAX_ROUTE_DEPTH).fold(r#"{"sleep": {"mean_ms": 1}}"#.to_owned(), |inner, _| path(&inner));
    let documents = [
        r#"{"route": {"by": {"field": "kind"}, "paths": {"a": [{"fetchh": {}}, {"sleep": {}}], "b/c": []}, "else": ["x", {"fetch": {"store": 5}}]}}"#,
        r#"{"route": {"by": "kind", "paths": {}, "else": []}}"#,
        r#"{"route": {"by": {"module": {}}, "paths": {"else": []}, "concurrency": 2}}"#,
        r#"{"route": {"by": {"field": "kind"}, "paths": {"else": []}}}"#,
        r#"{"route": {"by": {"field": "kind"}, "paths": {}}}"#,
        &deep,
        &path(&vec![r#"{"sleep": {"mean_ms": 1}}"#; MAX_STAGES].join(",")),
    ];
    insta::assert_snapshot!(documents.map(|stage| faults(&with_stage(stage))).join("\n"));
}

#[test]
fn modules_and_stores_in_the_paths_of_a_route_are_found() {
    let document = json!({
        "source": {"range": {"count": 1}},
        "stages": [
            {"wasm": {"module": "first"}},
            {"route": {"by": {"module": {"module": "by", "assets": {"x": {"store": "a", "key": "k"}}}}, "paths": {"x": [
                {"fetch": {"store": "b"}},
                {"route": {"by": {"field": "kind"}, "paths": {"y": [{"wasm": {"module": "inner"}}]}}},
            ]}, "else": [{"wasm": {"module": "other"}}]}},
            {"wasm": {"module": "last"}},
        ],
    });
    let spec = Spec::from_value(document).unwrap();
    let modules: Vec<&str> = spec.modules().iter().map(|wasm| wasm.module.as_str()).collect();
    assert_eq!(modules, ["first", "by", "inner", "other", "last"]);
    assert_eq!(spec.stores().map(Name::as_str).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_deterministic_document_keeps_the_order_of_the_input_in_all_stages() {
    let document = |is_written: bool| {
        let stage = |mut members: Value| {
            if is_written {
                members["order"] = json!("input");
            }
            members
        };
        json!({
            "deterministic": true,
            "source": {"list": {"store": "photos"}},
            "stages": [
                {"fetch": stage(json!({}))},
                {"route": stage(json!({"by": {"module": stage(json!({"module": "by"}))}, "paths": {
                    "a": [{"sleep": stage(json!({"mean_ms": 1}))}]
                }, "else": [{"wasm": stage(json!({"module": "m", "params": {"order": "completion"}}))}]}))},
                {"aggregate": {"size": 8}}, {"collate": stage(json!({}))}, {"transfer": stage(json!({}))},
                {"disaggregate": {}},
            ],
        })
    };
    let spec = Spec::from_value(document(false)).unwrap();
    assert_eq!(spec, Spec::from_value(document(true)).unwrap());
    // The document with all defaults means the same.
    assert_eq!(spec, Spec::from_value(serde_json::to_value(&spec).unwrap()).unwrap());
    let mut other = document(false);
    other["deterministic"] = json!(false);
    assert_ne!(spec, Spec::from_value(other).unwrap());
}

#[test]
fn a_deterministic_document_refuses_stages_with_another_order() {
    let told = faults(
        r#"{"deterministic": true, "source": {"range": {"count": 1}}, "stages": [
            {"sleep": {"mean_ms": 1, "order": "completion"}}, {"sleep": {"order": "inpt"}},
            {"route": {"by": {"module": {"module": "m", "order": "completion"}}, "order": "completion", "paths": {
                "a/b": [], "a": [{"sleep": {"mean_ms": 1, "order": "completion"}}]
            }, "else": [{"fetch": {"order": "completion"}}]}}
        ]}"#,
    );
    let places = told.lines().filter(|line| line.ends_with(
        "/order: found `completion`, but the document has `\"deterministic\": true`, which keeps the order of the input; remove one of the two"
    ));
    let places: Vec<&str> = places.map(|line| &line[..line.find(": ").unwrap()]).collect();
    let expected = [
        "/stages/0/sleep/order",
        "/stages/2/route/by/module/order",
        "/stages/2/route/paths/a/0/sleep/order",
        "/stages/2/route/else/0/fetch/order",
        "/stages/2/route/order",
    ];
    assert_eq!(places, expected);
    assert!(told.contains("/stages/1/sleep/order: unknown word `inpt`"), "{told}");
    assert!(
        faults(r#"{"deterministic": 1, "source": {"range": {"count": 1}}}"#).starts_with("/deterministic: ")
    );
}

#[test]
fn all_faults_of_a_document_are_reported_at_once() {
    insta::assert_snapshot!(faults(
        r#"{
            "name": "", "sead": 1, "threads": 0, "interval_s": "1s", "buffer_mib": 0.5,
            "source": {"list": {"stor": "photos", "shard": {"rank": 0, "world": 0, "uneven": "kep"}, "epochs": 0}},
            "stages": [
                {"aggregate": {"size": 0, "concurrency": 2}},
                {"fetchh": {}},
                {"wasm": {"module": 5, "deadline_ms": 0, "assets": {"vocab": {"store": 5, "kye": "a"}}}},
                {"fetch": {}, "collate": {}},
                "collate",
                {"sleep": {"jitter": 2, "order": "inpt"}}
            ],
            "sink": 3,
            "consumer": {"simulate": {}},
            "max_failures": {"rate": 0}
        }"#
    ));
}

#[test]
fn each_malformed_document_is_reported_with_place_and_reason() {
    let stage = with_stage;
    let documents = [
        String::new(),
        "[]".to_owned(),
        "null".to_owned(),
        "{}".to_owned(),
        r#"{"source": {"range": {"count": 1}}, "source": {"range": {"count": 2}}}"#.to_owned(),
        r#"{"source": {}}"#.to_owned(),
        r#"{"source": "range"}"#.to_owned(),
        r#"{"source": "ranges"}"#.to_owned(),
        r#"{"source": 5}"#.to_owned(),
        r#"{"source": {"range": {}}}"#.to_owned(),
        r#"{"source": {"range": {"count": -1}}}"#.to_owned(),
        r#"{"source": {"range": {"count": 1.5}}}"#.to_owned(),
        r#"{"source": {"range": [1]}}"#.to_owned(),
        r#"{"source": {"index": {"stor": "s", "index": ""}}}"#.to_owned(),
        r#"{"source": {"records": {"store": "s", "key": ""}}}"#.to_owned(),
        r#"{"source": {"list": {"store": "../s"}}}"#.to_owned(),
        r#"{"source": {"list": {"store": "s", "shuffle": "yes"}}}"#.to_owned(),
        r#"{"source": {"list": {"store": "s", "shard": {"rank": 0}}}}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "stages": {}}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "stages": null}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "name": "a b"}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "interval_s": 0}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "interval_s": 1e9}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "threads": 1025}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "seed": -7}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "sink": {"queue": 0}}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "sink": {"queue": 1000001}}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "consumer": "discard"}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "consumer": {"simulate": {"step_ms": -1}}}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "max_failures": 100}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "max_failures": {"count": 1, "rate": 0.5}}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "max_failures": {"rate": 1.5}}"#.to_owned(),
        r#"{"source": {"range": {"count": 1}}, "a/b~c": 1}"#.to_owned(),
        stage(r#"{}"#),
        stage(r#"null"#),
        stage(r#"{"aggregate": {}}"#),
        stage(r#"{"aggregate": {"size": 1000001}}"#),
        stage(r#"{"disaggregate": {"concurrency": 2}}"#),
        stage(r#"{"fetch": {"concurency": 2}}"#),
        stage(r#"{"fetch": {"concurrency": 4097}}"#),
        stage(r#"{"fetch": {"concurrency": 4, "order": {"input": {}}}}"#),
        stage(r#"{"fetch": {"on_error": "retry"}}"#),
        stage(r#"{"wasm": {}}"#),
        stage(r#"{"wasm": {"module": "a b"}}"#),
        stage(r#"{"wasm": {"module": "sha256:abc"}}"#),
        stage(r#"{"wasm": {"module": "oci://ghcr.io/team/decode:v1"}}"#),
        stage(r#"{"wasm": {"module": "m", "params": [1], "memory_mib": 8192}}"#),
        stage(r#"{"wasm": {"module": "m", "assets": {"a/b": {"store": "s", "key": "k"}}}}"#),
        stage(r#"{"transfer": {"device": "gpu"}}"#),
        stage(r#"{"sleep": {"mean_ms": 1, "shape": "normal", "on": "cpu", "fail_rate": 1.01}}"#),
    ];
    let mut told = String::new();
    for document in &documents {
        let found = faults(document);
        assert_ne!(found, "no fault", "{document}");
        writeln!(told, "{document}\n  {}\n", found.replace('\n', "\n  ")).unwrap();
    }
    insta::assert_snapshot!(told);
}

#[test]
fn a_number_that_is_too_large_is_refused_with_its_bound() {
    let range = json!({ "range": { "count": 1 } });
    let weighted = |weight: Value| {
        let sources = json!({ "a": { "source": range, "weight": weight }, "b": { "source": range } });
        faults(&json!({ "source": { "mix": { "sources": sources } } }).to_string())
    };
    let place = "/source/mix/sources/a/weight: found";
    assert_eq!(
        weighted(json!(5_000_000_000_u64)),
        format!("{place} `5000000000`, expected a whole number from 0 to 4294967295")
    );
    assert_eq!(weighted(json!(-1)), format!("{place} `-1`, expected a whole number, 0 or more"));
    let epochs = json!({ "source": { "range": { "count": 1, "epochs": 5_000_000_000_u64 } } });
    let told = faults(&epochs.to_string());
    assert_eq!(
        told,
        "/source/range/epochs: found `5000000000`, expected a whole number from 1 to 4294967295"
    );
}

#[test]
fn at_most_256_stages_are_read() {
    let stages = vec![json!({ "disaggregate": {} }); 257];
    let document = json!({ "source": { "range": { "count": 1 } }, "stages": stages });
    assert_eq!(faults(&document.to_string()), "/stages: found 257 stages, at most 256 are allowed");
}

#[test]
fn a_document_full_of_faults_reports_the_first_hundred() {
    let members: serde_json::Map<String, Value> = (0..500).map(|i| (format!("x{i}"), json!(i))).collect();
    let faults = Spec::from_value(Value::Object(members)).unwrap_err();
    assert_eq!(faults.len(), MAX_FAULTS);
    assert_eq!(faults[0].pointer.as_str(), "/x0");
}

#[test]
fn a_long_text_is_cut_and_control_characters_are_escaped() {
    let document =
        format!(r#"{{"source": {{"range": {{"count": 1}}}}, "name": "\u001b[31m{}"}}"#, "x".repeat(500));
    let found = faults(&document);
    assert!(!found.contains('\u{1b}') && found.contains(r"\u{1b}[31mxxx"), "{found}");
    assert!(found.len() < 250, "{found}");
}

#[test]
fn the_example_pipelines_read_and_fit_the_schema() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pipelines");
    let entries =
        [folder.to_owned(), format!("{folder}/seeds")].map(|folder| std::fs::read_dir(folder).unwrap());
    let mut read = 0;
    for entry in entries.into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        Spec::read(&bytes).unwrap_or_else(|faults| panic!("{}: {faults:#?}", path.display()));
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        let errors: Vec<String> = validator().iter_errors(&document).map(|error| error.to_string()).collect();
        assert_eq!(errors, [""; 0], "{}", path.display());
        read += 1;
    }
    assert!(read >= 6, "only {read} examples were found");
}

#[test]
fn the_schema_rejects_what_reading_rejects() {
    let validator = validator();
    for document in [
        r#"{"source": {"range": {"count": 1}}, "nam": "a"}"#,
        r#"{"source": {"range": {"count": -1}}}"#,
        r#"{"source": {"list": {"store": "a b"}}}"#,
        r#"{"source": {"range": {"count": 1}}, "threads": 0}"#,
        r#"{"source": {"range": {"count": 1}}, "interval_s": 0.001}"#,
        r#"{"source": {"range": {"count": 1}}, "sink": {"queue": 1000001}}"#,
        r#"{"source": {"range": {"count": 1}}, "stages": [{"fetch": {"concurrency": 4097}}]}"#,
        r#"{"source": {"range": {"count": 1}}, "stages": [{"fetch": {}, "collate": {}}]}"#,
        r#"{"source": {"range": {"count": 1}}, "stages": [{"sleep": {}}]}"#,
    ] {
        assert!(Spec::read(document.as_bytes()).is_err(), "{document}");
        assert!(!validator.is_valid(&serde_json::from_str(document).unwrap()), "{document}");
    }
}

#[test]
fn the_schema_is_the_one_that_was_reviewed() {
    insta::assert_json_snapshot!(schema());
}

#[test]
fn the_schema_names_its_draft_and_describes_every_field() {
    let schema = schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["title"], "Penstock pipeline");
    let mut undescribed = Vec::new();
    visit(&schema, &mut |node| {
        if let Some(properties) = node.get("properties").and_then(Value::as_object) {
            for (name, property) in properties {
                if property.get("description").is_none() && node.get("description").is_none() {
                    undescribed.push(name.clone());
                }
            }
        }
    });
    assert_eq!(undescribed, [""; 0]);
}

fn visit(node: &Value, look: &mut impl FnMut(&Value)) {
    look(node);
    match node {
        Value::Array(elements) => elements.iter().for_each(|element| visit(element, look)),
        Value::Object(members) => members.values().for_each(|member| visit(member, look)),
        _ => {}
    }
}

fn name() -> impl Strategy<Value = Name> {
    "[A-Za-z0-9][A-Za-z0-9._-]{0,20}".prop_map(|text| Name::new(text).unwrap())
}

fn share() -> impl Strategy<Value = Share> {
    (0.0..=1.0).prop_map(|share| Share::new(share).unwrap())
}

fn millis() -> impl Strategy<Value = Millis> {
    (0.0..=3_600_000.0).prop_map(|millis| Millis::new(millis).unwrap())
}

fn queue() -> impl Strategy<Value = Capacity> {
    (1..=Capacity::MOST).prop_map(|items| Capacity::new(items).unwrap())
}

fn limit() -> impl Strategy<Value = Option<FailureLimit>> {
    let limit =
        prop_oneof![any::<u64>().prop_map(FailureLimit::Count), (0.001..=1.0).prop_map(FailureLimit::Rate)];
    proptest::option::of(limit)
}

/// Fields that stages with tasks share: name, queue, concurrency, order, on_error, max_failures.
fn settings()
-> impl Strategy<Value = (Option<Name>, Capacity, Concurrency, Order, OnError, Option<FailureLimit>)> {
    (
        proptest::option::of(name()),
        queue(),
        (1..=Concurrency::MOST).prop_map(|tasks| Concurrency::new(tasks).unwrap()),
        prop_oneof![Just(Order::Completion), Just(Order::Input)],
        prop_oneof![Just(OnError::Skip), Just(OnError::DeadLetter), Just(OnError::Fail)],
        limit(),
    )
}

fn params() -> impl Strategy<Value = serde_json::Map<String, Value>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let value =
        leaf.prop_recursive(3, 12, 3, |inner| proptest::collection::vec(inner, 0..3).prop_map(Value::from));
    proptest::collection::btree_map(".{0,6}", value, 0..3).prop_map(|members| members.into_iter().collect())
}

/// Any stage; routes with a few stages in their paths, and routes within them.
fn stage() -> impl Strategy<Value = Stage> {
    plain_stage().prop_recursive(2, 6, 3, |inner| {
        let stages = || proptest::collection::vec(inner.clone(), 0..3);
        let named = name().prop_filter("`else` is no name of a path", |name| name.as_str() != ELSE);
        let by = prop_oneof![
            name().prop_map(RouteBy::Field),
            plain_stage().prop_filter_map("a module", |stage| match stage {
                Stage::Wasm(wasm) => Some(RouteBy::Module(Box::new(wasm))),
                _ => None,
            }),
        ];
        let paths = proptest::collection::btree_map(named, stages(), 1..3);
        (by, paths, proptest::option::of(stages()), settings()).prop_map(
            |(by, paths, otherwise, (name, queue, _, order, on_error, max_failures))| {
                Stage::Route(Route { by, paths, otherwise, name, queue, order, on_error, max_failures })
            },
        )
    })
}

fn plain_stage() -> impl Strategy<Value = Stage> {
    let size = (1..=BatchSize::MOST).prop_map(|size| BatchSize::new(size).unwrap());
    let asset =
        (name(), "[a-z/ ~]{1,9}").prop_map(|(store, key)| Asset { store, key: ObjectKey::new(key).unwrap() });
    let wasm = (
        "[a-z][a-z-]{0,9}(@[0-9][0-9.+-]{0,5})?",
        params(),
        1..=DeadlineMs::MOST,
        1..=MemoryMib::MOST,
        1..=OutputMib::MOST,
        proptest::collection::btree_map(name(), asset, 0..3),
    );
    let shape = prop_oneof![Just(SleepShape::Uniform), Just(SleepShape::Exponential)];
    let on = prop_oneof![Just(SleepOn::Async), Just(SleepOn::Thread)];
    let device = prop_oneof![Just("auto"), Just("host"), Just("cuda:0")];
    let ragged = prop_oneof![Just(Ragged::Fail), Just(Ragged::Pad), Just(Ragged::List), Just(Ragged::Skip)];
    prop_oneof![
        (size, any::<bool>(), proptest::option::of(name()), queue()).prop_map(
            |(size, drop_last, name, queue)| Stage::Aggregate(Aggregate { size, drop_last, name, queue })
        ),
        (proptest::option::of(name()), queue())
            .prop_map(|(name, queue)| Stage::Disaggregate(Disaggregate { name, queue })),
        (proptest::option::of(name()), proptest::option::of(".{0,9}"), settings()).prop_map(
            |(store, object, (name, queue, concurrency, order, on_error, max_failures))| Stage::Fetch(
                Fetch { store, object, name, queue, concurrency, order, on_error, max_failures }
            )
        ),
        (wasm, settings()).prop_map(
            |(
                (module, params, deadline, memory, output, assets),
                (name, queue, concurrency, order, on_error, max_failures),
            )| Stage::Wasm(Wasm {
                module: ModuleRef::new(module).unwrap(),
                params,
                deadline_ms: DeadlineMs::new(deadline).unwrap(),
                memory_mib: MemoryMib::new(memory).unwrap(),
                output_mib: OutputMib::new(output).unwrap(),
                assets,
                name,
                queue,
                concurrency,
                order,
                on_error,
                max_failures
            })
        ),
        (ragged, settings()).prop_map(
            |(ragged, (name, queue, concurrency, order, on_error, max_failures))| Stage::Collate(Collate {
                ragged,
                shape: BTreeMap::from([("image".to_owned(), vec![3, 224])]),
                mismatch: if order == Order::Input { Mismatch::Skip } else { Mismatch::Fail },
                name,
                queue,
                concurrency,
                order,
                on_error,
                max_failures
            })
        ),
        (device, settings()).prop_map(
            |(device, (name, queue, concurrency, order, on_error, max_failures))| Stage::Transfer(Transfer {
                device: DeviceName::new(device).unwrap(),
                name,
                queue,
                concurrency,
                order,
                on_error,
                max_failures
            })
        ),
        ((millis(), share(), shape, on, share()), settings()).prop_map(
            |(
                (mean_ms, jitter, shape, on, fail_rate),
                (name, queue, concurrency, order, on_error, max_failures),
            )| Stage::Sleep(Sleep {
                mean_ms,
                jitter,
                shape,
                on,
                fail_rate,
                name,
                queue,
                concurrency,
                order,
                on_error,
                max_failures
            })
        ),
    ]
}

fn labels_of(store: &Name, key: &str) -> Option<LabelTable> {
    Some(LabelTable {
        store: Some(store.clone()).filter(|_| key.len() > 3),
        key: ObjectKey::new(key)?,
        sample_key: None,
        matches: if key.len() > 5 { KeyPart::Stem } else { KeyPart::Key },
        delimiter: TableCharacter::new(";"),
        quote: TableCharacter::new("'").filter(|_| key.len() > 4),
        encoding: if key.len() > 2 { TextEncoding::Utf16 } else { TextEncoding::Utf8 },
        types: BTreeMap::from([(key.to_owned(), ColumnType::Bool)]),
        missing: Missing::Skip,
    })
}

fn missing(is_given: bool) -> BTreeMap<String, WhenMissing> {
    let whens = [
        WhenMissing::Fail,
        WhenMissing::Mask,
        WhenMissing::Drop,
        WhenMissing::Nan,
        WhenMissing::Value(FillValue::Int(-1)),
        WhenMissing::Value(FillValue::Real(0.5)),
        WhenMissing::Value(FillValue::Text("none".to_owned())),
        WhenMissing::Value(FillValue::List(vec![0.5, 1.0])),
    ];
    let named = whens.into_iter().enumerate().map(|(at, when)| (format!("f{at}"), when));
    named.filter(|_| is_given).collect()
}

fn source() -> impl Strategy<Value = Source> {
    let shard =
        (0_u32..9, std::num::NonZeroU32::MIN.get()..9, any::<bool>()).prop_map(|(rank, world, keep)| Shard {
            rank,
            world: world.try_into().unwrap(),
            uneven: if keep { Uneven::Keep } else { Uneven::Drop },
        });
    let epochs = proptest::option::of((1_u32..).prop_map(|epochs| epochs.try_into().unwrap()));
    let visited = (any::<bool>(), proptest::option::of(shard), epochs, proptest::option::of(any::<u64>()));
    let kind = prop_oneof![
        (name(), ".{0,9}", ".{0,9}").prop_map(|(store, prefix, suffix)| (Some(store), prefix, suffix, None)),
        any::<u64>().prop_map(|count| (None, String::new(), String::new(), Some(count))),
        (name(), "[a-z./]{1,9}").prop_map(|(store, key)| (Some(store), key, String::new(), Some(0))),
        (name(), "[a-z./]{0,9}").prop_map(|(store, index)| (Some(store), index, String::new(), Some(1))),
        (name(), "[a-z./{}]{1,9}", ".{0,9}").prop_map(|(store, shards, suffix)| (
            Some(store),
            shards,
            suffix,
            Some(2)
        )),
    ];
    (kind, visited).prop_map(|(kind, (shuffle, shard, epochs, limit))| match kind {
        (Some(store), prefix, suffix, None) => {
            let (label, labels) = (shuffle.then_some(LabelOrigin::Folder), labels_of(&store, &prefix));
            let suffix = match shuffle {
                true => Suffix::Several(vec![suffix, ".png".to_owned()]),
                false => Suffix::One(suffix),
            };
            Source::List(ListSource {
                classes: label.map(|_| vec![prefix.clone(), "other".to_owned()]),
                missing: missing(shuffle),
                hidden: shuffle,
                links: if shuffle { Links::Files } else { Links::All },
                store,
                prefix,
                suffix,
                label,
                labels,
                shuffle,
                shard,
                epochs,
                limit,
            })
        }
        (Some(store), index, _, Some(1)) => {
            Source::Index(IndexSource { store, index: ObjectKey::new(index), shuffle, shard, epochs, limit })
        }
        (Some(store), shards, suffix, Some(2)) => Source::Tsv(Table(TableSource {
            store,
            key: None,
            shards: ObjectKey::new(shards),
            prefix: None,
            types: BTreeMap::from([(suffix.clone(), ColumnType::Float)]),
            suffix: Some(Suffix::One(suffix)),
            sample_key: None,
            delimiter: if shuffle { TableCharacter::new("\t") } else { None },
            quote: TableCharacter::new("\""),
            encoding: if shuffle { TextEncoding::Latin1 } else { TextEncoding::Windows1252 },
            hidden: false,
            links: Links::All,
            missing: missing(!shuffle),
            on_damage: if shuffle { OnDamage::Skip } else { OnDamage::Fail },
            shuffle,
            shard,
            epochs,
            limit,
        })),
        (Some(store), key, _, Some(_)) => Source::Records(RecordsSource {
            store,
            key: ObjectKey::new(key),
            shards: None,
            prefix: Some(String::new()).filter(|_| shuffle),
            suffix: None,
            sample_key: Some("id".to_owned()).filter(|_| !shuffle),
            types: BTreeMap::new(),
            hidden: shuffle,
            links: Links::All,
            missing: missing(shuffle),
            on_damage: OnDamage::Fail,
            shuffle,
            shard,
            epochs,
            limit,
        }),
        (None, _, _, count) => {
            Source::Range(RangeSource { count: count.unwrap_or_default(), shuffle, shard, epochs, limit })
        }
    })
}

fn tune() -> impl Strategy<Value = Tune> {
    prop_oneof![Just(Tune::Off), Just(Tune::Suggest), Just(Tune::Apply)]
}

fn spec() -> impl Strategy<Value = Spec> {
    let consumer = prop_oneof![
        Just(Consumer::Discard(Discard {})),
        (millis(), share()).prop_map(|(step_ms, jitter)| Consumer::Simulate(Simulate { step_ms, jitter })),
        (name(), "[a-z/]{0,9}").prop_map(|(store, prefix)| Consumer::Files(Files { store, prefix })),
        (1..=64_u32, 1.0..1e5_f64).prop_map(|(ahead, wait_s)| Consumer::Stream(Stream {
            ahead: bounds::Ahead::new(ahead).unwrap(),
            wait_s: bounds::WaitS::new(wait_s).unwrap()
        })),
    ];
    (
        (
            name(),
            any::<u64>(),
            proptest::option::of(1..=Threads::MOST),
            0.01..=3600.0,
            1..=BufferMib::MOST,
            tune(),
        ),
        source(),
        proptest::collection::vec(stage(), 0..5),
        (queue(), consumer, limit()),
    )
        .prop_map(
            |(
                (name, seed, threads, interval, buffer, tune),
                source,
                stages,
                (queue, consumer, max_failures),
            )| {
                Spec {
                    name,
                    seed,
                    deterministic: false,
                    threads: threads.map(|threads| Threads::new(threads).unwrap()),
                    tune,
                    interval_s: IntervalS::new(interval).unwrap(),
                    buffer_mib: BufferMib::new(buffer).unwrap(),
                    source,
                    stages,
                    sink: Sink { queue },
                    consumer,
                    max_failures,
                }
            },
        )
}

proptest! {
    #[test]
    fn a_serialised_document_reads_the_same_and_fits_the_schema(spec in spec()) {
        thread_local!(static VALIDATOR: jsonschema::Validator = validator());
        let text = serde_json::to_vec(&spec).unwrap();
        let read = Spec::read(&text);
        prop_assert_eq!(read.as_ref(), Ok(&spec));
        let document = serde_json::from_slice(&text).unwrap();
        let errors: Vec<String> = VALIDATOR.with(|validator| {
            validator.iter_errors(&document).map(|error| error.to_string()).collect()
        });
        prop_assert_eq!(errors, Vec::<String>::new());
    }

    #[test]
    fn reading_any_text_gives_faults_and_never_panics(text in ".{0,80}", params in params()) {
        let _ignored = Spec::read(text.as_bytes());
        let _ignored = Spec::from_value(Value::Object(params));
    }
}

#[test]
fn an_element_without_a_valid_placeholder_is_one_fault() {
    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "it is only read")]
    struct Cell {
        items: u32,
    }
    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "it is only read")]
    struct Grid {
        cells: Vec<Cell>,
        workers: Vec<u32>,
        name: String,
    }
    let told = |document: Value| {
        let faults = read_value::<Grid>(document).unwrap_err();
        faults.into_iter().map(|fault| fault.pointer.to_string()).collect::<Vec<_>>()
    };
    let wrong = json!({ "cells": [{ "items": 1 }, {}], "workers": [1, "two", 3], "name": 7 });
    assert_eq!(told(wrong), ["/cells/1", "/workers/1", "/name"]);
}

#[test]
fn comparisons_read_as_documented() {
    let read = |comparison: Value| {
        let document =
            json!({ "source": { "parquet": { "store": "s", "prefix": "", "where": [comparison] } } });
        Spec::from_value(document)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    };
    for (op, value) in [
        ("==", json!(true)),
        ("!=", json!(-3)),
        ("<", json!(2.5)),
        ("<=", json!("a")),
        (">", json!(7)),
        (">=", json!(0)),
    ] {
        let written = json!({ "column": "c", "op": op, "value": value });
        let spec = read(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&spec.source).unwrap().pointer("/parquet/where/0"), Some(&written));
    }
    let faults = [
        json!({ "column": "c", "op": "=", "value": 1 }),
        json!({ "column": "c", "op": "==", "value": null }),
        json!({ "column": "c", "op": "==", "value": [1] }),
        json!({ "column": "c", "value": 1 }),
    ];
    insta::assert_snapshot!(faults.map(|written| read(written).unwrap_err()).join("\n"));
}
