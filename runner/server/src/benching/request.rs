//! Request for a storage benchmark: its settings, their checks, and the documents and costs that follow from them.

use penstock_bench::{BenchSpec, LoadMode};
use penstock_types::fault::{Pointer, SpecFault};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admission::Cost;

const MAX_OBJECTS: u32 = 100_000;
/// Maximum length of the list of worker counts that a benchmark measures in turn.
const MAX_WORKERS_LISTED: usize = 8;
const MAX_REPEATS: u32 = 10;
const MAX_SECONDS: u32 = 3_600;
/// Estimated memory for the key and the size of an object, in bytes.
const OBJECT_BYTES: u64 = 256;
/// Estimated memory for the record of one read, in bytes.
const RECORD_BYTES: u64 = 256;
/// Memory that a benchmark reserves in addition to `memory_mib`, in MiB.
const OWN_MIB: u64 = 64;

/// Settings of a storage benchmark that the server runs.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartBenchmark {
    /// Name of the store whose objects are read.
    pub store: String,
    /// Name of the benchmark; the name of the store if missing.
    pub name: Option<String>,
    /// Prefix of the keys to read; all keys if empty.
    #[serde(default)]
    pub prefix: String,
    /// Suffix of the keys to read, e.g. `.jpg`; all keys if empty.
    #[serde(default)]
    pub suffix: String,
    /// Maximum number of objects to read, 1 to 100,000; 1,000 if missing.
    #[serde(default = "usual::<1_000>")]
    #[schemars(range(min = 1, max = MAX_OBJECTS))]
    pub limit: u32,
    /// Read modes of the workers, each measured separately; `sync` and `async` if missing.
    #[serde(default = "default_modes")]
    pub modes: Vec<LoadMode>,
    /// Numbers of workers to measure in turn, at most 8 numbers. None may exceed the threads of the server's budget. If missing,
    /// those of 1, 2, 4 and 8 that do not exceed the budget.
    #[serde(default)]
    #[schemars(length(max = MAX_WORKERS_LISTED))]
    pub workers: Vec<u32>,
    /// Maximum number of reads that one `async` worker has in flight; 8 if missing.
    #[serde(default = "usual::<8>")]
    #[schemars(range(min = 1))]
    pub in_flight: u32,
    /// Number of objects in a batch; 16 if missing.
    #[serde(default = "usual::<16>")]
    #[schemars(range(min = 1))]
    pub batch_size: u32,
    /// Number of measured passes over the objects for each load, 1 to 10; 1 if missing.
    #[serde(default = "usual::<1>")]
    #[schemars(range(min = 1, max = MAX_REPEATS))]
    pub repeats: u32,
    /// Drops the objects from the page cache before each pass, if the store is a folder.
    #[serde(default)]
    pub cold: bool,
    /// Maximum duration of the benchmark, in seconds, 1 to 3,600; 60 if missing. At this limit, the benchmark is stopped, and the
    /// measurements made so far are stored. The server's limit of the duration of runs also applies.
    #[serde(default = "usual::<60>")]
    #[schemars(range(min = 1, max = MAX_SECONDS))]
    pub max_s: u32,
    /// Memory limit of the benchmark for keys, batches held by workers, and records of reads, in MiB; 256 if missing. A benchmark
    /// that may need more memory fails before its first load.
    #[serde(default = "usual::<256>")]
    #[schemars(range(min = 1))]
    pub memory_mib: u32,
}

impl StartBenchmark {
    /// Sets the default numbers of workers if the request has none.
    pub(super) fn completed(self, threads: u32) -> Self {
        if !self.workers.is_empty() {
            return self;
        }
        let workers = [1, 2, 4, 8].into_iter().filter(|workers| *workers <= threads.max(1)).collect();
        Self { workers, ..self }
    }

    /// Returns the faults that the check of the benchmark document ([`Self::spec`]) does not find.
    pub(super) fn faults(&self, threads: u32, reads: usize) -> Vec<SpecFault> {
        let mut faults = Vec::new();
        let mut within = |field: &str, found: u32, most: u32| {
            if !(1..=most).contains(&found) {
                let message = format!("found {found}, expected 1 to {most}");
                faults.push(SpecFault::new(Pointer::ROOT.key(field), message));
            }
        };
        within("limit", self.limit, MAX_OBJECTS);
        within("repeats", self.repeats, MAX_REPEATS);
        within("max_s", self.max_s, MAX_SECONDS);
        within("memory_mib", self.memory_mib, u32::MAX);
        let place = Pointer::ROOT.key("workers");
        if self.workers.len() > MAX_WORKERS_LISTED {
            let message =
                format!("found {} numbers, expected at most {MAX_WORKERS_LISTED}", self.workers.len());
            faults.push(SpecFault::new(place.clone(), message));
        }
        for (index, workers) in self.workers.iter().enumerate() {
            let in_flight = u64::from(*workers) * u64::from(self.in_flight_of_worker());
            if *workers > threads {
                let message = format!("found {workers} workers, but the server has only {threads} threads");
                faults.push(SpecFault::new(place.index(index), message));
            } else if in_flight > reads as u64 {
                let message = format!(
                    "{workers} workers with {} reads each would have {in_flight} reads in flight, but the store allows at most {reads} (`reads`)",
                    self.in_flight_of_worker()
                );
                faults.push(SpecFault::new(place.index(index), message));
            }
        }
        faults
    }

