//! Report of a run in text: summary lines, verdict, tables of stages and queues, and the ledger.

use std::collections::BTreeMap;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use penstock_types::amount::plural;
use penstock_types::data_set::{DataField, DataFields};
use penstock_types::fault::listed;
use penstock_types::ledger::{Ledger, RunBook, SourceBook};
use penstock_types::left_out::LeftOut;
use penstock_types::run::{FailureGroup, LabelsRecord, QueueRecord, RunSnapshot, RunState, StageRecord};
use penstock_types::stats::SlotShares;
use penstock_types::text::shown;
use penstock_types::tune::{ChangeOutcome, SettingChange};
use penstock_types::verdict::{VerdictKind, VerdictSpan};

use crate::text::{bracketed, count, dash, duration, paragraphs, percent, rate, warn};
use crate::{COMPLETED, FAILED, STOPPED};

/// Maximum number of fields in a list of a source's fields.
const MOST_FIELDS: usize = 20;

pub(crate) fn report(snapshot: &RunSnapshot) -> String {
    let data = snapshot.fields.as_ref().map_or_else(String::new, |fields| {
        // The first node of a run is its source.
        let source = snapshot.ledger.stages.first().map_or("", |book| book.id.as_str());
        fields_line(source, fields)
    });
    paragraphs([
        snapshot.verdict.as_ref().map_or_else(String::new, ToString::to_string),
        moves(&snapshot.verdicts),
        changes(&snapshot.changes),
        headline(snapshot),
        stages(&snapshot.stages),
        queues(&snapshot.queues),
        ledger(snapshot),
        sources(&snapshot.ledger),
        failures(snapshot),
        warnings(snapshot),
        files(snapshot),
        data,
        labels(snapshot),
        caches(snapshot),
        counters(snapshot),
        lines(snapshot),
    ])
}

/// Changes of settings, and the flags with which another run begins with those that were kept or would help.
pub(crate) fn changes(changes: &[SettingChange]) -> String {
    let lines = changes.iter().map(|change| format!("  {:.1} s  {change}", change.at_s));
    let mut flags: BTreeMap<String, u32> = BTreeMap::new();
    for change in changes.iter().filter(|change| change.holds() || change.outcome == ChangeOutcome::Suggested)
    {
        flags.insert(change.pointer.to_string(), change.to);
    }
    let flags = flags.iter().map(|(pointer, value)| format!(" --set {pointer}={value}"));
    let flags: String = flags.collect();
    match changes.is_empty() {
        true => String::new(),
        false => {
            let lines: Vec<String> = lines.collect();
            let keep =
                if flags.is_empty() { String::new() } else { format!("\nTo begin with these:{flags}") };
            format!("Settings:{}\n{}{keep}", brought(changes), lines.join("\n"))
        }
    }
}

/// Rate before the first and after the last of the changes that hold; empty if it was not measured.
fn brought(changes: &[SettingChange]) -> String {
    // Settings with which a resumed run begins have brought nothing in this run.
    let is_measured = |change: &SettingChange| change.before.or(change.measured).is_some();
    let held = || changes.iter().filter(|change| change.holds() && is_measured(change));
    let undone = match changes.iter().filter(|change| change.outcome == ChangeOutcome::Undone).count() {
        0 => String::new(),
        undone => format!("; {undone} undone"),
    };
    let (before, measured) =
        (held().find_map(|change| change.before), held().filter_map(|change| change.measured).next_back());
    let Some((before, measured)) = before.zip(measured) else { return String::new() };
    let count = plural(held().count() as u64, "change");
    format!(" {before:.1} -> {measured:.1} items/s by {count}{undone}")
}

