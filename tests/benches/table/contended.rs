//! Predictions and advice for photo pipelines on a machine that busy loops use as well.

use std::hint;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use penstock_tests::{Call, Chance, Folder};
use penstock_types::run::RunSnapshot;
use penstock_types::verdict::{Goal, Setting};
use serde_json::{Value, json};

use crate::{Bound, Row, median, photos_dir};

/// Numbers of busy loops beside the pipelines.
const LOOPS: [usize; 3] = [0, 1, 2];
/// Duration of each run that is predicted.
const TIME: &str = "5s";
/// Pipelines whose rates are predicted, beside each number of busy loops.
const PREDICTED: u64 = 10;
/// Pipelines whose advice is followed, beside each number of busy loops.
const ADVISED: u64 = 30;
/// Runs of each of these with and without the advice, in turns.
const PAIRS: usize = 5;
/// Level of significance at which advice counts as harmful.
const LEVEL: f64 = 0.05;

/// Busy loops until they are dropped.
struct Loops(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Loops {
    fn new(count: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let busy = |over: Arc<AtomicBool>| {
            move || {
                while !over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            }
        };
        let threads = (0..count).map(|_| thread::spawn(busy(over.clone()))).collect();
        Self(over, threads)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// Errors of rates predicted for other settings than those of the recorded run, median: the largest of all numbers of loops.
pub(crate) fn median_error() -> Row {
    error("error of the rates predicted beside 0, 1, 2 busy loops, median", 3.0, 2.0, 0.5)
}

pub(crate) fn p95_error() -> Row {
    error("error of the rates predicted beside 0, 1, 2 busy loops, p95", 10.0, 6.0, 0.95)
}

/// Errors of the predictions beside a number of busy loops, and differences between two runs of the same pipeline, both sorted.
struct Errors {
    predicted: Vec<f64>,
    repeated: Vec<f64>,
}

fn error(what: &'static str, must: f64, aim: f64, quantile: f64) -> Row {
    static ERRORS: OnceLock<Vec<Errors>> = OnceLock::new();
    let errors = ERRORS.get_or_init(|| LOOPS.iter().map(|loops| errors(*loops)).collect());
    let at = |sorted: &[f64]| {
        let place = ((sorted.len() as f64 * quantile).ceil() as usize).clamp(1, sorted.len()) - 1;
        sorted[place] * 100.0
    };
    let told = LOOPS.iter().zip(errors).map(|(loops, errors)| {
        let (predicted, repeated) = (at(&errors.predicted), at(&errors.repeated));
        format!("{predicted:.2} % beside {loops} (the same pipeline again: {repeated:.2} %)")
    });
    Row {
        what,
        must: Bound::AtMost(must, " %"),
        aim: Bound::AtMost(aim, " %"),
        found: errors.iter().map(|errors| at(&errors.predicted)).fold(0.0, f64::max),
        from: format!(
            "{PREDICTED} photo pipelines with two changes each: {}",
            told.collect::<Vec<_>>().join(", ")
        ),
    }
}

fn errors(loops: usize) -> Errors {
    let _loops = Loops::new(loops);
    let (mut errors, mut repeated) = (Vec::new(), Vec::new());
    for number in 0..PREDICTED {
        let (folder, mut chance) = (Folder::new(), Chance::new(number));
        let document = folder.write("photos.json", photos(&mut chance).to_string());
        let out = folder.join("out");
        let recorded = rate(&run(&document, &[], TIME).out(&out).finish().exits(0).snapshot());
        let again = rate(&run(&document, &[], TIME).json().finish().exits(0).snapshot());
        repeated.push((again / recorded - 1.0).abs());
        for _ in 0..2 {
            let changes = [
                format!("/threads={}", chance.from(1, 3)),
                format!("/stages/2/wasm/concurrency={}", chance.from(1, 3)),
                format!("/consumer/simulate/step_ms={}", chance.from(1, 12)),
            ];
            let predict = Call::new(&["predict"]).argument(&document).store("photos", &photos_dir());
            let predict = predict.argument("--from").argument(&out).json();
            let predict = changes.iter().fold(predict, |call, change| call.set(change));
            let predicted: Value = serde_json::from_str(&predict.finish().exits(0).stdout).unwrap();
            let measured = rate(&run(&document, &changes, TIME).json().finish().exits(0).snapshot());
            errors.push((predicted["rate"].as_f64().unwrap() / measured - 1.0).abs());
        }
    }
    errors.sort_by(f64::total_cmp);
    repeated.sort_by(f64::total_cmp);
    Errors { predicted: errors, repeated }
}

/// Pipelines that are slower with the settings that their verdict advises: a paired t-test of the logarithms of the rates, with
/// Holm's correction for the number of tests.
pub(crate) fn harmful_advice() -> Row {
    let mut tests = Vec::new();
    let mut silent = 0;
    for loops in LOOPS {
        let _loops = Loops::new(loops);
        for number in 0..ADVISED {
            match gains(number) {
                Some(gains) => tests.push((slower(&gains), median(gains), number, loops)),
                None => silent += 1,
            }
        }
    }
    tests.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all = tests.len();
    let harmful = tests.iter().enumerate().take_while(|(place, test)| test.0 <= LEVEL / (all - place) as f64);
    let harmful = harmful.count();
    let worst = tests.iter().min_by(|one, other| one.1.total_cmp(&other.1)).unwrap();
    let gain = median(tests.iter().map(|test| test.1).collect());
    Row {
        what: "photo pipelines slower with advice, beside 0, 1, 2 busy loops",
        must: Bound::AtMost(0.0, ""),
        aim: Bound::AtMost(0.0, ""),
        found: if gain >= 1.0 { harmful as f64 } else { all as f64 },
        from: format!(
            "of {all}, {PAIRS} pairs each, {silent} more without settings to try; median gain {gain:.2}x; the least, {:.2}x (p {:.3}), is \
             pipeline {} beside {} loops",
            worst.1, worst.0, worst.2, worst.3
        ),
    }
}

/// Ratio of the rates with and without the first advice that has settings, for each pair of runs; `None` without such advice.
fn gains(number: u64) -> Option<Vec<f64>> {
    let (folder, mut chance) = (Folder::new(), Chance::new(number.wrapping_add(1_000)));
    let document = folder.write("photos.json", photos(&mut chance).to_string());
    let before = || run(&document, &[], "2s").json().finish().exits(0).snapshot();
    let mut advice = before().verdict.unwrap().advice.into_iter();
    let advice = advice.find(|advice| advice.goal == Goal::Rate && !advice.set.is_empty())?;
    let set = |Setting { pointer, value }: &Setting| format!("{pointer}={value}");
    let changes: Vec<String> = advice.set.iter().map(set).collect();
    let after = || run(&document, &changes, "2s").json().finish().exits(0).snapshot();
    let pair = |_| {
        let before = rate(&before());
        rate(&after()) / before
    };
    Some((0..PAIRS).map(pair).collect())
}

/// One-sided p-value of the hypothesis that the ratios are 1, against smaller ones: Student's t with `PAIRS - 1` = 4 degrees of
/// freedom, whose distribution function is 1/2 + 3/8 x (1 - x^2 / 12) with x = t / sqrt(1 + t^2 / 4).
fn slower(ratios: &[f64]) -> f64 {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let t = mean / (variance / count).sqrt().max(f64::MIN_POSITIVE);
    let x = t / (1.0 + t * t / 4.0).sqrt();
    0.5 + 0.375 * x * (1.0 - x * x / 12.0)
}

/// A random pipeline that decodes photos, with too little or too much of some settings.
fn photos(chance: &mut Chance) -> Value {
    json!({
        "name": "photos", "seed": 7, "threads": chance.from(1, 3),
        "source": { "list": { "store": "photos", "suffix": ".jpg", "shuffle": true, "epochs": null } },
        "stages": [
            { "fetch": { "concurrency": chance.from(1, 8), "queue": chance.from(1, 8) } },
            { "sleep": { "mean_ms": chance.from(1, 8), "shape": "exponential", "concurrency": chance.from(1, 12) } },
            { "wasm": {
                "module": "std/image", "params": { "ops": [{ "Resize": { "size": chance.pick(&[64, 224]) } }, { "CenterCrop": { "size": 64 } }] },
                "concurrency": chance.from(1, 3), "queue": chance.from(1, 8)
            } },
            { "aggregate": { "size": chance.pick(&[1, 4, 16]) } },
            { "collate": { "concurrency": chance.from(1, 2) } }
        ],
        "sink": { "queue": chance.from(1, 6) },
        "consumer": { "simulate": { "step_ms": chance.from(1, 12) } }
    })
}

fn run(document: &std::path::Path, changes: &[String], time: &str) -> Call {
    let call = Call::run(document).store("photos", &photos_dir()).argument("--for").argument(time);
    changes.iter().fold(call, |call, change| call.set(change))
}

fn rate(snapshot: &RunSnapshot) -> f64 {
    snapshot.queues.last().unwrap().figures.qps.unwrap()
}
