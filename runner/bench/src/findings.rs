//! What a report comes to, in sentences.

use crate::report::{ActionReport, Cell, Report, ReportState};
use crate::spec::{Cache, Mode};
use crate::subject::StoreKind;

/// From which difference on the first pass is told apart from the others.
const COLD: f64 = 0.15;
/// How much of the permits a load may leave unused before it is said.
const UNUSED: f64 = 0.7;
/// Objects should have so many times the machine's memory for no cache to matter, as MLPerf Storage has it.
const TIMES_MEMORY: f64 = 5.0;

/// The most important first.
pub(crate) fn findings(report: &Report) -> Vec<String> {
    let mut told = Vec::new();
    match (report.state, &report.reason) {
        (ReportState::Failed, Some(reason)) => {
            told.push(format!("It failed, and what follows is not all: {reason}"))
        }
        (ReportState::Stopped, _) => told.push("It was stopped, and what follows is not all.".to_owned()),
        _ => {}
    }
    told.extend(report.cells().filter(|cell| !cell.books.balanced).map(void));
    told.extend(report.fastest().map(fastest));
    told.extend(speed_up(report));
    told.extend(report.fastest().and_then(bound));
    if let Some(cells) = lost(report) {
        told.push(cells);
    }
    if let Some(found) = &report.accelerators {
        let (name, step) = (&found.accelerator, found.step_s * 1e3);
        let what = match name.as_str() {
            "own" => format!("accelerators with a step of {step:.3} ms for {} samples", found.batch_size),
            name => format!("accelerators {name} ({step:.3} ms for {} samples)", found.batch_size),
        };
        let least = found.utilisation * 100.0;
        told.push(match found.supported {
            0 => {
                let one = found.trials.iter().find(|trial| trial.accelerators == 1);
                let found = one.map_or_else(String::new, |one| {
                    format!(": one computes {:.0} % of its time", one.utilisation * 100.0)
                });
                format!("It feeds not even one of the {what} at {least:.0} %{found}.")
            }
            number => format!("It feeds {number} {what} at {least:.0} % or more, by trial."),
        });
    }
    let costs = report.counterfactuals.iter().skip(1).filter(|without| without.gain > 0.02);
    if let Some(most) = costs.max_by(|one, other| one.gain.total_cmp(&other.gain)) {
        told.push(format!(
            "Without `{}` the fastest load would be {:.0} % faster: {:.0} items/s.",
            most.without,
            most.gain * 100.0,
            most.items_per_s
        ));
    }
    told.extend(caches(report));
    told
}

fn void(cell: &Cell) -> String {
    let wrong = cell.books.checks.iter().find(|check| !check.holds);
    let (identity, found) =
        wrong.map_or(("", ""), |check| (&check.identity, check.found.as_deref().unwrap_or("")));
    format!(
        "The figures of `{}` are void, since its books do not balance: `{identity}`: {found}.",
        cell.label()
    )
}

fn fastest(cell: &Cell) -> String {
    format!(
        "The fastest load is `{}`: {:.1} items/s, {:.1} MB/s, with {:.1} of {} reads in flight.",
        cell.label(),
        cell.items_per_s,
        cell.mb_per_s,
        cell.little.in_flight,
        cell.permits
    )
}

/// What `async` is to `sync`, with the fewest workers that both ran with.
fn speed_up(report: &Report) -> Option<String> {
    let of = |mode: Mode, workers: u32| {
        report.cells().find(|cell| cell.mode == mode && cell.workers == workers && cell.books.balanced)
    };
    let workers = report.cells().filter(|cell| cell.mode == Mode::Async).map(|cell| cell.workers);
    let (one, other) = workers
        .filter_map(|workers| Some((of(Mode::Sync, workers)?, of(Mode::Async, workers)?)))
        .min_by_key(|(cell, _)| cell.workers)?;
    let times = other.items_per_s / one.items_per_s;
    Some(format!(
        "With {} workers, {} reads at a time are {times:.2} times as fast as one after another: {:.1} items/s instead of {:.1}.",
        one.workers, other.in_flight, other.items_per_s, one.items_per_s
    ))
}