/// Losses that a run without a report states, too: failed samples and warnings.
pub(crate) fn losses(snapshot: &RunSnapshot) -> String {
    let parts = [failures(snapshot), warnings(snapshot)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

fn warnings(snapshot: &RunSnapshot) -> String {
    warning_lines(&snapshot.warnings).collect::<Vec<_>>().join("\n")
}

pub(crate) fn warning_lines(warnings: &[String]) -> impl Iterator<Item = String> {
    warnings.iter().map(|warning| format!("Warning: {warning}"))
}

pub(crate) fn fields_line(source: &str, fields: &DataFields) -> String {
    let named = fields.fields.iter().take(MOST_FIELDS).map(|DataField { name, kind, optional }| {
        let optional = if *optional == Some(true) { " (optional)" } else { "" };
        format!("{} {kind}{optional}", shown(name))
    });
    let mut named: Vec<String> = named.collect();
    match fields.fields.len().checked_sub(MOST_FIELDS) {
        Some(more @ 1..) => named.push(format!("and {} more", count(more as u64))),
        _ if fields.is_open => named.push("possibly others".to_owned()),
        _ => {}
    }
    let learnt = fields.learnt_from.map_or_else(String::new, |samples| match samples {
        1 => ", learnt from the first sample".to_owned(),
        samples => format!(", learnt from the first {} samples", count(samples)),
    });
    let named = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
    format!("[{source}] fields: {named}{learnt}")
}

pub(crate) fn left_out_lines(left_out: &BTreeMap<String, Vec<LeftOut>>) -> impl Iterator<Item = String> {
    left_out.iter().map(|(source, left_out)| {
        let reasons: Vec<String> = left_out.iter().map(LeftOut::in_words).collect();
        format!("[{source}] left out {}", reasons.join("; "))
    })
}

/// Prints the error of a failed run and returns the command's exit code.
pub(crate) fn exit_code(state: RunState, error: Option<&str>) -> u8 {
    if let Some(error) = error {
        warn(&format!("error: the run failed: {error}"));
    }
    match state {
        RunState::Completed => COMPLETED,
        RunState::Stopped => STOPPED,
        _ => FAILED,
    }
}

/// Lists the limits of the run over time; empty if the limit did not change.
fn moves(spans: &[VerdictSpan]) -> String {
    if spans.iter().filter(|span| span.kind != VerdictKind::TooLittle).count() < 2 {
        return String::new();
    }
    let line =
        |span: &VerdictSpan| format!("  {:>7.1} s to {:>7.1} s: {}", span.from_s, span.to_s, span.in_short());
    let lines = std::iter::once("The limit moved:".to_owned()).chain(spans.iter().map(line));
    lines.collect::<Vec<_>>().join("\n")
}

fn headline(snapshot: &RunSnapshot) -> String {
    format!(
        "{} {} after {:.2} s: {} samples delivered, {}/s, {} threads",
        snapshot.name,
        snapshot.state.name(),
        snapshot.elapsed_s,
        count(snapshot.ledger.total.delivered),
        rate(snapshot.samples_per_s),
        snapshot.threads
    )
}

pub(crate) fn stages(stages: &[StageRecord]) -> String {
    if stages.is_empty() {
        return String::new();
    }
    let share = |stage: &StageRecord, of: fn(&SlotShares) -> f64| percent(stage.task.shares.as_ref().map(of));
    columns(
        stages,
        &[
            ("stage", &|stage| stage.label.clone()),
            ("tasks", &|stage| count(stage.task.num_tasks)),
            ("failed", &|stage| count(stage.task.num_failures)),
            ("ave", &|stage| duration(stage.task.ave_time_s)),
            ("p50", &|stage| duration(stage.task.p50_time_s)),
            ("p99", &|stage| duration(stage.task.p99_time_s)),
            ("thread wait", &|stage| duration(stage.task.ave_thread_wait_s)),
            ("permit wait", &|stage| match stage.kind.has_setting("store") {
                true => share(stage, |shares| shares.permit_wait),
                false => dash(),
            }),
            ("busy", &|stage| share(stage, |shares| shares.busy)),
            ("blocked", &|stage| share(stage, |shares| shares.blocked)),
            ("order wait", &|stage| share(stage, |shares| shares.order_wait)),
            ("idle", &|stage| share(stage, |shares| shares.idle)),
            ("instances", &|stage| {
                stage.task.ave_thread_wait_s.map_or_else(dash, |_| count(stage.task.instances))
            }),
        ],
    )
}

pub(crate) fn queues(queues: &[QueueRecord]) -> String {
    columns(
        queues,
        &[
            ("queue", &|queue| queue.label.clone()),
            ("capacity", &|queue| count(queue.figures.capacity as u64)),
            ("items", &|queue| count(queue.figures.num_items)),
            ("qps", &|queue| rate(queue.figures.qps)),
            ("ave put", &|queue| duration(queue.figures.ave_put_time_s)),
            ("ave get", &|queue| duration(queue.figures.ave_get_time_s)),
            ("readiness", &|queue| percent(queue.figures.readiness)),
            ("starved", &|queue| percent(queue.figures.starved)),
        ],
    )
}

fn ledger(snapshot: &RunSnapshot) -> String {
    let header = ["samples", "in", "made", "out", "dropped", "skipped", "dead letters", "discarded", "left"];
    let row = |id: &str, taken: u64, made: u64, out: u64, lost: [u64; 5]| {
        let mut row = vec![id.to_owned(), count(taken), count(made), count(out)];
        row.extend(lost.map(count));
        row
    };
    let stages = snapshot.ledger.stages.iter().map(|book| {
        let lost = [book.dropped, book.skipped, book.dead_lettered, book.discarded, book.left];
        row(&book.id, book.taken, book.made, book.out, lost)
    });
    let of_run = |id: &str, book: &RunBook| {
        let lost = [book.dropped, book.skipped, book.dead_lettered, book.discarded, book.left];
        row(id, 0, book.made, book.delivered, lost)
    };
    let total = &snapshot.ledger.total;
    let earlier = snapshot.resumed.iter();
    let runs = earlier
        .flat_map(|earlier| [of_run("earlier runs", earlier), of_run("all runs", &earlier.plus(total))]);
    let whole = std::iter::once(of_run("whole run", total)).chain(runs);
    let verdict =
        if snapshot.ledger.balanced { "The ledger balances." } else { "THE LEDGER DOES NOT BALANCE." };
    let left_out = left_out_lines(&snapshot.left_out).map(|line| format!("\n{line}"));
    format!("{}\n{verdict}{}", table(&header, stages.chain(whole)), left_out.collect::<String>())
}

/// Formats the draws and deliveries of each source of a mixture, with a warning for shares that the stages have changed.
fn sources(ledger: &Ledger) -> String {
    let books = &ledger.sources;
    if books.is_empty() {
        return String::new();
    }
    let sum = |of: fn(&SourceBook) -> u64| books.iter().map(of).sum::<u64>().max(1) as f64;
    let (drawn, delivered) = (sum(|book| book.drawn), sum(|book| book.delivered));
    let mut text = columns(
        books,
        &[
            ("source", &|book| book.name.clone()),
            ("weight", &|book| count(book.weight.into())),
            ("drawn", &|book| count(book.drawn)),
            ("share", &|book| percent(Some(book.drawn as f64 / drawn))),
            ("delivered", &|book| count(book.delivered)),
            ("share", &|book| percent(Some(book.delivered as f64 / delivered))),
        ],
    );
    let shifted: Vec<&str> =
        books.iter().filter(|book| book.shifted).map(|book| book.name.as_str()).collect();
    if !shifted.is_empty() {
        text += &format!(
            "\nWarning: the stages left out or added samples unevenly, so that the delivered shares of {} are more than 5 % off \
             the drawn ones. Weights count draws: change them to deliver other shares.",
            listed(shifted)
        );
    }
    text
}

fn failures(snapshot: &RunSnapshot) -> String {
    if snapshot.failures.is_empty() {
        return String::new();
    }
    let limit = snapshot.failure_limit.as_ref();
    let limit = limit.map_or_else(String::new, |limit| format!(" (the run fails after {limit})"));
    let mut lines = vec![format!("Failures{limit}:")];
    lines.extend(failure_lines(&snapshot.failures));
    if snapshot.failures_not_listed > 0 {
        lines.push(format!("  {} more of other kinds", count(snapshot.failures_not_listed)));
    }
    lines.join("\n")
}

pub(crate) fn failure_lines(groups: &[FailureGroup]) -> impl Iterator<Item = String> {
    groups.iter().map(|group| {
        let more = if group.count > group.first_keys.len() as u64 { ", ..." } else { "" };
        format!(
            "  {} x [{}] {}: {} ({}{more})",
            count(group.count),
            group.stage,
            group.class.name(),
            group.message,
            group.first_keys.join(", ")
        )
    })
}

fn files(snapshot: &RunSnapshot) -> String {
    let Some(files) = &snapshot.files else { return String::new() };
    let [written, there] = [files.written, files.already_there].map(count);
    format!("[files] {written} batches written, {there} already present")
}

/// Formats the classes of each source, and the keys and labels without a match.
fn labels(snapshot: &RunSnapshot) -> String {
    const MOST_CLASSES: usize = 10;
    let listed = |names: &[String], has_more: bool| {
        let more = if has_more { ", ..." } else { "" };
        let names: Vec<String> = names.iter().map(|name| name.escape_debug().to_string()).collect();
        format!("{}{more}", names.join(", "))
    };
    let line = |(source, labels): (&String, &LabelsRecord)| {
        let mut facts = Vec::new();
        if labels.class_count > 0 {
            let first = &labels.classes[..labels.classes.len().min(MOST_CLASSES)];
            let names = listed(first, labels.class_count > MOST_CLASSES as u64);
            facts.push(format!("{} classes: {names}", count(labels.class_count)));
        }
        if labels.unused > 0 {
            let keys = listed(&labels.unused_keys, labels.unused > labels.unused_keys.len() as u64);
            facts.push(format!("{} labels of keys that are not listed ({keys})", count(labels.unused)));
        }
        (!facts.is_empty()).then(|| format!("[{source}] {}", facts.join("; ")))
    };
    snapshot.labels.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// Formats what the caches of stores answered, and what they did not keep.
fn caches(snapshot: &RunSnapshot) -> String {
    let lines =
        snapshot.caches.iter().map(|(store, figures)| format!("[cache of {store}] {}", figures.in_words()));
    lines.collect::<Vec<_>>().join("\n")
}

fn counters(snapshot: &RunSnapshot) -> String {
    let line = |(stage, counters): (&String, &BTreeMap<String, f64>)| {
        let named: Vec<String> = counters.iter().map(|(name, value)| format!("{name} {value}")).collect();
        format!("[{stage}] counted {}", named.join(", "))
    };
    snapshot.counters.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Summary line of each stage and of the sink, and the answer to whether data loading is the bottleneck.
fn lines(snapshot: &RunSnapshot) -> String {
    let mut lines: Vec<String> = snapshot.stages.iter().map(stage_line).collect();
    let [.., before, sink] = snapshot.queues.as_slice() else { return lines.join("\n") };
    let (upstream, downstream) = (before.figures.ave_get_time_s, sink.figures.ave_put_time_s);
    lines.push(format!(
        "[sink] Processed {} items in {}. QPS: {}. Average wait time: Upstream: {}, Downstream: {}.",
        sink.figures.num_items,
        bracketed(sink.figures.elapsed_s),
        sink.figures.qps.map_or_else(dash, |qps| format!("{qps:.2}")),
        upstream.map_or_else(dash, bracketed),
        downstream.map_or_else(dash, bracketed),
    ));
    if let Some(verdict) = &snapshot.verdict {
        lines.push(format!("Is data loading the bottleneck? {}.", verdict.answer.in_words()));
    }
    lines.join("\n")
}

fn stage_line(stage: &StageRecord) -> String {
    let task = &stage.task;
    format!(
        "[{}] Completed {} tasks ({} failed) in {}. QPS: {} (Concurrency: {}). Average task time: {}.",
        stage.name,
        task.num_tasks,
        task.num_failures,
        bracketed(task.elapsed_s),
        task.tasks_per_s.map_or_else(dash, |qps| format!("{qps:.2}")),
        stage.concurrency,
        task.ave_time_s.map_or_else(dash, bracketed),
    )
}

/// Title of a column, and the text of a row in it.
pub(crate) type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

/// Table with a row for each of `rows`.
pub(crate) fn columns<T>(rows: &[T], columns: &[Column<'_, T>]) -> String {
    let header: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    table(&header, rows.iter().map(|row| columns.iter().map(|(_, text)| text(row)).collect()))
}

pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().copied()).add_rows(rows);
    for (position, column) in table.column_iter_mut().enumerate() {
        if position > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use penstock_types::data_set::FieldType;
    use penstock_types::left_out::LeftOutReason;

    use super::*;

    #[test]
    fn fields_are_listed_with_their_types_up_to_a_limit() {
        let field = |name: &str, kind, optional| DataField { name: name.into(), kind, optional };
        let mut fields = DataFields::of(vec![
            field("label", FieldType::Int, Some(false)),
            field("image", FieldType::Bytes, None),
            field("boxes", FieldType::Tensor { dtype: None, dimensions: Some(2) }, Some(true)),
        ]);
        let mut lines = vec![fields_line("0:src", &fields), fields_line("0:src", &DataFields::default())];
        fields.learnt_from = Some(10_000);
        lines.push(fields_line("0:src", &fields));
        fields.is_open = true;
        fields.learnt_from = Some(1);
        lines.push(fields_line("0:src", &fields));
        fields.fields = (0..23).map(|number| field(&format!("{number}"), FieldType::Text, None)).collect();
        lines.push(fields_line("0:src", &fields));
        let many: Vec<String> = (0..20).map(|number| format!("{number} text")).collect();
        let expected = [
            "[0:src] fields: label int64, image bytes, boxes array [2 dimensions] (optional)",
            "[0:src] fields: none",
            "[0:src] fields: label int64, image bytes, boxes array [2 dimensions] (optional), learnt from the first 10,000 samples",
            "[0:src] fields: label int64, image bytes, boxes array [2 dimensions] (optional), possibly others, learnt from the first sample",
            &format!("[0:src] fields: {}, and 3 more, learnt from the first sample", many.join(", ")),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn each_source_has_a_line_about_what_it_left_out() {
        let of = |reason, count| {
            let first = if reason == LeftOutReason::Suffix { "`.b` 1" } else { "a/b" };
            LeftOut { reason, count, samples: None, first: vec![first.to_owned()] }
        };
        let left_out = BTreeMap::from([
            ("cats".to_owned(), vec![of(LeftOutReason::Suffix, 1), of(LeftOutReason::Hidden, 7)]),
            ("dogs".to_owned(), vec![of(LeftOutReason::Link, 2)]),
        ]);
        let expected = [
            "[cats] left out 1 key with another ending (`.b` 1); 7 hidden files (`a/b`, ...)",
            "[dogs] left out 2 links that are not followed (`a/b`, ...)",
        ];
        assert_eq!(left_out_lines(&left_out).collect::<Vec<_>>(), expected);
    }
}
