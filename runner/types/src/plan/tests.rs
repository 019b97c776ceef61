use std::collections::BTreeMap;

use super::*;
use crate::fault::SpecFault;
use crate::manifest::{Manifest, Mode};
use crate::spec::{Consumer, Spec, Suffix};

fn manifest(mode: &str) -> Manifest {
    serde_json::from_value(serde_json::json!({ "name": "m", "version": "1.0.0", "mode": mode })).unwrap()
}

fn modules() -> BTreeMap<String, ModuleFacts> {
    [("crop-faces", "sample"), ("mixup@2", "batch"), ("pack", "stateful"), ("std/image", "sample")]
        .map(|(written, mode)| {
            let name = written.split('@').next().unwrap_or(written).to_owned();
            let digest = format!("sha256:{}", "0".repeat(64));
            (written.to_owned(), ModuleFacts { name, digest, manifest: manifest(mode) })
        })
        .into()
}

fn names() -> Vec<String> {
    modules().into_keys().collect()
}

/// The store `photos`, and `tables`, which has an index.
fn stores() -> BTreeMap<String, StoreFacts> {
    [("photos", false), ("tables", true)]
        .map(|(name, has_index)| (name.to_owned(), StoreFacts { has_index }))
        .into()
}

fn check(document: &str) -> Result<Plan, Vec<SpecFault>> {
    let stores = stores();
    let spec = Spec::read(document.as_bytes()).unwrap();
    Plan::check(&spec, Known { modules: &modules(), names: &names(), fields: None, stores: Some(&stores) })
}

