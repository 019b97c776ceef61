//! Predictions and advice for photo pipelines on a machine that busy loops use as well.

use std::hint;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use penstock_tests::{Call, Chance, Folder, contradictions};
use penstock_types::run::RunSnapshot;
use penstock_types::verdict::{Goal, Setting};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::{Bound, Row, median, photos_dir};

/// Numbers of busy loops beside the pipelines.
const LOOPS: [usize; 3] = [0, 1, 2];
/// Duration of each run that is predicted.
const TIME: &str = "5s";
/// Pipelines whose rates are predicted, beside each number of busy loops.
const PREDICTED: u64 = 10;
/// Changes of each of these.
const CHANGES: usize = 2;
/// Times that each is recorded, and measured with each change, in turns: the speed of a machine differs between runs.
const ROUNDS: usize = 3;
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

/// Errors of the predictions beside a number of busy loops, medians of the rounds; and differences between two runs of the same
/// pipeline, and between the speeds of a core at two times, which no prediction can know. All are sorted.
struct Errors {
    predicted: Vec<f64>,
    repeated: Vec<f64>,
    machine: Vec<f64>,
}

fn error(what: &'static str, must: f64, aim: f64, quantile: f64) -> Row {
    static ERRORS: OnceLock<Vec<Errors>> = OnceLock::new();
    let errors = ERRORS.get_or_init(|| LOOPS.iter().map(|loops| errors(*loops)).collect());
    let at = |sorted: &[f64]| {
        let place = ((sorted.len() as f64 * quantile).ceil() as usize).clamp(1, sorted.len()) - 1;
        sorted[place] * 100.0
    };
    let told = LOOPS.iter().zip(errors).map(|(loops, errors)| {
        let (predicted, repeated, machine) = (at(&errors.predicted), at(&errors.repeated), at(&errors.machine));
        format!("{predicted:.2} % beside {loops} (two runs of one pipeline: {repeated:.2} %, one computation on one core: {machine:.2} %)")
    });
    Row {
        what,
        must: Bound::AtMost(must, " %"),
        aim: Bound::AtMost(aim, " %"),
        found: errors.iter().map(|errors| at(&errors.predicted)).fold(0.0, f64::max),
        from: format!(
            "{PREDICTED} photo pipelines with {CHANGES} changes each, medians of {ROUNDS} turns: {}",
            told.collect::<Vec<_>>().join(", ")
        ),
    }
}

fn errors(loops: usize) -> Errors {
    let _loops = Loops::new(loops);
    let (mut predicted, mut repeated, mut speeds) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..PREDICTED {
        speeds.push(core_speed());
        let (folder, mut chance) = (Folder::new(), Chance::new(number));
        let document = folder.write("photos.json", photos(&mut chance).to_string());
        let changes: Vec<_> = (0..CHANGES).map(|_| changes(&mut chance)).collect();
        let (mut recorded, mut ratios) = (Vec::new(), vec![Vec::new(); CHANGES]);
        for round in 0..ROUNDS {
            let out = folder.join(&round.to_string());
            recorded.push(rate(&run(&document, &[], TIME).out(&out).finish().exits(0).snapshot()));
            for (changes, ratios) in changes.iter().zip(&mut ratios) {
                let measured = rate(&run(&document, changes, TIME).json().finish().exits(0).snapshot());
                ratios.push(predicted_rate(&document, &out, changes, None) / measured);
            }
        }
        eprintln!(
            "pipeline {number} beside {loops}: predicted / measured {ratios:.3?}, recorded {recorded:.1?}"
        );
        predicted.extend(ratios.into_iter().map(|ratios| (median(ratios) - 1.0).abs()));
        repeated.extend(differences(&recorded));
    }
    let mut machine = differences(&speeds);
    for errors in [&mut predicted, &mut repeated, &mut machine] {
        errors.sort_by(f64::total_cmp);
    }
    Errors { predicted, repeated, machine }
}

/// Relative differences between each figure and the one before.
fn differences(figures: &[f64]) -> Vec<f64> {
    figures.windows(2).map(|pair| (pair[1] / pair[0] - 1.0).abs()).collect()
}

/// Passes over a buffer in a second of CPU time, in about as many seconds as a run takes.
fn core_speed() -> f64 {
    let time = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let bytes: Vec<u8> = (0..1 << 20).map(|number: u32| number as u8).collect();
    let (begin, mut passes) = (time(), 0.0);
    while time() - begin < 5.0 {
        let hash =
            bytes.iter().fold(0, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
        hint::black_box(hash);
        passes += 1.0;
    }
    passes / (time() - begin)
}

fn changes(chance: &mut Chance) -> [String; 3] {
    [
        format!("/threads={}", chance.from(1, 3)),
        format!("/stages/2/wasm/concurrency={}", chance.from(1, 3)),
        format!("/consumer/simulate/step_ms={}", chance.from(1, 12)),
    ]
}

/// Rate with these changes, predicted from the run recorded in `out`, and from a profile.
pub(crate) fn predicted_rate(document: &Path, out: &Path, changes: &[String], profile: Option<&Path>) -> f64 {
    let call = with_data(Call::new(&["predict"]).argument(document));
    let call = profile.into_iter().fold(call, |call, profile| call.argument("--profile").argument(profile));
    let call = changes.iter().fold(call.argument("--from").argument(out), |call, change| call.set(change));
    let report: Value = serde_json::from_str(&call.json().finish().exits(0).stdout).unwrap();
    report["rate"].as_f64().unwrap()
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
                Some(gains) => {
                    eprintln!("pipeline {number} beside {loops}: with advice / without {gains:.3?}");
                    tests.push((slower(&gains), median(gains), number, loops));
                }
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

/// Runs whose verdict contradicts their figures.
pub(crate) fn contradictory_verdicts() -> Row {
    let mut found = Vec::new();
    for loops in LOOPS {
        let _loops = Loops::new(loops);
        for number in 0..ADVISED {
            let (folder, mut chance) = (Folder::new(), Chance::new(number.wrapping_add(2_000)));
            let document = folder.write("photos.json", photos(&mut chance).to_string());
            let contradictions =
                contradictions(&run(&document, &[], "2s").json().finish().exits(0).snapshot());
            if !contradictions.is_empty() {
                found.push(format!("pipeline {number} beside {loops}: {}", contradictions.join("; ")));
            }
        }
    }
    Row {
        what: "verdicts against their figures, beside 0, 1, 2 busy loops",
        must: Bound::AtMost(0.0, ""),
        aim: Bound::AtMost(0.0, ""),
        found: found.len() as f64,
        from: format!("of {} photo pipelines; {}", LOOPS.len() as u64 * ADVISED, found.join("\n    ")),
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

pub(crate) fn run(document: &Path, changes: &[String], time: &str) -> Call {
    let call = with_data(Call::run(document)).argument("--for").argument(time);
    changes.iter().fold(call, |call, change| call.set(change))
}

/// Adds what the pipelines read, and the module of those that read memory.
pub(crate) fn with_data(call: Call) -> Call {
    call.store("photos", &photos_dir()).module("walk", "guest-walking")
}

pub(crate) fn rate(snapshot: &RunSnapshot) -> f64 {
    snapshot.queues.last().unwrap().figures.qps.unwrap()
}
