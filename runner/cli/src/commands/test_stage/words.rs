//! Text form of a trial's report.

use penstock_pipeline::trial::{
    CallTrial, Difference, DifferenceCause, MadeField, MadeSample, MadeValue, Outcome, SampleTrial,
    TrialReport,
};
use penstock_types::run::FailureClass;
use penstock_types::text::{printable, shown};

use crate::report::table;
use crate::text::{count, duration, paragraphs};

/// Maximum number of samples whose fields are shown.
const SHOWN_SAMPLES: usize = 20;
/// Maximum number of output samples that are shown for one input sample.
const SHOWN_MADE: usize = 5;
/// Maximum number of rows in the table of samples.
const SHOWN_ROWS: usize = 100;
/// Maximum number of log lines, and of differences, that are shown.
const SHOWN_LINES: usize = 20;

/// Formats the report as text, with details of the first samples only.
pub(super) fn in_words(report: &TrialReport) -> String {
    let tables = [headline(report), rows(report), fields(report), counters(report), logs(report)];
    paragraphs(tables.into_iter().chain([missing(report), differences(report), sums(report)]))
}

fn headline(report: &TrialReport) -> String {
    let allowed = report.limits;
    format!(
        "{} {}, mode {}, {}\nallowed {} ms CPU time per sample and {} MiB; started in {} with {}",
        report.module,
        report.version,
        report.mode.name(),
        report.digest,
        count(allowed.deadline_ms.into()),
        count(allowed.memory_mib.into()),
        duration(Some(report.start.cpu_s)),
        bytes(report.start.memory_bytes),
    )
}

fn rows(report: &TrialReport) -> String {
    let header = ["sample", "outcome", "CPU", "wall", "memory", "in", "out"];
    let calls = report.calls.iter().chain(&report.finish);
    let rows: Vec<Vec<String>> = calls.flat_map(call_rows).collect();
    let more = more(rows.len(), SHOWN_ROWS);
    table(&header, rows.into_iter().take(SHOWN_ROWS)) + &more
}

/// Creates the rows of a call. The figures of the call appear in the row of its first sample.
fn call_rows(call: &CallTrial) -> Vec<Vec<String>> {
    let figures = [duration(Some(call.cpu_s)), duration(Some(call.wall_s)), bytes(call.memory_bytes)];
    let row = |(number, sample): (usize, &SampleTrial)| {
        let mut row = vec![shown(&sample.key), outcome(sample)];
        row.extend(figures.iter().map(|figure| if number == 0 { figure.clone() } else { "\"".to_owned() }));
        row.extend([bytes(sample.bytes_in), bytes(sample.bytes_out)]);
        row
    };
    call.samples.iter().enumerate().map(row).collect()
}

fn outcome(sample: &SampleTrial) -> String {
    match (sample.outcome, &sample.failure) {
        (Outcome::Many, _) => format!("{} samples", count(sample.made.len() as u64)),
        (Outcome::Dropped, _) if sample.key == "finish" => "nothing".to_owned(),
        (Outcome::Failed, Some(failure)) => format!("failed: {}", failure.class.name()),
        (other, _) => other.name().to_owned(),
    }
}

fn fields(report: &TrialReport) -> String {
    let told: Vec<String> = report.samples().filter_map(sample).collect();
    told[..told.len().min(SHOWN_SAMPLES)].join("\n") + &more(told.len(), SHOWN_SAMPLES)
}

fn sample(sample: &SampleTrial) -> Option<String> {
    let mut lines = Vec::new();
    if let Some(failure) = &sample.failure {
        let whose = match failure.class {
            FailureClass::Data => "the data was refused",
            FailureClass::Bug => "the stage is at fault",
            FailureClass::Contract => "the stage broke the contract",
            FailureClass::Storage => "the object could not be read",
        };
        lines.push(format!("  {whose}: {}", failure.message));
        if failure.held_lost > 0 {
            lines
                .push(format!("  {} samples that the instance held back are lost", count(failure.held_lost)));
        }
    }
    for made in sample.made.iter().take(SHOWN_MADE) {
        let is_itself = made.key == sample.key && sample.made.len() == 1;
        if !is_itself {
            lines.push(format!("  -> {}", shown(&made.key)));
        }
        lines.extend(made_lines(made, if is_itself { "  " } else { "     " }));
    }
    if sample.made.len() > SHOWN_MADE {
        lines.push(format!("  and {} more", count((sample.made.len() - SHOWN_MADE) as u64)));
    }
    (!lines.is_empty()).then(|| format!("{}\n{}", shown(&sample.key), lines.join("\n")))
}

