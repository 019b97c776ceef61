use std::path::Path;

use anyhow::Result;
use penstock_pipeline::compare::{
    ClassesDelta, Comparison, Delta, RankComparison, compare as compare_two, compare_ranks,
};
use penstock_pipeline::predict::{Recording, RecordingError};
use penstock_types::fault::listed;

use crate::args::CompareArgs;
use crate::input::bad;
use crate::report::table;
use crate::text::{duration, percent, rate, say_as};

pub(crate) fn compare(args: &CompareArgs) -> Result<()> {
    let runs: Vec<Recording> = args.runs.iter().map(|folder| recording(folder)).collect::<Result<_>>()?;
    if let Some(ranks) = compare_ranks(&runs) {
        return say_as(args.json, &ranks, ranks_in_words);
    }
    let [one, other] = runs.as_slice() else {
        return Err(bad(format!(
            "these {} runs are not ranks of one pipeline, each with a different `shard` of the source; name two runs, or only ranks of one pipeline",
            runs.len()
        )));
    };
    say_as(args.json, &compare_two(one, other), in_words)
}

pub(crate) fn recording(folder: &Path) -> Result<Recording> {
    Recording::read(folder).map_err(|error| match error {
        RecordingError::None { .. } => bad(error.to_string()),
        RecordingError::Unreadable { .. } => error.into(),
    })
}

fn in_words(comparison: &Comparison) -> String {
    let changes = comparison.changes.iter().map(|change| {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        vec![change.pointer.to_string(), shown(&change.from), shown(&change.to)]
    });
    let changes = match comparison.changes.len() {
        0 => "The documents are the same.".to_owned(),
        _ => table(&["changed", "first", "second"], changes),
    };
    let row = |what: &str, delta: Delta, words: &dyn Fn(Option<f64>) -> String| {
        vec![what.to_owned(), words(delta.from), words(delta.to), change(delta)]
    };
    let mut rows = vec![
        row("items/s", comparison.rate, &rate),
        row("consumer waits for an item", comparison.wait_s, &duration),
        row("readiness before the consumer", comparison.readiness, &percent),
    ];
    for stage in &comparison.stages {
        rows.push(row(&format!("[{}] ave", stage.id), stage.ave_time_s, &duration));
        if stage.core_share.from.is_some() {
            rows.push(row(&format!("[{}] had a core", stage.id), stage.core_share, &percent));
        }
    }
    let figures = table(&["", "first", "second", "change"], rows.into_iter());
    let classes: String =
        comparison.classes.iter().map(|delta| format!("{}\n\n", classes_in_words(delta))).collect();
    format!("{}\n\n{classes}{changes}\n\n{figures}", comparison.sentence)
}

fn classes_in_words(delta: &ClassesDelta) -> String {
    let ClassesDelta { source, class_count: [first, second], only_first, only_second, moved } = delta;
    let mut words =
        format!("The classes of `{source}` differ: {first} in the first run, {second} in the second.");
    for (run, names) in [("first", only_first), ("second", only_second)] {
        if !names.is_empty() {
            words += &format!(" Only the {run} has {}.", listed(names.iter().map(String::as_str)));
        }
    }
    if let Some((name, [from, to])) = moved {
        words += &format!(" `{name}` has the label {from} in the first and {to} in the second.");
    }
    words
}

fn change(delta: Delta) -> String {
    match (delta.from, delta.to) {
        (Some(from), Some(to)) if from > 0.0 => format!("{:+.1} %", (to / from - 1.0) * 100.0),
        _ => "-".to_owned(),
    }
}

fn ranks_in_words(ranks: &RankComparison) -> String {
    let rows = ranks.ranks.iter().map(|rank| {
        let limit = rank.limit.to_string();
        vec![rank.rank.to_string(), rate(Some(rank.rate)), format!("{:.0} %", rank.to_median * 100.0), limit]
    });
    format!("{}\n\n{}", ranks.sentence, table(&["rank", "items/s", "of the median", "limit"], rows))
}
