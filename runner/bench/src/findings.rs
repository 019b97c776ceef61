//! Conclusions of a report, in sentences.

use penstock_types::config::Medium;

use crate::report::{BenchReport, LoadReport, ReportState};
use crate::spec::{LoadMode, PageCache};

/// Maximum share of the bytes in the page cache before a cold pass.
const COLD: f64 = 0.05;
/// Minimum share of the bytes in the page cache before a warm pass.
const WARM: f64 = 0.95;
/// If more than this share of the permits is in use, more permits may help.
const USED: f64 = 0.7;
/// If batches spend more than this share of their time without a read in flight, a finding reports it.
const STOOD: f64 = 0.1;

pub(crate) fn findings(report: &BenchReport) -> Vec<String> {
    let mut told = Vec::new();
    match (report.state, &report.reason) {
        (ReportState::Failed, Some(reason)) => {
            told.push(format!("The benchmark failed, and this report is incomplete: {reason}"))
        }
        (ReportState::Stopped, _) => {
            told.push("The benchmark was stopped, and this report is incomplete.".to_owned())
        }
        _ => {}
    }
    told.extend(report.cells().filter(|cell| !cell.books.balanced).map(void));
    told.extend(report.fastest().map(fastest));
    told.extend(requests(report));
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
                    format!(": a single accelerator computes for {:.0} % of its time", one.utilisation * 100.0)
                });
                format!(
                    "The storage cannot feed even one of the {what} at a utilisation of {least:.0} %{found}."
                )
            }
            number => format!(
                "Trials show that the storage can feed {number} {what} at a utilisation of {least:.0} % or more."
            ),
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
    let refused: u64 = report.cells().map(|cell| cell.refused).sum();
    if refused > 0 {
        told.push(format!("Stages dropped or failed on {refused} of the items that were read."));
    }
    told.extend(caches(report));
    told
}

fn void(cell: &LoadReport) -> String {
    let wrong = cell.books.checks.iter().find(|check| !check.holds);
    let (identity, found) =
        wrong.map_or(("", ""), |check| (&check.identity, check.found.as_deref().unwrap_or("")));
    format!(
        "The figures of `{}` are void, because the ledger of this load does not balance: `{identity}`: {found}.",
        cell.label()
    )
}

fn fastest(cell: &LoadReport) -> String {
    let what = if cell.items_per_read > 1 { "samples" } else { "reads" };
    format!(
        "The fastest load is `{}`: {:.1} items/s, {:.1} MB/s, with {:.1} of {} {what} in flight.",
        cell.label(),
        cell.items_per_s,
        cell.mb_per_s,
        cell.little.in_flight,
        cell.permits
    )
}

/// Requests of the fastest load that reads samples of a format; `None` for objects.
fn requests(report: &BenchReport) -> Option<String> {
    report.document.source.format()?;
    let cell = report.fastest()?;
    let per_sample = cell.requests.per_item?;
    if cell.requests.made == 0 {
        let reason = "its samples came from the memory in which this format keeps what it has read";
        return Some(format!("The fastest load made no requests: {reason}."));
    }
    let takes = match cell.items_per_read {
        1 => "takes one sample".to_owned(),
        several => format!("takes up to {several} neighbouring samples"),
    };
    Some(format!("A read {takes}; the fastest load made {per_sample:.3} requests per sample."))
}

/// Compares the rates of an `async` and a `sync` load whose other settings are equal. If there are several such pairs, the pair
/// with the fewest workers is compared.
fn speed_up(report: &BenchReport) -> Option<String> {
    let is_other_mode = |one: &LoadReport, other: &LoadReport| {
        let of = |cell: &LoadReport| {
            (cell.workers, cell.batch_size, cell.prefetch, cell.assignment, cell.persistent)
        };
        other.mode == LoadMode::Async && other.in_flight > 1 && of(one) == of(other)
    };
    let sound = || report.cells().filter(|cell| cell.books.balanced && cell.items > 0);
    let pairs = sound().filter(|cell| cell.mode == LoadMode::Sync);
    let pairs = pairs.filter_map(|one| Some((one, sound().find(|other| is_other_mode(one, other))?)));
    let (one, other) = pairs.min_by_key(|(one, _)| one.workers)?;
    let workers = if one.workers == 1 { "worker" } else { "workers" };
    Some(format!(
        "With {} {workers}, {} reads at a time are {:.2} times as fast as one after another: {:.1} items/s instead of {:.1}.",
        one.workers,
        other.in_flight,
        other.items_per_s / one.items_per_s,
        other.items_per_s,
        one.items_per_s
    ))
}