fn made_lines(made: &MadeSample, indent: &str) -> Vec<String> {
    if made.fields.is_empty() {
        return vec![format!("{indent}no fields")];
    }
    let names: Vec<String> = made.fields.iter().map(|field| printable(&field.name, 60)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |(name, field): (&String, &MadeField)| format!("{indent}{name:<width$}  {}", value(field));
    names.iter().zip(&made.fields).map(line).collect()
}

fn value(field: &MadeField) -> String {
    match &field.value {
        MadeValue::Blob => format!("blob, {}", bytes(field.bytes)),
        MadeValue::Text { characters, start } => {
            format!("text, {} characters: \"{start}\"", count(*characters))
        }
        MadeValue::Int { value } => format!("int {value}"),
        MadeValue::Real { value } => format!("real {value}"),
        MadeValue::Tensor { dtype, shape, min, max, mean, nan, data: _ } => {
            let mut text = format!("{dtype} {shape:?}");
            if let (Some(min), Some(max), Some(mean)) = (min, max, mean) {
                text.push_str(&format!(", {} to {}, mean {}", figure(*min), figure(*max), figure(*mean)));
            }
            if *nan > 0 {
                text.push_str(&format!(", {} NaN", count(*nan)));
            }
            text
        }
    }
}

/// Formats whole numbers without decimals, and other numbers with four decimals.
fn figure(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e15 { format!("{number}") } else { format!("{number:.4}") }
}

fn counters(report: &TrialReport) -> String {
    let counted: Vec<String> = report.counters.iter().map(|(name, sum)| format!("{name} {sum}")).collect();
    if counted.is_empty() { String::new() } else { format!("Counted: {}", counted.join(", ")) }
}

fn logs(report: &TrialReport) -> String {
    if report.logs.is_empty() {
        return String::new();
    }
    let lines = report.logs.iter().take(SHOWN_LINES).map(|line| {
        let level = format!("{:?}", line.level).to_lowercase();
        format!("  {level:<5} {}", line.message)
    });
    let mut text = format!("Logged:\n{}", lines.collect::<Vec<_>>().join("\n"));
    let left_out = report.logs_dropped + report.logs.len().saturating_sub(SHOWN_LINES) as u64;
    if left_out > 0 {
        text.push_str(&format!("\n  and {} more lines", count(left_out)));
    }
    text
}

/// Advice about fields that the module reads, but that no sample has.
fn missing(report: &TrialReport) -> String {
    let [missing, ..] = report.missing_fields.as_slice() else { return String::new() };
    let have = match report.input_fields.as_slice() {
        [] => "the samples have no fields".to_owned(),
        fields => format!("the samples have {}", listed(fields)),
    };
    format!(
        "Note: the module reads {}, which no sample has ({have}).\n      Give records with that field (a line of NDJSON is a \
         sample), or let files become it: `--field {missing}`, as text with `--text`.",
        listed(&report.missing_fields),
    )
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("`{}`", printable(name, 60))).collect::<Vec<_>>().join(", ")
}

fn differences(report: &TrialReport) -> String {
    let Some(differences) = &report.differences else { return String::new() };
    if differences.is_empty() {
        let times = report.repeat;
        return format!("Every sample produced the same result {times} times, on new and on used instances.");
    }
    let line = |difference: &Difference| {
        let why = match difference.cause {
            DifferenceCause::State => "depends on what the instance saw before",
            DifferenceCause::Chance => "differs between new instances",
        };
        let [fresh, other] = [&difference.fresh, &difference.other].map(|gave| printable(gave, 60));
        format!("  {}: {} {why}: {fresh}, then {other}", shown(&difference.key), difference.what)
    };
    let lines: Vec<String> = differences.iter().take(SHOWN_LINES).map(line).collect();
    format!(
        "RESULTS DIFFER:\n{}{}\nThe data of a run would depend on its threads. Keep no state between samples, and take \
         randomness from `item.rng()`.",
        lines.join("\n"),
        more(differences.len(), SHOWN_LINES)
    )
}

fn sums(report: &TrialReport) -> String {
    let samples: Vec<_> = report.calls.iter().flat_map(|call| &call.samples).collect();
    let of =
        |wanted: &[Outcome]| samples.iter().filter(|sample| wanted.contains(&sample.outcome)).count() as u64;
    let sums = [
        (of(&[Outcome::Kept, Outcome::Many]), "passed on"),
        (of(&[Outcome::Dropped]), "dropped"),
        (of(&[Outcome::Held]), "held"),
        (of(&[Outcome::Failed]), "failed"),
    ];
    let sums = sums.into_iter().filter(|(sum, _)| *sum > 0);
    let sums: Vec<String> = sums.map(|(sum, word)| format!("{} {word}", count(sum))).collect();
    let suggested = &report.suggested;
    format!(
        "{} samples: {}.\nLimits with room to spare, for the pipeline: \"deadline_ms\": {}, \"memory_mib\": {} (longest {}, \
         largest {}).",
        count(samples.len() as u64),
        sums.join(", "),
        suggested.deadline_ms,
        suggested.memory_mib,
        duration(Some(suggested.longest_cpu_s)),
        bytes(suggested.most_memory_bytes),
    )
}

fn more(all: usize, most: usize) -> String {
    if all <= most {
        String::new()
    } else {
        format!("\nand {} more; `--json` prints all of them", count((all - most) as u64))
    }
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}
