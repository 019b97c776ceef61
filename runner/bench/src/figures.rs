//! Figures of a load, computed from its record by pure functions.

use penstock_types::stats::{Histogram, Tick};

use crate::books::{audit, counts, warm_up_counts};
use crate::failures::ReadFailures;
use crate::record::{ItemRead, LoadRecord, WorkerLoop};
use crate::report::{
    LatencyRange, LevelCounts, LevelTimes, Little, LoadMoment, LoadReport, MeanRead, PassReport, ReadPart,
    ReadRequests, Spread,
};
use crate::spec::LoadMode;

const MOMENTS: usize = 200;
/// Minimum length of a moment (an interval of the chart over time), in nanoseconds: a shorter moment contains too few reads.
const SHORTEST_NS: u64 = 20_000_000;

impl Spread {
    /// Computes the distribution of times in nanoseconds; `None` if there are no times.
    pub fn of(times: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut times: Vec<u64> = times.into_iter().collect();
        times.sort_unstable();
        let (first, last) = (*times.first()?, *times.last()?);
        let n = times.len();
        let sum_s = times.iter().map(|time| *time as f64).sum::<f64>() * 1e-9;
        let mean_s = sum_s / n as f64;
        let squares: f64 = times.iter().map(|time| (*time as f64 * 1e-9 - mean_s).powi(2)).sum();
        let at = |q: f64| times[((q * n as f64).ceil() as usize).clamp(1, n) - 1] as f64 * 1e-9;
        Some(Self {
            n: n as u64,
            sum_s,
            mean_s,
            median_s: at(0.5),
            min_s: first as f64 * 1e-9,
            max_s: last as f64 * 1e-9,
            stdev_s: if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 },
            p90_s: at(0.9),
            p99_s: at(0.99),
            p999_s: at(0.999),
        })
    }
}

impl LoadReport {
    pub fn of(record: &LoadRecord, stages: &[String], failures: Vec<ReadFailures>) -> Self {
        let load = &record.load;
        let elapsed_s: f64 = record.spans().map(|span| span.seconds()).sum();
        let items: u64 = record.reads().filter(|item| item.bytes.is_some()).count() as u64;
        let bytes: u64 = record.reads().filter_map(|item| item.bytes).sum();
        let per_s = |what: f64| if elapsed_s > 0.0 { what / elapsed_s } else { 0.0 };
        let mut cell = Self {
            mode: load.mode,
            workers: load.workers,
            in_flight: load.permits_of_worker(),
            permits: load.items_in_flight(),
            items_per_read: load.items_of_read(),
            batch_size: load.batch_size,
            prefetch: load.prefetch,
            assignment: load.assignment,
            persistent: load.persistent,
            counts: counts(record),
            warm_up: warm_up_counts(record),
            levels: levels(record),
            parts: parts(record, stages),
            mean_read: MeanRead::default(),
            items,
            refused: record.measured().map(|fetch| u64::from(fetch.lost_in_stages)).sum(),
            bytes,
            elapsed_s,
            items_per_s: per_s(items as f64),
            mb_per_s: per_s(bytes as f64 / 1e6),
            mib_per_s: per_s(bytes as f64 / f64::from(1 << 20)),
            mbit_per_s: per_s(bytes as f64 * 8.0 / 1e6),
            passes: passes(record),
            little: little(record, elapsed_s),
            busy: busy(record),
            latencies: latencies(record),
            latency_bins: Vec::new(),
            over_time: over_time(record),
            requests: requests(record),
            failures,
            ceiling: None,
            books: audit(record),
        };
        cell.complete();
        cell
    }

    pub fn measured(&self) -> LevelCounts {
        let (all, warm_up) = (self.counts, self.warm_up);
        LevelCounts {
            getitem: all.getitem - warm_up.getitem,
            fetch: all.fetch - warm_up.fetch,
            worker_loop: all.worker_loop - warm_up.worker_loop,
            load_all: all.load_all,
            benchmark: all.benchmark,
        }
    }
}

fn came(record: &LoadRecord) -> impl Iterator<Item = &ItemRead> {
    record.reads().filter(|item| item.bytes.is_some())
}