/// Sentence that names what limits the fastest load; `None` if this cannot be determined.
fn bound(cell: &LoadReport) -> Option<String> {
    if let Some(ceiling) = cell.ceiling.filter(|ceiling| ceiling.is_client_bound) {
        let reached = match ceiling.reached {
            share if share < 1.0 => format!("{:.0} % of that rate with storage", share * 100.0),
            _ => "the same rate with storage".to_owned(),
        };
        return Some(format!(
            "The fastest load is client-bound: this client reaches {:.1} items/s without storage, and {reached}. The limit of \
             the storage itself is not visible here.",
            ceiling.items_per_s
        ));
    }
    let stages: f64 =
        cell.parts.iter().filter(|part| part.name.starts_with("stage:")).map(|part| part.share).sum();
    if stages > 0.5 {
        return Some(format!(
            "The workers of the fastest load spend {:.0} % of their time in stages, not in reads.",
            stages * 100.0
        ));
    }
    if let Some(between) = cell.parts.iter().find(|part| part.name == "between" && part.share > STOOD) {
        return Some(format!(
            "For {:.0} % of the time of its batches, the fastest load has no read in flight: the cause is this client or another \
             program on its cores, not the storage.",
            between.share * 100.0
        ));
    }
    (cell.little.used > USED).then(|| {
        format!(
            "The fastest load uses {:.0} % of its permitted reads in flight: more workers or a higher `in_flight` may make it faster.",
            cell.little.used * 100.0
        )
    })
}

fn lost(report: &BenchReport) -> Option<String> {
    let first = report.failures().next()?;
    let count: u64 = report.failures().map(|group| group.count).sum();
    let example = first.keys.first().map_or_else(String::new, |key| format!(", e.g. `{key}`"));
    Some(format!("{count} failures in all loads together{example}: {}", first.message))
}

fn caches(report: &BenchReport) -> Option<String> {
    let passes = || report.cells().flat_map(|cell| &cell.passes);
    passes().next()?;
    match report.objects.kind.medium() {
        Medium::Memory => return None,
        Medium::Remote => return Some("The state of the service's caches is unknown.".to_owned()),
        Medium::Folder => {}
    }
    let shares: Vec<f64> = passes().filter_map(|pass| pass.cached).collect();
    let (least, most) =
        (shares.iter().copied().fold(1.0, f64::min), shares.iter().copied().fold(0.0, f64::max));
    let fits =
        report.objects.bytes.zip(report.machine.memory_bytes).is_none_or(|(bytes, memory)| bytes < memory);
    Some(match report.document.cache {
        PageCache::Cold if shares.is_empty() => {
            "Each pass was meant to begin cold; this file system does not report the page cache.".to_owned()
        }
        PageCache::Cold if most <= COLD => format!(
            "Each pass began cold: at most {:.0} % of the bytes were in the page cache.",
            most * 100.0
        ),
        PageCache::Cold => format!(
            "Each pass was meant to begin cold, but up to {:.0} % of the bytes were in the page cache.",
            most * 100.0
        ),
        PageCache::Warm if shares.is_empty() && fits => {
            "Reads may have come from the page cache instead of the disk; this file system does not report the page cache.".to_owned()
        }
        PageCache::Warm if !shares.is_empty() && least >= WARM => {
            "These are figures of the page cache, not of the disk: all bytes \
             were there before each pass. `--cold` measures the disk."
                .to_owned()
        }
        PageCache::Warm if !shares.is_empty() => format!(
            "Before the passes, {:.0} to {:.0} % of the bytes were in the page cache, so some reads did not reach the disk.",
            least * 100.0,
            most * 100.0
        ),
        PageCache::Warm => return None,
    })
}
