//! `penstock profile`: what each stage can do alone.

use std::path::{Path, PathBuf};

use penstock_tests::{Call, Folder, photos};
use penstock_types::profile::Profile;
use serde_json::{Value, json};

fn document(folder: &Folder) -> PathBuf {
    folder.document(&json!({
        "name": "photos", "threads": 1,
        "source": { "list": { "store": "photos", "suffix": ".jpg" } },
        "stages": [
            { "fetch": {} },
            { "wasm": { "module": "std/image", "name": "decode", "params": { "ops": [{ "Resize": { "size": [64, 64] } }] } } },
            { "aggregate": { "size": 4 } },
            { "collate": {} },
        ],
    }))
}

fn profile(folder: &Folder) -> Call {
    let call = Call::new(&["profile", "--record", "2s", "--for", "60ms", "--threads", "1,2"]);
    call.argument(document(folder)).store("photos", photos())
}

#[test]
fn a_profile_of_photos_is_printed_kept_and_used_by_a_prediction() {
    let folder = Folder::new();
    let path = folder.join("profile.json");
    let done = profile(&folder).argument("-o").argument(&path).finish().exits(0);
    for told in [
        "[1:fetch] on ",
        "[2:decode] on ",
        "[4:collate] on ",
        "MiB in an instance",
        "(knee)",
        "with the others",
    ] {
        assert!(done.stdout.contains(told), "{told}: {}", done.stdout);
    }
    assert!(done.stderr.contains("[2:decode] alone, 2 at a time, round 3"), "{}", done.stderr);
    let kept: Profile = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let [fetch, decode, collate] = &kept.stages[..] else { panic!("{kept:?}") };
    assert_eq!((fetch.computes, decode.computes, collate.computes), (false, true, true));
    assert_eq!(decode.points.iter().map(|point| point.at_a_time).collect::<Vec<_>>(), [1, 2]);
    // Three bytes for each of 64 x 64 pixels.
    assert!((decode.bytes_out_per_1000 - 12_288_000.0).abs() < 1.0, "{decode:?}");
    assert!(decode.memory_bytes.is_some_and(|bytes| bytes >= 1 << 16), "{decode:?}");
    assert_eq!(collate.inputs.samples, 4 * collate.inputs.items);

    let out = folder.join("out");
    let run = Call::run(&document(&folder)).store("photos", photos()).out(&out);
    run.finish().exits(0);
    let predict = |profile: &Path| {
        let call = Call::new(&["predict"]).argument(document(&folder)).store("photos", photos());
        call.argument("--profile").argument(profile).json()
    };
    let predicted = predict(&path).argument("--from").argument(&out).finish().exits(0);
    assert_eq!(predicted.stderr, "");
    let predicted: Value = serde_json::from_str(&predicted.stdout).unwrap();
    assert!(predicted["assumptions"].to_string().contains("as the profile has measured"), "{predicted}");
    assert!(predict(&path).finish().exits(2).stderr.contains("--from"));

    let mut other = kept;
    (other.name, other.cores) = ("sounds".to_owned(), other.cores + 1);
    other.stages.retain(|stage| stage.name != "decode");
    let other = folder.write("other.json", serde_json::to_string(&other).unwrap());
    let told = predict(&other).argument("--from").argument(&out).finish().exits(0).stdout;
    for doubt in
        ["one of the pipeline `sounds`, not of `photos`", "and the machine has", "no figures of `2:decode`"]
    {
        assert!(told.contains(doubt), "{doubt}: {told}");
    }
}

#[test]
fn a_wrong_stage_and_a_wrong_file_are_bad_input() {
    let folder = Folder::new();
    let told = profile(&folder).argument("--stage=resize").finish().exits(2).stderr;
    assert!(
        told.contains("no stage `resize` with an op; those are `1:fetch`, `2:decode`, `4:collate`"),
        "{told}"
    );
    let wrong = folder.write("wrong.json", "{}");
    let call =
        Call::new(&["predict", "--from", "out", "--profile"]).argument(&wrong).argument(document(&folder));
    let told = call.store("photos", photos()).finish().exits(2).stderr;
    assert!(told.contains("is no profile, as `penstock profile -o` writes it"), "{told}");
}

#[test]
fn tuning_does_not_write_batches() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "range": { "count": 10 } },
        "stages": [{ "aggregate": { "size": 2 } }, { "collate": {} }],
        "consumer": { "files": { "store": "out" } },
    }));
    let place = folder.join("batches");
    std::fs::create_dir(&place).unwrap();
    let told = Call::new(&["tune"]).argument(&document).store("out", &place).finish().exits(2).stderr;
    assert!(told.contains("would write the batches of a run that only measures"), "{told}");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
}

#[test]
fn a_time_too_short_to_judge_settings_gives_no_document() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "range": { "count": 10 } },
        "stages": [{ "sleep": { "mean_ms": 1 } }],
        "consumer": { "discard": {} },
    }));
    let tuned = folder.join("tuned.json");
    let call = Call::new(&["tune", "--for", "300ms", "--output"]).argument(&tuned).argument(&document);
    let told = call.finish().exits(1).stderr;
    assert!(
        told.contains("and nothing was written: settings are judged when two measurements in a row"),
        "{told}"
    );
    assert!(!tuned.exists());
}