    fn in_flight_of_worker(&self) -> u32 {
        if self.modes.contains(&LoadMode::Async) { self.in_flight.min(self.batch_size) } else { 1 }
    }

    fn most_workers(&self) -> u32 {
        self.workers.iter().copied().max().unwrap_or(1)
    }

    /// Creates the benchmark document of this request. The pointers of faults refer to the fields of the request.
    pub(super) fn spec(&self) -> Result<BenchSpec, Vec<SpecFault>> {
        let document = json!({
            "name": self.name.as_deref().unwrap_or(&self.store),
            "source": self.source(1),
            "cache": if self.cold { "cold" } else { "warm" },
            // `Job::measure` reads the sizes of the objects, so the benchmark need not read them again.
            "survey": false,
            "ceiling": false,
            "actions": [{ "whole_set": {
                "modes": self.modes, "workers": self.workers, "in_flight": self.in_flight,
                "batch_size": self.batch_size, "repeats": self.repeats
            } }],
        });
        let placed = |fault: SpecFault| {
            let place = fault.pointer.to_string();
            let inner =
                ["/actions/0/whole_set", "/source/list"].iter().find_map(|start| place.strip_prefix(start));
            let names = inner.unwrap_or(&place).split('/').skip(1);
            let pointer = names.fold(Pointer::ROOT, |pointer, name| pointer.key(name));
            SpecFault { pointer, ..fault }
        };
        BenchSpec::from_value(document).map_err(|faults| faults.into_iter().map(placed).collect())
    }

    fn source(&self, epochs: u32) -> Value {
        json!({ "list": {
            "store": self.store, "prefix": self.prefix, "suffix": self.suffix, "limit": self.limit, "epochs": epochs
        } })
    }

    /// Creates a pipeline document whose source lists the objects of the benchmark.
    pub(super) fn pipeline(&self) -> Value {
        json!({
            "name": "benchmark", "threads": 1, "source": self.source(self.repeats),
            "stages": [{ "fetch": {} }], "consumer": { "discard": {} }
        })
    }

    pub(super) fn cost(&self) -> Cost {
        Cost { threads: self.most_workers(), memory_mib: u64::from(self.memory_mib) + OWN_MIB, instances: 0 }
    }

    /// Estimated memory, in bytes, for `objects` objects of which the largest has `largest` bytes.
    pub(super) fn bytes_for(&self, objects: u64, largest: u64) -> u64 {
        let held_by_worker = u64::from(self.batch_size)
            .saturating_mul(penstock_bench::WholeSet::default().prefetch.into())
            .saturating_add(self.in_flight_of_worker().into());
        let held =
            held_by_worker.saturating_mul(self.most_workers().into()).min(objects).saturating_mul(largest);
        let records = objects.saturating_mul(self.repeats.into()).saturating_mul(RECORD_BYTES);
        held.saturating_add(records).saturating_add(objects.saturating_mul(OBJECT_BYTES))
    }
}

/// Default of a number in a request.
fn usual<const NUMBER: u32>() -> u32 {
    NUMBER
}

fn default_modes() -> Vec<LoadMode> {
    vec![LoadMode::Sync, LoadMode::Async]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(document: Value) -> StartBenchmark {
        serde_json::from_value(document).unwrap()
    }

    fn places(request: StartBenchmark) -> Vec<String> {
        let request = request.completed(2);
        let mut faults = request.faults(2, 16);
        faults.extend(request.spec().err().into_iter().flatten());
        faults.iter().map(|fault| fault.pointer.to_string()).collect()
    }

    #[test]
    fn default_workers_fit_the_budget() {
        let request = request(json!({ "store": "photos" }));
        assert_eq!(request.clone().completed(1).workers, [1]);
        assert_eq!(request.clone().completed(6).workers, [1, 2, 4]);
        assert_eq!(request.completed(64).workers, [1, 2, 4, 8]);
    }

    #[test]
    fn each_number_out_of_its_range_is_a_fault_at_its_place() {
        assert_eq!(places(request(json!({ "store": "photos" }))), [""; 0]);
        for (field, wrong, place) in [
            ("workers", json!([1, 3]), "/workers/1"),
            ("workers", json!([1, 1, 1, 1, 1, 1, 1, 1, 1]), "/workers"),
            ("in_flight", json!(9), "/workers/1"),
            ("limit", json!(0), "/limit"),
            ("repeats", json!(11), "/repeats"),
            ("max_s", json!(0), "/max_s"),
            ("batch_size", json!(0), "/batch_size"),
            ("modes", json!([]), "/modes"),
            ("name", json!("a b"), "/name"),
        ] {
            let mut document = json!({ "store": "photos" });
            document[field] = wrong;
            assert_eq!(places(request(document.clone())), [place], "{document}");
        }
    }

    #[test]
    fn memory_counts_batches_records_and_keys() {
        let request = request(json!({ "store": "photos", "workers": [2], "batch_size": 4, "repeats": 3 }));
        let (held, objects) = (2 * (4 * 2 + 4), 100);
        assert_eq!(
            request.bytes_for(objects, 1_000),
            held * 1_000 + objects * 3 * RECORD_BYTES + objects * OBJECT_BYTES
        );
        assert_eq!(request.cost(), Cost { threads: 2, memory_mib: 256 + OWN_MIB, instances: 0 });
    }
}
