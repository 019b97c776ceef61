//! Ledger of a load: identities between its counts and times that hold if the load was measured correctly. A violated identity
//! makes the figures void.

use std::collections::{BTreeMap, BTreeSet};

use penstock_types::stats::Tick;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::{Fetch, ItemRead, LoadPass, LoadRecord, LoadTimes, Span, WorkerLoop};
use crate::report::LevelCounts;
use crate::spec::WarmUpKind;

/// Result of checking the ledger of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadBooks {
    /// True if every identity holds.
    pub balanced: bool,
    pub checks: Vec<LoadBooksCheck>,
}

/// An identity and the result of its check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadBooksCheck {
    pub identity: String,
    pub says: String,
    pub holds: bool,
    /// Values that violate the identity, or a remark that nothing was compared; `null` if the identity holds.
    pub found: Option<String>,
}

pub fn audit(record: &LoadRecord) -> LoadBooks {
    let checks = [
        ("counts", "the number of calls of each level matches the formula", counts_hold(record)),
        (
            "once",
            "in each pass every item is requested once, and delivered or reported as failed",
            once(record),
        ),
        (
            "order",
            "batches and their items are delivered in the order in which they were requested",
            order(record),
        ),
        ("outcomes", "every read that began has ended, with one record", outcomes(record)),
        ("bytes", "the length of every body is the size of its object", bytes(record)),
        ("content", "every body has the checksum of the object's first one", content(record)),
        (
            "nesting",
            "reads are within their batch, batches within worker and pass, passes within the load",
            nesting(record),
        ),
        ("parts", "the parts of a read take no longer than the read", parts(record)),
        (
            "fetches",
            "the time of a batch is the time with reads in flight, at most K at a time, plus the time without",
            fetches(record),
        ),
        ("workers", "the lifetime of a worker is the sum of waiting, reading and stages", workers(record)),
        ("permits", "no more items are in flight than the permits allow", permits(record)),
        ("little", "the counted items in flight equal throughput times latency", little(record)),
    ];
    let checks: Vec<LoadBooksCheck> = checks
        .into_iter()
        .map(|(identity, says, found)| LoadBooksCheck {
            identity: identity.to_owned(),
            says: says.to_owned(),
            holds: found.is_ok(),
            found: found.err().or_else(|| nothing_compared(record, identity)),
        })
        .collect();
    LoadBooks { balanced: checks.iter().all(|check| check.holds), checks }
}

/// Remark on an identity that holds only because there were no values to compare; `None` otherwise.
fn nothing_compared(record: &LoadRecord, identity: &str) -> Option<String> {
    let is_nothing = identity == "bytes" && record.sizes.iter().all(Option::is_none);
    is_nothing.then(|| "nothing was compared: sizes were not read".to_owned())
}

pub(crate) fn counts(record: &LoadRecord) -> LevelCounts {
    let all = || record.warm_up.iter().chain(&record.passes);
    LevelCounts {
        getitem: all().flat_map(|pass| &pass.fetches).map(|fetch| fetch.items.len() as u64).sum(),
        fetch: all().map(|pass| pass.fetches.len() as u64).sum(),
        worker_loop: all().map(|pass| pass.loops.len() as u64).sum::<u64>() + record.lasting.len() as u64,
        load_all: record.passes.len() as u64,
        benchmark: 1,
    }
}

pub(crate) fn warm_up_counts(record: &LoadRecord) -> LevelCounts {
    let inline = record.passes.first().into_iter().flat_map(|pass| &pass.fetches);
    let inline = inline.filter(|fetch| fetch.batch < record.inline);
    let fetches = || record.warm_up.iter().flat_map(|pass| &pass.fetches).chain(inline.clone());
    LevelCounts {
        getitem: fetches().map(|fetch| fetch.items.len() as u64).sum(),
        fetch: fetches().count() as u64,
        worker_loop: record.warm_up.iter().map(|pass| pass.loops.len() as u64).sum(),
        load_all: 0,
        benchmark: 0,
    }
}

/// Expected number of calls of each level, computed from the numbers of items, batches, workers, passes and warm-up rounds.
fn by_formula(record: &LoadRecord) -> LevelCounts {
    let LoadTimes { warm_up, passes } = &record.times;
    let (size, passes) = (u64::from(record.load.batch_size), u64::from(*passes));
    let rounds: &[u32] = match warm_up.how {
        WarmUpKind::Restart => &warm_up.rounds,
        WarmUpKind::Inline => &[],
    };
    let extra: u64 = rounds.iter().map(|round| u64::from(*round)).sum();
    let crews = rounds.len() as u64 + if record.load.persistent { 1 } else { passes };
    LevelCounts {
        getitem: record.items * passes + extra * size,
        fetch: record.items.div_ceil(size) * passes + extra,
        worker_loop: crews * u64::from(record.load.workers),
        load_all: passes,
        benchmark: 1,
    }
}

type Holds = Result<(), String>;

