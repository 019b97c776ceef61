//! Predictions with and without a profile, for pipelines with two stages that compete for the cores: those of even numbers decode photos,
//! those of odd numbers read memory at random places, and compete for its caches and its bandwidth, too.

use std::path::Path;
use std::sync::OnceLock;

use penstock_tests::{Call, Chance, Folder};
use serde_json::{Value, json};

use crate::contended::{predicted_rate, rate, run, with_data};
use crate::{Bound, Row, median};

const PIPELINES: u64 = 12;
/// Changes of each of these.
const CHANGES: usize = 2;
/// Times that each is recorded, and measured with each change, in turns: the speed of a machine differs between runs.
const ROUNDS: usize = 3;
/// Duration of each run.
const TIME: &str = "4s";

/// Errors of predicted rates, sorted: with the profile, and without.
struct Errors {
    with: Vec<f64>,
    without: Vec<f64>,
}

pub(crate) fn median_error() -> Row {
    row("error of rates predicted with a profile, two stages, median", 3.0, 2.0, 0.5)
}

pub(crate) fn p95_error() -> Row {
    row("error of rates predicted with a profile, two stages, p95", 8.0, 6.0, 0.95)
}

fn row(what: &'static str, must: f64, aim: f64, quantile: f64) -> Row {
    let Errors { with, without } = errors();
    let at = |sorted: &[f64]| {
        let place = ((sorted.len() as f64 * quantile).ceil() as usize).clamp(1, sorted.len()) - 1;
        sorted[place] * 100.0
    };
    assert!(at(with) < at(without), "the profile makes predictions worse");
    Row {
        what,
        must: Bound::AtMost(must, " %"),
        aim: Bound::AtMost(aim, " %"),
        found: at(with),
        from: format!(
            "{PIPELINES} pipelines with {CHANGES} changes each, medians of {ROUNDS} turns; without the profile {:.2} %",
            at(without)
        ),
    }
}

fn errors() -> &'static Errors {
    static ERRORS: OnceLock<Errors> = OnceLock::new();
    ERRORS.get_or_init(|| {
        let mut errors = Errors { with: Vec::new(), without: Vec::new() };
        (0..PIPELINES).for_each(|number| measure(number, &mut errors));
        errors.with.sort_by(f64::total_cmp);
        errors.without.sort_by(f64::total_cmp);
        errors
    })
}

/// Records the pipeline `number` as it is, and predicts its rate with changes.
fn measure(number: u64, errors: &mut Errors) {
    let (folder, mut chance) = (Folder::new(), Chance::new(number.wrapping_add(3_000)));
    let pipeline = if number.is_multiple_of(2) { photos } else { walks };
    let (document, stages) = pipeline(&mut chance);
    let document = folder.write("two.json", document.to_string());
    let changes: Vec<_> = (0..CHANGES).map(|_| changes(&mut chance, stages)).collect();
    let profile = profile(&folder, &document);
    let mut ratios = vec![(Vec::new(), Vec::new()); CHANGES];
    for round in 0..ROUNDS {
        let out = folder.join(&round.to_string());
        run(&document, &[], TIME).out(&out).finish().exits(0);
        for (changes, (with, without)) in changes.iter().zip(&mut ratios) {
            let measured = rate(&run(&document, changes, TIME).json().finish().exits(0).snapshot());
            let ratio = |profile| predicted_rate(&document, &out, changes, profile) / measured;
            with.push(ratio(Some(profile.as_path())));
            without.push(ratio(None));
        }
    }
    eprintln!("pipeline {number}: predicted / measured, with a profile and without {ratios:.3?}");
    for (with, without) in ratios {
        errors.with.push((median(with) - 1.0).abs());
        errors.without.push((median(without) - 1.0).abs());
    }
}

fn profile(folder: &Folder, document: &Path) -> std::path::PathBuf {
    let path = folder.join("profile.json");
    let call = with_data(Call::new(&["profile", "--quiet", "--record", "2s"]).argument(document));
    call.argument("-o").argument(&path).finish().exits(0);
    path
}

/// A number of threads, and a concurrency of each of the two stages.
fn changes(chance: &mut Chance, stages: [&str; 2]) -> Vec<String> {
    let stages = stages.map(|stage| format!("{stage}/wasm/concurrency={}", chance.from(1, 3)));
    std::iter::once(format!("/threads={}", chance.from(1, 3))).chain(stages).collect()
}

/// A random pipeline of two stages that read memory at places which depend on one another, and the places of these stages.
fn walks(chance: &mut Chance) -> (Value, [&'static str; 2]) {
    let mut walk = |name: &str| {
        let (mib, steps) = (chance.pick(&[1, 8, 16]), chance.from(10, 40) * 1_000);
        json!({ "wasm": {
            "module": "walk", "name": name, "params": { "mib": mib, "steps": steps },
            "concurrency": chance.from(1, 2), "queue": 4
        } })
    };
    let stages = json!([walk("first"), walk("second"), { "aggregate": { "size": 8 } }]);
    let document = json!({
        "name": "walks", "seed": 7, "threads": chance.from(1, 2), "source": { "range": { "count": 1_000_000_000 } },
        "stages": stages, "consumer": { "discard": {} }
    });
    (document, ["/stages/0", "/stages/1"])
}

/// A random pipeline that decodes photos in two stages, those of one folder to small pictures and the others to large ones, and the
/// places of these stages.
fn photos(chance: &mut Chance) -> (Value, [&'static str; 2]) {
    let decode = |name: &str, size: u32, concurrency: u64| {
        json!({ "wasm": {
            "module": "std/image", "name": name, "params": { "ops": [{ "Resize": { "size": [size, size] } }] },
            "concurrency": concurrency, "queue": 4
        } })
    };
    let (small, large) = (chance.pick(&[32, 64, 128]), chance.pick(&[224, 384, 512]));
    let document = json!({
        "name": "photos", "seed": 7, "threads": chance.from(1, 2),
        "source": { "list": { "store": "photos", "suffix": ".jpg", "shuffle": true, "epochs": null, "label": "folder" } },
        "stages": [
            { "fetch": { "concurrency": 4, "queue": 8 } },
            { "route": {
                "by": { "field": "label" }, "queue": 4,
                "paths": { "0": [decode("small", small, chance.from(1, 2))] },
                "else": [decode("large", large, chance.from(1, 2))]
            } },
            { "aggregate": { "size": 8 } }
        ],
        "consumer": { "discard": {} }
    });
    (document, ["/stages/1/route/paths/0/0", "/stages/1/route/else/0"])
}