fn check_stages(stages: &str) -> Result<Plan, Vec<SpecFault>> {
    check(&format!(r#"{{"source": {{"list": {{"store": "photos"}}}}, "stages": [{stages}]}}"#))
}

fn faults(stages: &str) -> Vec<String> {
    check_stages(stages).map_or_else(
        |faults| faults.iter().map(ToString::to_string).collect(),
        |plan| panic!("no fault in {stages}: {plan:?}"),
    )
}

#[test]
fn the_example_pipeline_becomes_a_plan_with_ids_and_labels() {
    let document = include_str!("../../../../examples/pipelines/photos.json");
    let plan = check(document).unwrap();
    let labels: Vec<String> = plan.stages.iter().map(StagePlan::label).collect();
    assert_eq!(
        labels,
        [
            "1:aggregate",
            "2:download[12]",
            "3:disaggregate",
            "4:preprocess[12]",
            "5:aggregate",
            "6:collate",
            "7:transfer"
        ]
    );
    assert_eq!(plan.source.id.to_string(), "0:src");
    assert_eq!(plan.stages[1].id.queue_id(), "2:download_queue");
    assert_eq!(plan.sink.id.to_string(), "8:sink");
    assert_eq!((plan.threads, plan.interval, plan.buffer_bytes), (Some(12), Duration::from_secs(1), 1 << 30));
    let Consumer::Simulate(simulate) = plan.consumer else { panic!("{:?}", plan.consumer) };
    assert_eq!((simulate.step_ms.duration(), simulate.jitter.get()), (Duration::from_millis(30), 0.0));
    assert_eq!(plan.stages[1].kind, StageKind::Fetch(FetchPlan { store: "photos".to_owned(), object: None }));
    let StageKind::Wasm(wasm) = &plan.stages[3].kind else { panic!("{:?}", plan.stages[3]) };
    assert_eq!(
        (wasm.mode, wasm.deadline, wasm.memory_bytes, wasm.output_bytes),
        (Mode::Sample, Duration::from_secs(5), 256 << 20, 128 << 20)
    );
    assert!(plan.source.traversal.shuffle);
    assert_eq!(plan.source.traversal.seed, 7);
}

#[test]
fn a_stage_without_a_name_is_named_after_its_kind_or_its_module() {
    let plan = check_stages(
        r#"{"wasm": {"module": "crop-faces"}}, {"aggregate": {"size": 2}}, {"wasm": {"module": "mixup@2"}},
           {"sleep": {"mean_ms": 1, "name": "delay"}}"#,
    )
    .unwrap();
    let names: Vec<&str> = plan.stages.iter().map(|stage| stage.id.name()).collect();
    assert_eq!(names, ["crop-faces", "aggregate", "mixup", "delay"]);
}

#[test]
fn a_pipeline_without_stages_is_a_plan() {
    let plan = check(r#"{"source": {"range": {"count": 100}}}"#).unwrap();
    assert_eq!(plan.sink.id.to_string(), "1:sink");
    assert_eq!(plan.threads, None);
}

#[test]
fn a_stage_with_the_wrong_input_is_reported_with_a_remedy() {
    insta::assert_snapshot!(
        [
            r#"{"collate": {}}"#,
            r#"{"disaggregate": {}}"#,
            r#"{"aggregate": {"size": 2}}, {"aggregate": {"size": 2}}"#,
            r#"{"aggregate": {"size": 2}}, {"wasm": {"module": "crop-faces"}}"#,
            r#"{"wasm": {"module": "mixup@2"}}"#,
            r#"{"aggregate": {"size": 2}}, {"collate": {}}, {"sleep": {"mean_ms": 1}}, {"fetch": {}}"#,
            r#"{"aggregate": {"size": 2}}, {"collate": {}}, {"collate": {}}"#,
            r#"{"aggregate": {"size": 2}}, {"wasm": {"module": "pack"}}"#,
        ]
        .map(|stages| faults(stages).join("\n"))
        .join("\n")
    );
}

#[test]
fn one_wrong_stage_is_one_fault_and_does_not_blame_the_next() {
    assert_eq!(faults(r#"{"collate": {}}, {"transfer": {}}, {"sleep": {"mean_ms": 1}}"#).len(), 1);
    assert_eq!(faults(r#"{"wasm": {"module": "decode"}}, {"collate": {}}"#).len(), 2);
}

#[test]
fn all_faults_are_reported_at_once_with_remedies() {
    let spec = Spec::read(
        br#"{
            "source": {"range": {"count": 9, "shard": {"rank": 2, "world": 2}}},
            "stages": [
                {"fetch": {}},
                {"fetch": {"store": "photo"}},
                {"wasm": {"module": "crop-facez", "assets": {"vocab": {"store": "table", "key": "v.txt"}}}},
                {"wasm": {"module": "sha256:1111111111111111111111111111111111111111111111111111111111111111"}},
                {"wasm": {"module": "pack", "concurrency": 2}},
                {"transfer": {"device": "cuda:0"}},
                {"collate": {}}
            ]
        }"#,
    )
    .unwrap();
    let stores = stores();
    let faults = Plan::check(
        &spec,
        Known { modules: &modules(), names: &names(), fields: None, stores: Some(&stores) },
    )
    .unwrap_err();
    let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn an_index_is_named_by_the_document_or_by_the_store() {
    let kind = |source: &str| {
        check(&format!(r#"{{"source": {{"index": {source}}}}}"#))
            .map(|plan| plan.source.spec)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    };
    let index = |source: &str| match kind(source) {
        Ok(Source::Index(index)) => (index.store.to_string(), index.index.map(|key| key.to_string())),
        other => panic!("{other:?}"),
    };
    let (photos, tables) = ("photos".to_owned(), "tables".to_owned());
    assert_eq!(index(r#"{"store": "photos", "index": "all.json"}"#), (photos, Some("all.json".to_owned())));
    assert_eq!(index(r#"{"store": "tables"}"#), (tables, None));
    insta::assert_snapshot!(kind(r#"{"store": "photos"}"#).unwrap_err());
    // Only the missing store is reported: without it, its index cannot be checked.
    insta::assert_snapshot!(kind(r#"{"store": "photo"}"#).unwrap_err());
}

#[test]
fn objects_and_labels_are_named_in_one_way_each() {
    let faults =
        |source: &str| match check(&format!(r#"{{"source": {source}, "stages": [{{"fetch": {{}}}}]}}"#)) {
            Ok(plan) => vec![plan.explain().lines().nth(1).unwrap().trim().to_owned()],
            Err(faults) => faults.iter().map(ToString::to_string).collect(),
        };
    let told = [
        r#"{"records": {"store": "tables"}}"#,
        r#"{"csv": {"store": "table", "key": "a", "prefix": "b"}}"#,
        r#"{"tsv": {"store": "tables", "key": "a.tsv", "suffix": ".tsv"}}"#,
        r#"{"list": {"store": "photos", "labels": {"store": "table", "key": "labels.txt"}}}"#,
        r#"{"list": {"store": "photos", "labels": {"key": "labels.jsonl", "types": {"n": "int"}}}}"#,
        r#"{"tsv": {"store": "tables", "prefix": "t/", "sample_key": "id", "types": {"n": "float"}}}"#,
        r#"{"csv": {"store": "tables", "shards": "t-{0..9}.csv", "shuffle": true}}"#,
        r#"{"list": {"store": "photos", "prefix": "t/", "label": "folder", "labels": {"store": "tables", "key": "l.csv", "missing": "skip"}}}"#,
    ];
    insta::assert_snapshot!(told.map(|source| faults(source).join("\n")).join("\n"));
}

#[test]
fn forms_that_no_table_has_are_faults() {
    let faults =
        |source: &str| match Spec::read(format!(r#"{{"source": {source}, "stages": []}}"#).as_bytes()) {
            Ok(_) => check(&format!(r#"{{"source": {source}, "stages": []}}"#)).err().unwrap_or_default(),
            Err(faults) => faults,
        };
    let told = |form: &str| {
        let found = faults(&format!(r#"{{"csv": {{"store": "tables", "key": "t.csv", {form}}}}}"#));
        found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    for (form, fault) in [
        (r#""delimiter": ";""#, ""),
        (r#""delimiter": "\t", "quote": null, "encoding": "utf-16""#, ""),
        (r#""delimiter": "\"", "quote": "'", "encoding": "latin1""#, ""),
        (r#""delimiter": "\u0001", "encoding": "cp1252""#, ""),
        (r#""delimiter": ";;""#, "/source/csv/delimiter: "),
        (r#""delimiter": """#, "/source/csv/delimiter: "),
        (r#""delimiter": "\n""#, "/source/csv/delimiter: "),
        (r#""delimiter": "\r""#, "/source/csv/delimiter: "),
        (r#""delimiter": "\u0000""#, "/source/csv/delimiter: "),
        (r#""delimiter": "§""#, "/source/csv/delimiter: "),
        (r#""quote": """#, "/source/csv/quote: "),
        (r#""quote": "\n""#, "/source/csv/quote: "),
        (r#""encoding": "utf-7""#, "/source/csv/encoding: "),
        (
            r#""delimiter": "\"""#,
            "/source/csv/delimiter: `\\\"` is both the delimiter and the quote: name another character",
        ),
        (
            r#""quote": ",""#,
            "/source/csv/quote: `,` is both the delimiter and the quote: name another character",
        ),
    ] {
        let found = told(form);
        assert!(found.starts_with(fault) && found.is_empty() == fault.is_empty(), "{form}: {found}");
    }
    let labels = |rest: &str| {
        let found =
            faults(&format!(r#"{{"list": {{"store": "photos", "labels": {{"store": "tables", {rest}}}}}}}"#));
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(labels(r#""key": "l.csv", "delimiter": ";", "encoding": "utf-16""#), [""; 0]);
    assert_eq!(
        labels(r#""key": "l.tsv", "quote": "\t""#),
        [
            "/source/list/labels/quote: `\\t` is both the delimiter and the quote: name another character; `\"quote\": null` reads quotes as text"
        ]
    );
    assert_eq!(
        labels(r#""key": "l.ndjson", "delimiter": ";", "quote": null, "encoding": "utf-16""#),
        [
            "/source/list/labels/delimiter: NDJSON is no table: remove `delimiter`",
            "/source/list/labels/quote: NDJSON is no table: remove `quote`",
            "/source/list/labels/encoding: NDJSON is no table: remove `encoding`",
        ]
    );
    assert_eq!(
        labels(r#""key": "l.csv.gz""#),
        [
            "/source/list/labels/key: the key `l.csv.gz` names no form of the table: decompress it: tables of labels are read by the places of their rows"
        ]
    );
}

#[test]
fn fetch_reads_a_field_that_samples_may_have() {
    let told = |source: &str| {
        let document = format!(
            r#"{{"source": {source}, "stages": [{{"fetch": {{"store": "photos", "object": "path"}}}}]}}"#
        );
        check(&document)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    };
    let plan = told(r#"{"csv": {"store": "tables", "key": "t.csv"}}"#).unwrap();
    assert_eq!(
        plan.stages[0].kind,
        StageKind::Fetch(FetchPlan { store: "photos".to_owned(), object: Some("path".to_owned()) })
    );
    assert_eq!(
        told(r#"{"list": {"store": "photos", "label": "folder"}}"#).unwrap_err(),
        "/stages/0/fetch/object: `fetch` reads the objects that the field `path` names, but samples have `label` here: put a stage \
         before it that makes the field, or read it with the source `records` or `csv`"
    );
}

#[test]
fn any_store_name_is_accepted_while_the_stores_are_unknown() {
    let spec =
        Spec::read(br#"{"source": {"list": {"store": "elsewhere"}}, "stages": [{"fetch": {}}]}"#).unwrap();
    let plan =
        Plan::check(&spec, Known { modules: &BTreeMap::new(), names: &[], fields: None, stores: None })
            .unwrap();
    assert_eq!(
        plan.stages[0].kind,
        StageKind::Fetch(FetchPlan { store: "elsewhere".to_owned(), object: None })
    );
}

#[test]
fn every_example_is_a_plan() {
    let facts = |name: &str, mode: &str| ModuleFacts {
        name: name.to_owned(),
        digest: format!("sha256:{}", "0".repeat(64)),
        manifest: manifest(mode),
    };
    let modules = [
        ("mixup", "batch"),
        ("mu-law", "sample"),
        ("std/audio", "sample"),
        ("std/image", "sample"),
        ("std/pack", "stateful"),
        ("std/table", "sample"),
        ("std/text", "sample"),
        ("text-filter", "sample"),
    ];
    let modules = modules.map(|(name, mode)| (name.to_owned(), facts(name, mode))).into();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pipelines");
    let entries =
        [folder.to_owned(), format!("{folder}/seeds")].map(|folder| std::fs::read_dir(folder).unwrap());
    for entry in entries.into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let spec = Spec::read(&std::fs::read(&path).unwrap()).unwrap();
        let plan = Plan::check(&spec, Known { modules: &modules, names: &[], fields: None, stores: None });
        assert!(plan.is_ok(), "{}: {plan:?}", path.display());
    }
}

#[test]
fn files_take_collated_batches_and_nothing_else() {
    let stages = |stages: &str| {
        let source = r#"{"list": {"store": "photos"}}"#;
        let consumer = r#"{"files": {"store": "photo", "prefix": "train"}}"#;
        check(&format!(r#"{{"source": {source}, "stages": [{stages}], "consumer": {consumer}}}"#))
            .unwrap_err()
    };
    let told = ["", r#"{"aggregate": {"size": 2}}"#, r#"{"aggregate": {"size": 2}}, {"collate": {}}"#]
        .map(|written| stages(written).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    insta::assert_snapshot!(told.join("\n\n"));
}

#[test]
fn consumers_that_read_batches_need_them_on_the_host() {
    let stages = |device: &str, consumer: &str| {
        check(&format!(
            r#"{{"source": {{"range": {{"count": 9}}}}, "consumer": {consumer}, "stages": [
                {{"aggregate": {{"size": 2}}}}, {{"collate": {{}}}}, {{"transfer": {{"device": "{device}"}}}}
            ]}}"#
        ))
    };
    let device = |written: &str, consumer: &str| match stages(written, consumer).unwrap().stages[2].kind {
        StageKind::Transfer(device) => device,
        ref other => panic!("{other:?}"),
    };
    let (discard, stream) = (r#"{"discard": {}}"#, r#"{"stream": {"ahead": 2}}"#);
    let files = r#"{"files": {"store": "photos"}}"#;
    assert_eq!(device("auto", discard), Device::Auto);
    assert_eq!(device("cuda:12", discard), Device::Cuda(12));
    assert_eq!(device("host", discard), Device::Host);
    for consumer in [stream, files] {
        assert_eq!(device("auto", consumer), Device::Host);
        let told = stages("cuda:0", consumer).unwrap_err();
        assert_eq!(told[0].pointer.as_str(), "/stages/2/transfer/device");
    }
    insta::assert_snapshot!(stages("cuda:0", stream).unwrap_err()[0]);
}

#[test]
fn a_stream_takes_collated_batches_and_a_gpu_too() {
    let told = |stages: &str, consumer: &str| {
        let document = format!(
            r#"{{"source": {{"range": {{"count": 9}}}}, "stages": [{stages}], "consumer": {consumer}}}"#
        );
        check(&document).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(
        [
            told(r#"{"aggregate": {"size": 2}}"#, r#"{"stream": {}}"#),
            told(r#"{"transfer": {"device": "cuda:1"}}"#, r#"{"discard": {}}"#),
            told(r#"{"aggregate": {"size": 2}}, {"transfer": {"device": "cuda:1"}}"#, r#"{"discard": {}}"#),
        ]
        .join("\n")
    );
}

#[test]
fn a_recipe_contains_exactly_the_settings_that_determine_the_batches() {
    let document = |run: &str, seed: u64| {
        format!(
            r#"{{"seed": {seed}, {run} "source": {{"list": {{"store": "photos", "shuffle": true}}}}, "stages": [
                {{"fetch": {{"concurrency": 4, "order": "input"}}}},
                {{"wasm": {{"module": "crop-faces", "params": {{"size": 8}}, "on_error": "fail"}}}},
                {{"wasm": {{"module": "crop-faces", "queue": 9}}}},
                {{"sleep": {{"mean_ms": 3, "fail_rate": 0.5, "concurrency": 2}}}},
                {{"aggregate": {{"size": 2}}}}, {{"collate": {{}}}}, {{"transfer": {{"device": "host"}}}}
            ], "consumer": {{"files": {{"store": "tables", "prefix": "train/"}}}}}}"#
        )
    };
    let one = check(&document("", 7)).unwrap();
    let run = r#""name": "x", "threads": 3, "interval_s": 0.5, "buffer_mib": 1, "sink": {"queue": 9},"#;
    assert_eq!(check(&document(run, 7)).unwrap().recipe, one.recipe);
    assert_ne!(check(&document("", 8)).unwrap().recipe, one.recipe);
    let fixed = check(&document(r#""deterministic": true,"#, 7)).unwrap();
    let ordered = document("", 7).replace(r#""concurrency": 2}"#, r#""concurrency": 2, "order": "input"}"#);
    assert_eq!((fixed.unordered.len(), &fixed.recipe), (0, &check(&ordered).unwrap().recipe));
    let Consumer::Files(files) = &one.consumer else { panic!("{:?}", one.consumer) };
    assert_eq!(files.folder(), "train");
    // A stage with one task at a time keeps the order with any setting.
    assert_eq!(one.unordered.iter().map(Pointer::as_str).collect::<Vec<_>>(), ["/stages/3/sleep/order"]);
    insta::assert_json_snapshot!(one.recipe);
    // A tuner may start more.
    let tuned = check(&document(r#""tune": "apply","#, 7)).unwrap();
    let unordered: Vec<_> = tuned.unordered.iter().map(Pointer::as_str).collect();
    let kinds = ["1/wasm", "2/wasm", "3/sleep", "5/collate", "6/transfer"];
    assert_eq!(unordered, kinds.map(|kind| format!("/stages/{kind}/order")));
    let ordered = check(&document(r#""tune": "apply", "deterministic": true,"#, 7)).unwrap();
    assert_eq!((ordered.unordered.len(), &ordered.recipe), (0, &fixed.recipe));
}

#[test]
fn a_batch_too_large_for_the_budget_even_with_empty_samples_is_a_fault() {
    let told = |buffer_mib: u32, count: u64, stages: &str| {
        let document = format!(
            r#"{{"buffer_mib": {buffer_mib}, "source": {{"range": {{"count": {count}}}}}, "stages": [{stages}]}}"#
        );
        check(&document).map_or_else(|faults| faults[0].to_string(), |_| String::new())
    };
    let batch = r#"{"sleep": {"mean_ms": 1}}, {"aggregate": {"size": 100000}}"#;
    assert_eq!(
        told(7, 1_000_000, batch),
        "/stages/1/aggregate/size: a batch of 100000 samples takes at least 8 MiB, and `buffer_mib` is 7: use a smaller `size`, or a \
         larger `buffer_mib`"
    );
    assert_eq!(told(8, 1_000_000, batch), "");
    // No batch is larger than an epoch, and the number of samples behind a stage that may fail is not known.
    assert_eq!(told(7, 90_000, batch), "");
    assert_eq!(
        told(7, 1_000_000, r#"{"sleep": {"mean_ms": 1, "fail_rate": 0.1}}, {"aggregate": {"size": 100000}}"#),
        ""
    );
}

#[test]
fn a_plan_is_explained_part_by_part() {
    let documents = [
        include_str!("../../../../examples/pipelines/photos.json"),
        r#"{"threads": 1, "max_failures": {"rate": 0.05}, "source": {"range": {"count": 1000, "epochs": 3, "limit": 900, "shard": {"rank": 1, "world": 4}}},
            "stages": [{"sleep": {"mean_ms": 2.5, "on": "thread", "order": "input", "on_error": "fail"}},
                       {"aggregate": {"size": 16, "drop_last": true}},
                       {"wasm": {"module": "mixup@2", "params": {"alpha": 0.2}, "assets": {"table": {"store": "photos", "key": "t"}},
                                 "max_failures": {"count": 1}}},
                       {"collate": {}}, {"transfer": {"device": "host"}}]}"#,
        r#"{"source": {"index": {"store": "tables", "shuffle": true, "epochs": null}}, "stages": [{"wasm": {"module": "pack", "on_error": "dead_letter", "assets": {"table": {"store": "photos", "key": "t"}}}}]}"#,
        r#"{"source": {"records": {"store": "tables", "key": "t.ndjson"}}, "stages": [{"fetch": {"store": "photos"}}]}"#,
        r#"{"source": {"list": {"store": "photos", "prefix": "a\u001b/", "suffix": ".jpg"}}}"#,
        ROUTED,
    ];
    let text: Vec<String> = documents.iter().map(|document| check(document).unwrap().explain()).collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn rows_of_parquet_files_are_explained_with_their_cost() {
    let told = |more: &str| {
        let document = format!(r#"{{"source": {{"parquet": {{"store": "tables", {more}}}}}}}"#);
        check(&document).map_or_else(
            |faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
            |plan| plan.explain().lines().nth(1).unwrap_or_default().to_owned(),
        )
    };
    let compared = r#""where": [{"column": "width", "op": ">=", "value": 256}, {"column": "url", "op": "!=", "value": ""}]"#;
    let texts = [
        told(r#""shards": "train-{0..9}.parquet""#),
        told(&format!(r#""prefix": "train/", "shuffle": true, {compared}"#)),
        told(r#""prefix": "train/", "shuffle": true, "window": 8"#),
        told(r#""window": 8, "columns": ["a", "b", "a", "c"], "fields": {"c": "image"}"#),
        told(r#""shards": "a", "prefix": "b""#),
    ];
    insta::assert_snapshot!(texts.join("\n\n"));
}

#[test]
fn records_and_shards_are_explained_with_the_order_in_which_they_are_read() {
    let documents = [
        r#"{"source": {"tfrecord": {"store": "photos", "shards": "a-{0..3}.tfrecord"}}}"#,
        r#"{"source": {"tfrecord": {"store": "photos", "prefix": "a", "decode": "bytes"}}}"#,
        r#"{"source": {"tfrecord": {"store": "photos", "index": "a.index", "shuffle": true, "window": 4}}}"#,
        r#"{"source": {"mds": {"store": "photos", "prefix": "train", "shuffle": true, "window": 2}}}"#,
        r#"{"source": {"mds": {"store": "photos", "fields": {"bytes": "image"}}}}"#,
    ];
    let text: Vec<String> = documents.iter().map(|document| check(document).unwrap().explain()).collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn settings_of_records_and_shards_that_do_not_fit_are_reported_with_a_remedy() {
    let documents = [
        r#"{"source": {"tfrecord": {"store": "photos", "shards": "a", "index": "b"}}}"#,
        r#"{"source": {"tfrecord": {"store": "photos", "prefix": "a", "shuffle": true}}}"#,
        r#"{"source": {"tfrecord": {"store": "photos", "index": "a", "window": 2}}}"#,
        r#"{"source": {"tfrecord": {"store": "photo", "index": "a", "decode": "bytes", "sample_key": "id", "texts": ["x"], "fields": {"a": "b"}}}}"#,
        r#"{"source": {"mds": {"store": "photo", "window": 2}}}"#,
        r#"{"source": {"mix": {"sources": {"a": {"source": {"tfrecord": {"store": "photos", "prefix": "a"}}}}}}}"#,
    ];
    let text = documents.map(|document| {
        let faults = check(document).unwrap_err();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    });
    insta::assert_snapshot!(text.join("\n\n"));
}

/// A route by the answer of a module, with a route in one of its paths, and a route that passes on what it has no path for.
const ROUTED: &str = r#"{"source": {"records": {"store": "tables", "key": "t"}}, "stages": [
    {"route": {"by": {"module": {"module": "crop-faces", "concurrency": 3}}, "name": "media", "order": "input", "on_error": "dead_letter",
               "paths": {
        "image": [{"sleep": {"mean_ms": 1, "concurrency": 4}},
                  {"route": {"by": {"field": "size"}, "paths": {"7": []}, "else": [{"fetch": {"store": "photos"}}]}}],
        "audio": []}}},
    {"route": {"by": {"field": "text"}, "paths": {"de": [{"wasm": {"module": "pack"}}, {"sleep": {"mean_ms": 1}}]}, "else": []}},
    {"aggregate": {"size": 2}}, {"collate": {}}], "consumer": {"files": {"store": "tables"}}}"#;

#[test]
fn the_stages_of_a_route_stand_in_the_plan_with_the_path_in_their_ids() {
    let plan = check(ROUTED).unwrap();
    let stages: Vec<(String, &str)> =
        plan.stages.iter().map(|stage| (stage.label(), stage.place.as_str())).collect();
    let expected = [
        ("1:media.by[3]", "/stages/0/route/by/module"),
        ("1:media/audio", "/stages/0/route/paths/audio"),
        ("1:media/image", "/stages/0/route/paths/image"),
        ("1:media/image/1:sleep[4]", "/stages/0/route/paths/image/0/sleep"),
        ("1:media/image/2:route/7", "/stages/0/route/paths/image/1/route/paths/7"),
        ("1:media/image/2:route/else", "/stages/0/route/paths/image/1/route/else"),
        ("1:media/image/2:route/else/1:fetch", "/stages/0/route/paths/image/1/route/else/0/fetch"),
        ("1:media/image/2:route", "/stages/0/route/paths/image/1/route"),
        ("1:media", "/stages/0/route"),
        ("2:route/de", "/stages/1/route/paths/de"),
        ("2:route/de/1:pack", "/stages/1/route/paths/de/0/wasm"),
        ("2:route/de/2:sleep", "/stages/1/route/paths/de/1/sleep"),
        ("2:route/else", "/stages/1/route/else"),
        ("2:route", "/stages/1/route"),
        ("3:aggregate", "/stages/2/aggregate"),
        ("4:collate", "/stages/3/collate"),
    ];
    assert_eq!(stages, expected.map(|(label, place)| (label.to_owned(), place)));
    assert_eq!(plan.sink.id.to_string(), "5:sink");
    for stage in &plan.stages {
        assert_eq!(StageId::parse(&stage.id.to_string()).as_ref(), Some(&stage.id));
    }
    // All stages of a route that keeps the order keep it, too.
    let orders: Vec<Order> = plan.stages.iter().map(|stage| stage.order).collect();
    assert!(orders[..9].iter().all(|order| *order == Order::Input), "{orders:?}");
    assert_eq!(
        orders[9..14],
        [Order::Input, Order::Completion, Order::Completion, Order::Input, Order::Completion]
    );
    let routes = plan.routes();
    assert_eq!(routes.iter().map(|route| route.join).collect::<Vec<_>>(), [9, 8, 14]);
    assert_eq!(
        plan.chain(),
        "[0:src] -> [1:media.by[3]] -> {audio: - | image: [1:media/image/1:sleep[4]] -> {7: - | else: \
        [1:media/image/2:route/else/1:fetch]} -> [1:media/image/2:route]} -> [1:media] -> {de: [2:route/de/1:pack] -> \
        [2:route/de/2:sleep] | else: -} -> [2:route] -> [3:aggregate] -> [4:collate] -> [5:sink]"
    );
}

#[test]
fn the_recipe_of_a_routed_pipeline_has_the_settings_of_all_paths() {
    let plan = check(ROUTED).unwrap();
    assert_eq!(plan.unordered.iter().map(Pointer::as_str).collect::<Vec<_>>(), ["/stages/1/route/order"]);
    insta::assert_json_snapshot!(plan.recipe);
}

#[test]
fn samples_behind_a_route_are_counted_unless_a_path_keeps_some() {
    let items = |stages: &str| {
        let document = format!(
            r#"{{"source": {{"range": {{"count": 9}}}}, "stages": [{stages}, {{"aggregate": {{"size": 2}}}}]}}"#
        );
        let (mut spec, modules) = (Spec::read(document.as_bytes()).unwrap(), modules());
        spec.max_failures = None;
        let known = Known { modules: &modules, names: &[], fields: Some(Fields::UNKNOWN), stores: None };
        Plan::check(&spec, known).unwrap().items_of(9)
    };
    let route = |path: &str| {
        format!(r#"{{"route": {{"by": {{"field": "x"}}, "paths": {{"a": [{path}], "b": []}}}}}}"#)
    };
    assert_eq!(items(&route("")), Some(5));
    assert_eq!(items(&route(&route(r#"{"sleep": {"mean_ms": 1}}"#))), Some(5));
    assert_eq!(items(&route(&route(r#"{"wasm": {"module": "pack"}}"#))), None);
}

#[test]
fn a_route_that_cannot_run_is_reported_at_the_stage_in_its_path() {
    let route = |by: &str, path: &str, more: &str| {
        format!(r#"{{"route": {{"by": {by}, "paths": {{"a": [{path}]}}{more}}}}}"#)
    };
    let field = r#"{"field": "kind"}"#;
    let pack = r#"{"wasm": {"module": "pack"}}"#;
    let any = r#"{"wasm": {"module": "crop-faces"}}"#;
    insta::assert_snapshot!(
        [
            route(field, "", ""),
            format!(
                "{any}, {}",
                route(field, r#"{"aggregate": {"size": 2}}, {"collate": {}}, {"transfer": {}}"#, "")
            ),
            format!(
                "{any}, {}",
                route(field, r#"{"wasm": {"module": "mixup@2"}}, {"fetch": {"store": "x"}}"#, "")
            ),
            format!("{any}, {}", route(field, pack, r#", "order": "input""#)),
            format!("{any}, {}", route(field, &route(field, pack, ""), r#", "order": "input""#)),
            route(r#"{"module": {"module": "mixup@2", "name": "x"}}"#, "", ""),
            route(r#"{"module": {"module": "pack"}}"#, "", r#", "order": "input""#),
            format!(r#"{any}, {{"aggregate": {{"size": 2}}}}, {}"#, route(field, "", "")),
            format!(r#"{any}, {}, {{"collate": {{}}}}"#, route(field, "", "")),
        ]
        .map(|stages| faults(&stages).join("\n"))
        .join("\n\n")
    );
}

#[test]
fn an_ending_of_a_module_is_replaced_by_those_that_its_manifest_lists() {
    let stores = stores();
    let mut modules = modules();
    let reads = vec![".jpg".to_owned(), ".png".to_owned()];
    modules.get_mut("std/image").unwrap().manifest.reads = Some(reads.clone());
    let check = |source: &str| {
        let document = format!(r#"{{"source": {source}, "stages": []}}"#);
        let spec = Spec::read(document.as_bytes()).unwrap();
        let named: Vec<String> = spec.named_modules().into_iter().map(ToString::to_string).collect();
        let known = Known { modules: &modules, names: &names(), fields: None, stores: Some(&stores) };
        (Plan::check(&spec, known), named, spec.modules().len())
    };
    let (plan, named, run) = check(r#"{"list": {"store": "photos", "suffix": {"of": "std/image"}}}"#);
    let Source::List(list) = plan.unwrap().source.spec else { panic!() };
    assert_eq!((list.suffix, named, run), (Suffix::Several(reads.clone()), vec!["std/image".to_owned()], 0));
    let mixed = r#"{"mix": {"sources": {"a": {"source": {"list": {"store": "photos", "suffix": {"of": "std/image"}}}}}}}"#;
    let Source::Mix(mix) = check(mixed).0.unwrap().source.spec else { panic!() };
    let Source::List(list) = &mix.sources.values().next().unwrap().source else { panic!() };
    assert_eq!(list.suffix, Suffix::Several(reads));
    let faults = [
        r#"{"list": {"store": "photos", "suffix": {"of": "std/imag"}}}"#,
        r#"{"list": {"store": "photos", "suffix": {"of": "pack"}}}"#,
        r#"{"list": {"store": "photos", "suffix": []}}"#,
        r#"{"records": {"store": "photos", "prefix": "a", "suffix": {"of": "std/image"}}}"#,
    ]
    .map(|source| check(source).0.unwrap_err()[0].to_string());
    assert_eq!(
        faults,
        [
            "/source/list/suffix/of: there is no module `std/imag`: did you mean `std/image`? known: `std/image`",
            "/source/list/suffix/of: the module `pack` does not say which files it reads: list the endings, such as `[\".jpg\", \".png\"]`",
            "/source/list/suffix: found no ending: name at least one, or remove `suffix`",
            "/source/records/suffix: the files that a module reads are no tables or records: name the endings",
        ]
    );
}

#[test]
fn classes_are_names_of_folders_and_the_same_in_a_mixture() {
    let faults = |source: &str| -> Vec<String> {
        let found = check(&format!(r#"{{"source": {source}, "stages": []}}"#))
            .map_or_else(|faults| faults, |_| Vec::new());
        found.iter().map(|fault| fault.pointer.to_string()).collect()
    };
    let list = |rest: &str| faults(&format!(r#"{{"list": {{"store": "photos", {rest}}}}}"#));
    assert_eq!(list(r#""label": "folder", "classes": ["b", "a"]"#), [""; 0]);
    assert_eq!(list(r#""classes": ["b"]"#), ["/source/list/classes"]);
    assert_eq!(list(r#""label": "folder", "classes": []"#), ["/source/list/classes"]);
    let wrong = list(r#""label": "folder", "classes": ["a", "", "b/c", "a"]"#);
    assert_eq!(wrong, [1, 2, 3].map(|index| format!("/source/list/classes/{index}")));
    let mix = |first: &str, second: &str| {
        let part = |classes: &str| {
            format!(r#"{{"source": {{"list": {{"store": "photos", "label": "folder"{classes}}}}}}}"#)
        };
        faults(&format!(r#"{{"mix": {{"sources": {{"a": {}, "b": {}}}}}}}"#, part(first), part(second)))
    };
    assert_eq!(mix(r#", "classes": ["x", "y"]"#, ""), [""; 0]);
    assert_eq!(mix(r#", "classes": ["x", "y"]"#, r#", "classes": ["x", "y"]"#), [""; 0]);
    let found = mix(r#", "classes": ["x", "y"]"#, r#", "classes": ["y", "x"]"#);
    assert_eq!(found, ["/source/mix/sources/b/source/list/classes"]);
}

#[test]
fn contradictions_about_fields_in_the_document_are_faults() {
    let faults = |source: &str| {
        let checked = check(&format!(r#"{{"source": {source}, "stages": []}}"#));
        checked.err().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        faults(
            r#"{"tfrecord": {"store": "photos", "prefix": "a", "texts": ["t", "n"], "scalars": ["l", "n"], "lists": ["m", "l", "t"]}}"#
        ),
        [
            "/source/tfrecord/scalars/1: `texts` names the feature `n`, too: remove one of them",
            "/source/tfrecord/lists/1: `scalars` names the feature `l`, too: remove one of them"
        ]
    );
    let csv = |missing: &str| {
        faults(&format!(
            r#"{{"csv": {{"store": "photos", "key": "a.csv", "types": {{"a": "int", "b": "float", "c": "text"}}, "missing": {missing}}}}}"#
        ))
    };
    assert_eq!(
        csv(r#"{"a": {"value": "x"}, "b": {"value": 9007199254740993}, "c": "nan"}"#),
        [
            "/source/csv/missing/a: `value` is the text `x`, and `types` makes the field `int`: give it a value of that type, or change `types`",
            "/source/csv/missing/b: `value` is 9007199254740993, and `types` makes the field `float`: give it a value of that type, or change \
             `types`",
            "/source/csv/missing/c: only float numbers can be NaN, and `types` makes the field `text`: give it a value of that type, or change \
             `types`",
        ]
    );
    let fits = r#"{"a": {"value": true}, "b": {"value": -1}, "c": {"value": ""}, "d": {"value": 0}}"#;
    assert_eq!(csv(fits), Vec::<String>::new());
}

/// Documents of all examples, and those from which fuzzing begins, which together have each kind of stage and source. Resume tokens and
/// folders of batches have digests of recipes: a change of one ends the runs of before.
#[test]
fn recipes_stay_as_they_are() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut told = String::new();
    for folder in ["examples/pipelines", "examples/pipelines/seeds", "tests/fuzz/corpus/document"] {
        let files = std::fs::read_dir(format!("{root}/{folder}")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
        files.sort();
        for file in files {
            let name = format!("{folder}/{}", file.file_name().unwrap().display());
            told += &match Spec::read(&std::fs::read(&file).unwrap()) {
                Ok(spec) => format!("{name}\n{}\n\n", recipe_or_faults(&spec)),
                Err(_) => format!("{name}\nno document\n\n"),
            };
        }
    }
    insta::assert_snapshot!(told);
}

fn recipe_or_faults(spec: &Spec) -> String {
    let named: Vec<String> = spec.named_modules().into_iter().map(ToString::to_string).collect();
    let facts = |(number, written): (usize, &String)| {
        let modes = [("pack", "stateful"), ("mixup", "batch"), ("b@1", "batch")];
        let mode = modes.iter().find(|(name, _)| written.ends_with(name)).map_or("sample", |(_, mode)| mode);
        let mut manifest = manifest(mode);
        manifest.reads = Some(vec![".jpg".to_owned()]);
        let digest = format!("sha256:{number:064}");
        (written.clone(), ModuleFacts { name: written.clone(), digest, manifest })
    };
    let modules = named.iter().enumerate().map(facts).collect();
    match Plan::check(spec, Known { modules: &modules, names: &named, fields: None, stores: None }) {
        Ok(plan) => plan.recipe.to_string(),
        Err(faults) => faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}