fn counts_hold(record: &LoadRecord) -> Holds {
    let (found, wanted) = (counts(record), by_formula(record));
    let levels = [
        ("getitem", found.getitem, wanted.getitem),
        ("fetch", found.fetch, wanted.fetch),
        ("worker_loop", found.worker_loop, wanted.worker_loop),
        ("load_all", found.load_all, wanted.load_all),
    ];
    if let Some((level, found, wanted)) = levels.into_iter().find(|(_, found, wanted)| found != wanted) {
        return Err(format!("{level}: found {found}, expected {wanted}"));
    }
    Ok(())
}

fn once(record: &LoadRecord) -> Holds {
    for (number, pass) in record.passes.iter().enumerate() {
        let mut asked = BTreeSet::new();
        if let Some(object) = pass.order.iter().find(|object| !asked.insert(**object)) {
            return Err(format!("pass {}: object {object} is requested twice", number + 1));
        }
    }
    each_pass(record, |pass| {
        let mut read: BTreeMap<u32, [i64; 3]> = BTreeMap::new();
        for object in &*pass.order {
            read.entry(*object).or_default()[0] += 1;
        }
        for item in pass.fetches.iter().flat_map(|fetch| &fetch.items) {
            let counted = read.entry(item.object).or_default();
            counted[1] += 1;
            counted[2] += i64::from(item.bytes.is_none());
        }
        for object in pass.deliveries.iter().flat_map(|delivery| &delivery.objects) {
            read.entry(*object).or_default()[2] += 1;
        }
        match read.iter().find(|(_, [asked, read, ended])| read != asked || ended != asked) {
            None => Ok(()),
            Some((object, [asked, read, ended])) => Err(format!(
                "object {object} was requested {asked} times, read {read} times, and delivered or reported as failed {ended} times"
            )),
        }
    })
}

fn order(record: &LoadRecord) -> Holds {
    let size = record.load.batch_size as usize;
    each_pass(record, |pass| {
        let fetches: BTreeMap<u32, &Fetch> = pass.fetches.iter().map(|fetch| (fetch.batch, fetch)).collect();
        for (place, delivery) in pass.deliveries.iter().enumerate() {
            if delivery.batch as usize != place {
                return Err(format!("batch {} was delivered at position {place}", delivery.batch));
            }
            let first = place * size;
            let asked = pass.order.get(first..pass.order.len().min(first + size)).unwrap_or_default();
            let read = fetches.get(&delivery.batch).map_or(&[][..], |fetch| &fetch.items);
            let came = read.iter().filter(|item| item.bytes.is_some()).map(|item| &item.object);
            if !read.iter().map(|item| &item.object).eq(asked) || !came.eq(&delivery.objects) {
                return Err(format!(
                    "the items of batch {place} are not the requested items in the requested order"
                ));
            }
        }
        Ok(())
    })
}

fn outcomes(record: &LoadRecord) -> Holds {
    each_pass(record, |pass| {
        let items: u64 = pass.fetches.iter().map(|fetch| fetch.items.len() as u64).sum();
        let (begun, ended) = (pass.gauged.begun, pass.gauged.ended);
        if begun == ended && ended == items {
            return Ok(());
        }
        Err(format!("{begun} reads began, {ended} reads ended, and {items} reads were recorded"))
    })
}

fn bytes(record: &LoadRecord) -> Holds {
    each_item(record, |item| match (item.bytes, record.sizes.get(item.object as usize).copied().flatten()) {
        (Some(found), Some(wanted)) if found != wanted => {
            Err(format!("object {} has {wanted} bytes, but {found} bytes were received", item.object))
        }
        _ => Ok(()),
    })
}

fn content(record: &LoadRecord) -> Holds {
    each_item(record, |item| match item.is_same {
        true => Ok(()),
        false => Err(format!("object {} has other bytes than in the first read of this object", item.object)),
    })
}

fn nesting(record: &LoadRecord) -> Holds {
    let in_order = |what: &str, outer: &Span, inner: &Span| {
        if outer.holds(inner) {
            return Ok(());
        }
        let (from, to) = (inner.start.seconds(), inner.end.seconds());
        let (of, until) = (outer.start.seconds(), outer.end.seconds());
        Err(format!(
            "{what} lasts from {from:.6} s to {to:.6} s, which is not within the enclosing interval from {of:.6} s to {until:.6} s"
        ))
    };
    each_pass(record, |pass| {
        in_order("a pass", &record.span, &pass.span)?;
        let lives = || pass.loops.iter().chain(&record.lasting);
        lives().try_for_each(|worker| in_order("a worker's life", &record.span, &worker.span))?;
        for fetch in &pass.fetches {
            in_order("a batch", &pass.span, &fetch.span)?;
            let life = lives().find(|worker| worker.worker == fetch.worker);
            let life = life.ok_or_else(|| {
                format!("batch {} was read by worker {}, which has no record", fetch.batch, fetch.worker)
            })?;
            in_order("a batch", &life.span, &fetch.span)?;
            fetch.items.iter().try_for_each(|item| in_order("a read", &fetch.span, &item.span))?;
        }
        Ok(())
    })
}