/// What limits the fastest load, where one can tell.
fn bound(cell: &Cell) -> Option<String> {
    if let Some(ceiling) = cell.ceiling.filter(|ceiling| ceiling.is_client_bound) {
        return Some(format!(
            "It is client-bound: this client reaches {:.1} items/s with no storage behind it, and {:.0} % of that with it. What the \
             storage could do is not seen here.",
            ceiling.items_per_s,
            ceiling.reached * 100.0
        ));
    }
    let stages: f64 =
        cell.parts.iter().filter(|part| part.name.starts_with("stage:")).map(|part| part.share).sum();
    if stages > 0.5 {
        return Some(format!(
            "Its workers spend {:.0} % of their time in stages, not in reading.",
            stages * 100.0
        ));
    }
    (cell.little.used > UNUSED).then(|| {
        format!(
            "{:.0} % of the reads that it may have in flight are: more at a time may be faster.",
            cell.little.used * 100.0
        )
    })
}

fn lost(report: &Report) -> Option<String> {
    let groups = report.actions.iter().flat_map(|action| match action {
        ActionReport::WholeSet(cells) => cells.iter().flat_map(|cell| &cell.failures).collect::<Vec<_>>(),
        ActionReport::Calls(calls) => calls.failures.iter().collect(),
    });
    let groups: Vec<_> = groups.collect();
    let first = groups.first()?;
    let count: u64 = groups.iter().map(|group| group.count).sum();
    Some(format!("{count} items failed and are missing, e.g. `{}`: {}", first.keys.first()?, first.message))
}

/// What is known of caches.
fn caches(report: &Report) -> Option<String> {
    let first = report.cells().next()?;
    let cached = first.passes.iter().filter_map(|pass| pass.cached).next();
    let asked = report.document.cache;
    let slower = |cell: &Cell| {
        let rest = cell.passes.get(1..).filter(|rest| !rest.is_empty())?;
        let rest = rest.iter().map(|pass| pass.items_per_s).sum::<f64>() / rest.len() as f64;
        Some(1.0 - cell.passes[0].items_per_s / rest)
    };
    let first_is_slower = match slower(first) {
        Some(slower) if slower > COLD => {
            format!(" The first pass was {:.0} % slower than those behind it.", slower * 100.0)
        }
        _ => String::new(),
    };
    let small = report
        .objects
        .bytes
        .zip(report.machine.memory_bytes)
        .filter(|(bytes, memory)| (*bytes as f64) < TIMES_MEMORY * *memory as f64);
    match report.objects.kind {
        StoreKind::Memory => None,
        StoreKind::S3 => {
            Some(format!("What the service had in its caches is not known here.{first_is_slower}"))
        }
        StoreKind::Folder => {
            let held =
                cached.map(|share| format!("{:.0} % of the bytes lay in the page cache", share * 100.0));
            let is_warmed = report.objects.warmed_s.is_some();
            Some(match (asked, held, small) {
                (Cache::Cold, Some(held), _) => {
                    format!("Each pass began cold: before the first one {held}.{first_is_slower}")
                }
                (Cache::Cold, None, _) => format!(
                    "Each pass was to begin cold; whether it did, this file system does not tell.{first_is_slower}"
                ),
                (Cache::Warm, _, _) if is_warmed => {
                    "These are figures of the page cache, not of the disk: everything was \
                     read once before. `--cold` measures the disk."
                        .to_owned()
                }
                (Cache::Warm, Some(held), _) => format!("Before the first pass {held}.{first_is_slower}"),
                (Cache::Warm, None, Some(_)) => format!(
                    "The objects fit into memory: the page cache may have answered in the disk's place.{first_is_slower}"
                ),
                (Cache::Warm, None, None) => return None,
            })
        }
    }
}