fn lives(record: &LoadRecord) -> impl Iterator<Item = &WorkerLoop> {
    record.passes.iter().flat_map(|pass| &pass.loops).chain(&record.lasting)
}

fn levels(record: &LoadRecord) -> LevelTimes {
    LevelTimes {
        getitem: Spread::of(came(record).map(|item| item.span.nanos())),
        fetch: Spread::of(record.measured().map(|fetch| fetch.span.nanos())),
        worker_loop: Spread::of(lives(record).map(|worker| worker.span.nanos())),
        load_all: Spread::of(record.spans().map(|span| span.nanos())),
        benchmark: Spread::of([record.span.nanos()]),
    }
}

fn parts(record: &LoadRecord, stages: &[String]) -> Vec<ReadPart> {
    type ReadTime = (&'static str, fn(&ItemRead) -> u64);
    let reads: f64 = record.reads().map(|item| item.span.nanos() as f64 * 1e-9).sum();
    let with_permits: f64 = reads + record.reads().map(|item| item.permit_ns as f64 * 1e-9).sum::<f64>();
    let workers: f64 = lives(record).map(|worker| worker.span.nanos() as f64 * 1e-9).sum();
    let part = |name: &str, times: &mut dyn Iterator<Item = u64>, of: f64| {
        let time = Spread::of(times.filter(|time| *time > 0))?;
        Some(ReadPart { name: name.to_owned(), share: if of > 0.0 { time.sum_s / of } else { 0.0 }, time })
    };
    let of_reads: [ReadTime; 6] = [
        ("permit", |item| item.permit_ns),
        ("retry", |item| nanos(item.parts.retry)),
        ("connect", |item| nanos(item.parts.connect)),
        ("first_byte", |item| nanos(item.parts.first_byte)),
        ("body", |item| nanos(item.parts.body)),
        ("verify", |item| nanos(item.parts.verify)),
    ];
    let of_stages = stages.iter().enumerate().filter_map(|(place, name)| {
        let calls = record.measured().flat_map(|fetch| &fetch.stages);
        let mut times = calls.filter(|(stage, _)| *stage as usize == place).map(|(_, time)| *time);
        part(&format!("stage:{name}"), &mut times, workers)
    });
    // In sync mode, a read never waits for a permit: the worker reads one item after another.
    let first = usize::from(record.load.mode == LoadMode::Sync);
    let of_reads = of_reads.into_iter().skip(first).filter_map(|(name, of)| {
        let whole = if name == "permit" { with_permits } else { reads };
        part(name, &mut record.reads().map(of), whole)
    });
    let batches: f64 = record.measured().map(|fetch| fetch.span.seconds()).sum();
    let between = part("between", &mut record.measured().map(|fetch| fetch.between_ns), batches);
    of_reads.chain(between).chain(of_stages).collect()
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn passes(record: &LoadRecord) -> Vec<PassReport> {
    let passes = record.passes.iter().zip(record.spans()).enumerate();
    let told = passes.map(|(number, (pass, span))| {
        let reads = || {
            record
                .measured_of(number, pass)
                .flat_map(|fetch| &fetch.items)
                .filter(|item| item.bytes.is_some())
        };
        let time = Spread::of(reads().map(|item| item.span.nanos()));
        let elapsed_s = span.seconds();
        let per_s = |what: f64| if elapsed_s > 0.0 { what / elapsed_s } else { 0.0 };
        PassReport {
            elapsed_s,
            items_per_s: per_s(reads().count() as f64),
            mb_per_s: per_s(reads().filter_map(|item| item.bytes).sum::<u64>() as f64 / 1e6),
            median_s: time.map_or(0.0, |time| time.median_s),
            p99_s: time.map_or(0.0, |time| time.p99_s),
            cached: pass.cached,
        }
    });
    told.collect()
}

fn little(record: &LoadRecord, elapsed_s: f64) -> Little {
    // The counters cover whole passes, including an inline warm-up in the first pass, so `wall` covers whole passes, too.
    let wall: f64 = record.passes.iter().map(|pass| pass.span.seconds()).sum();
    let counted: f64 = record.passes.iter().map(|pass| pass.gauged.read_ns as f64 * 1e-9).sum();
    let in_flight = if wall > 0.0 { counted / wall } else { 0.0 };
    let sum: f64 = record.reads().map(|item| item.span.nanos() as f64 * 1e-9).sum();
    Little {
        in_flight,
        most: record.passes.iter().map(|pass| pass.gauged.most).max().unwrap_or_default(),
        used: in_flight / f64::from(record.load.items_in_flight().max(1)),
        by_law: if elapsed_s > 0.0 { sum / elapsed_s } else { 0.0 },
    }
}

fn busy(record: &LoadRecord) -> f64 {
    let (mut reading, mut life) = (0.0, 0.0);
    for worker in lives(record) {
        reading += worker.fetched_ns as f64;
        life += worker.span.nanos() as f64;
    }
    if life > 0.0 { reading / life } else { 0.0 }
}

fn latencies(record: &LoadRecord) -> Vec<LatencyRange> {
    let mut histogram = Histogram::default();
    came(record).for_each(|item| histogram.record(item.span.nanos()));
    let ranges = histogram.buckets().map(|(bucket, count)| {
        let (from, to) = Histogram::bounds(bucket);
        LatencyRange { from_s: from as f64 * 1e-9, to_s: to as f64 * 1e-9, count }
    });
    ranges.collect()
}

fn requests(record: &LoadRecord) -> ReadRequests {
    record.reads().fold(ReadRequests::default(), |sum, item| ReadRequests {
        made: sum.made + u64::from(item.parts.attempts),
        retries: sum.retries + u64::from(item.parts.retries),
        connections: sum.connections + u64::from(item.parts.new_connections),
        ..sum
    })
}

/// Sums over one moment (a short interval) of the measured time.
#[derive(Clone, Default)]
struct Stretch {
    times: Vec<u64>,
    bytes: u64,
    in_flight_ns: u64,
}

fn over_time(record: &LoadRecord) -> Vec<LoadMoment> {
    let wall: u64 = record.spans().map(|span| span.nanos()).sum();
    let length = wall.div_ceil(MOMENTS as u64).max(SHORTEST_NS);
    let mut stretches = vec![Stretch::default(); usize::try_from(wall.div_ceil(length)).unwrap_or(MOMENTS)];
    let mut before = 0;
    for (number, (pass, span)) in record.passes.iter().zip(record.spans()).enumerate() {
        for item in record.measured_of(number, pass).flat_map(|fetch| &fetch.items) {
            let within = |at: Tick| before + (at.max(span.start).min(span.end) - span.start);
            spread_over(&mut stretches, length, item, within(item.span.start), within(item.span.end));
        }
        before += span.nanos();
    }
    let told = stretches.into_iter().enumerate().map(|(place, stretch)| {
        let start = place as u64 * length;
        let seconds = length.min(wall - start).max(1) as f64 * 1e-9;
        let time = Spread::of(stretch.times.iter().copied());
        LoadMoment {
            t_s: start as f64 * 1e-9,
            items_per_s: stretch.times.len() as f64 / seconds,
            mb_per_s: stretch.bytes as f64 / 1e6 / seconds,
            in_flight: stretch.in_flight_ns as f64 * 1e-9 / seconds,
            median_s: time.map(|time| time.median_s),
            p99_s: time.map(|time| time.p99_s),
        }
    });
    told.collect()
}

/// Counts a read in the moment in which the read ends, and adds its time in flight to every moment that the read overlaps.
fn spread_over(stretches: &mut [Stretch], length: u64, item: &ItemRead, start: u64, end: u64) {
    let Some(last) = stretches.len().checked_sub(1) else { return };
    let place = |at: u64| usize::try_from(at / length).unwrap_or(last).min(last);
    if let Some(bytes) = item.bytes {
        let stretch = &mut stretches[place(end)];
        stretch.times.push(item.span.nanos());
        stretch.bytes += bytes;
    }
    let touched = place(start)..=place(end);
    for (number, stretch) in touched.clone().zip(&mut stretches[touched]) {
        let (from, to) = (number as u64 * length, (number as u64 + 1) * length);
        stretch.in_flight_ns += end.min(to).saturating_sub(start.max(from));
    }
}