fn parts(record: &LoadRecord) -> Holds {
    each_item(record, |item| {
        let parts = &item.parts;
        let sum = (parts.retry + parts.connect + parts.first_byte + parts.body + parts.verify).as_nanos();
        let whole = u128::from(item.span.nanos());
        if sum <= whole {
            return Ok(());
        }
        Err(format!(
            "the parts of a read of object {} take {sum} ns, but the whole read takes {whole} ns",
            item.object
        ))
    })
}

fn fetches(record: &LoadRecord) -> Holds {
    let at_once = u64::from(record.load.permits_of_worker()) * u64::from(record.load.items_of_read());
    each_pass(record, |pass| {
        pass.fetches.iter().try_for_each(|fetch| {
            let (whole, read) = (fetch.span.nanos(), read_ns(&fetch.items));
            // Exact equality is required, because both sides are sums of the same clock readings.
            if whole != read + fetch.between_ns {
                return Err(format!(
                    "batch {} takes {whole} ns, which is not the sum of {read} ns with reads in flight and {} ns without reads in flight",
                    fetch.batch, fetch.between_ns
                ));
            }
            let items: u64 = fetch.items.iter().map(|item| item.span.nanos()).sum();
            if items > read * at_once {
                return Err(format!(
                    "the reads of batch {} take {items} ns in total, which is more than {at_once} reads at a time can take within {read} ns",
                    fetch.batch
                ));
            }
            Ok(())
        })
    })
}

/// Time in which at least one of the reads was in flight, in nanoseconds.
fn read_ns(items: &[ItemRead]) -> u64 {
    let mut spans: Vec<Span> = items.iter().map(|item| item.span).collect();
    spans.sort_unstable_by_key(|span| span.start);
    let (mut read, mut until) = (0, Tick::default());
    for Span { start, end } in spans {
        let from = start.max(until);
        until = until.max(end);
        read += until - from;
    }
    read
}

fn workers(record: &LoadRecord) -> Holds {
    let alone = record
        .warm_up
        .iter()
        .chain(&record.passes)
        .flat_map(|pass| pass.loops.iter().map(move |worker| (worker, std::slice::from_ref(pass))));
    let lasting = record.lasting.iter().map(|worker| (worker, record.passes.as_slice()));
    for (worker, passes) in alone.chain(lasting) {
        let WorkerLoop { worker: number, span, set_up_ns, waited_ns, fetched_ns, worked_ns } = worker;
        let told = set_up_ns + waited_ns + fetched_ns + worked_ns;
        if told != span.nanos() {
            return Err(format!(
                "worker {number} lived for {} ns, but the times of its work and its waits add up to {told} ns",
                span.nanos()
            ));
        }
        let own = passes.iter().flat_map(|pass| &pass.fetches).filter(|fetch| fetch.worker == *number);
        let read: u64 = own.map(|fetch| fetch.span.nanos()).sum();
        if read > *fetched_ns {
            return Err(format!(
                "worker {number} spent {fetched_ns} ns on reads, but the reads of its batches took {read} ns"
            ));
        }
    }
    Ok(())
}

fn permits(record: &LoadRecord) -> Holds {
    each_pass(record, |pass| match pass.gauged.most <= record.load.items_in_flight() {
        true => Ok(()),
        false => Err(format!(
            "up to {} items were in flight, but the limit is {}",
            pass.gauged.most,
            record.load.items_in_flight()
        )),
    })
}

fn little(record: &LoadRecord) -> Holds {
    each_pass(record, |pass| {
        let items = pass.fetches.iter().flat_map(|fetch| &fetch.items);
        let by_law: i128 = items.map(|item| i128::from(item.span.nanos())).sum();
        // Exact equality is required, because both sides are sums of the same clock readings.
        if pass.gauged.read_ns == by_law {
            return Ok(());
        }
        let wall = pass.span.seconds().max(1e-9);
        Err(format!(
            "the mean number of reads in flight is {:.3} as counted, but {:.3} by throughput and latency",
            pass.gauged.read_ns as f64 * 1e-9 / wall,
            by_law as f64 * 1e-9 / wall
        ))
    })
}

fn each_pass(record: &LoadRecord, check: impl Fn(&LoadPass) -> Holds) -> Holds {
    for (what, passes) in [("warm-up", &record.warm_up), ("pass", &record.passes)] {
        for (number, pass) in (1..).zip(passes) {
            check(pass).map_err(|found| format!("{what} {number}: {found}"))?;
        }
    }
    Ok(())
}

fn each_item(record: &LoadRecord, check: impl Fn(&ItemRead) -> Holds) -> Holds {
    each_pass(record, |pass| pass.fetches.iter().flat_map(|fetch| &fetch.items).try_for_each(&check))
}
