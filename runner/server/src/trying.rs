//! Trials: run a module on a few samples without storing the results.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use penstock_engine::item::{Origin, Sample, Value};
use penstock_engine::ports::StopFlag;
use penstock_formats::sample_of;
use penstock_storage::BYTES_FIELD;
use penstock_types::spec::{DeadlineMs, MemoryMib, Name, OutputMib};
use penstock_types::text::{shown, with_causes};
use serde_json::{Map, json};
use tokio::time::{Instant, timeout, timeout_at};

use crate::catalogue::storage;
use crate::error::RunsError;
use crate::letters::Waited;
use crate::runs::{Runs, apart, turn};
use crate::wire::{TryAsset, TryFrom, TryRequest, TrySample};
use crate::work::CHECK_EVERY;
use penstock_pipeline::trial::{TrialReport, TrialSettings, check_trial_params, try_module};

const MAX_SAMPLES: usize = 16;
/// Maximum size of all samples of a trial, in bytes.
const MAX_BYTES: u64 = 64 << 20;
const MAX_ASSETS: usize = 16;
/// Default and maximum of the CPU time for one sample.
const DEADLINE_MS: u32 = 5_000;
const MAX_DEADLINE_MS: u32 = 10_000;
/// Default and maximum of the memory of an instance.
const MEMORY_MIB: u32 = 256;
const MAX_MEMORY_MIB: u32 = 1_024;
const MAX_REPEAT: u32 = 3;
/// Maximum number of samples in one call to a module of mode `batch`.
const BATCH: usize = MAX_SAMPLES;
/// Maximum number of bytes of output tensors that the report includes for display: about twenty images of a training set.
const SHOWN_BYTES: u64 = 4 << 20;

impl Runs {
    /// Tries a version of a module on a few samples. At most two trials run at a time, and at most one of each client; further
    /// trials wait for up to 10 s. A trial ends early if it exceeds its time limit or its client disconnects.
    pub async fn try_module(
        &self,
        name: &str,
        version: &str,
        request: TryRequest,
    ) -> Result<TrialReport, RunsError> {
        let digest = self.module_version(name, version).await?.report.digest;
        let mut settings = settings(&request)?;
        let most_output = self.settings().bounds.output_mib.get().min(settings.output.get());
        settings.output = OutputMib::new(most_output).unwrap_or(settings.output);
        let turn = turn(&self.0.permits.trials, self.client(), "trials and predictions").await?;
        let most = self.settings().trial_time;
        let until = Instant::now() + most;
        let late = || {
            RunsError::Refused(format!(
                "the trial did not end within {} s; try fewer samples, a smaller `repeat` or a shorter `deadline_ms`",
                most.as_secs_f64()
            ))
        };
        let read = async {
            match (request.samples, request.from) {
                // Decoding base64 may take long, so it does not run on an I/O thread.
                (Some(samples), None) => apart(self, || given(samples)).await,
                (None, Some(from)) => self.read_samples(from).await,
                _ => Err(RunsError::Refused("pass either `samples` or `from`".to_owned())),
            }
        };
        let samples = timeout_at(until, read).await.map_err(|_| late())??;
        let assets = self.read_assets(request.assets);
        settings.assets = timeout_at(until, assets).await.map_err(|_| late())??;
        let left = until.saturating_duration_since(Instant::now());
        let place = self.0.workshop.compile_place(&digest, self.client(), left).await?;
        let waited = Waited(StopFlag::default());
        let (workshop, stop) = (self.0.workshop.clone(), waited.0.clone());
        let mut trial = std::pin::pin!(apart(self, move || {
            // The permit is held until the trial has ended, even if the future is dropped.
            let _turn = turn;
            let refused = |error: &dyn std::error::Error| RunsError::Refused(with_causes(error));
            let module = workshop.load(&digest).map_err(|error| refused(&error))?;
            drop(place);
            RunsError::refuse_faults(check_trial_params(&module, &settings.params))?;
            try_module(&module, samples, &settings, &stop).map_err(|error| refused(&error))
        }));
        let mut is_late = false;
        let tried = loop {
            match timeout(CHECK_EVERY, trial.as_mut()).await {
                Ok(tried) => break tried,
                Err(_) => {
                    is_late |= Instant::now() >= until;
                    if is_late || self.0.ending.is_set() {
                        waited.0.set();
                    }
                }
            }
        };
        if is_late { Err(late()) } else { tried }
    }

    async fn read_samples(&self, TryFrom { store, keys }: TryFrom) -> Result<Vec<Sample>, RunsError> {
        check_count(keys.len())?;
        let found = self.store(&store)?;
        let mut samples = Vec::with_capacity(keys.len());
        let mut total = 0_u64;
        for key in keys {
            let key: Arc<str> = key.into();
            // The size is checked before the object is read, because an object may have any size.
            total = total.saturating_add(found.version(key.clone()).await.map_err(storage)?.size);
            check_bytes(total)?;
            let (bytes, _) = found.get(key.clone()).await;
            let mut sample = Sample::new(key, Origin::default());
            sample.set(BYTES_FIELD, Value::Blob(bytes.map_err(storage)?));
            samples.push(sample);
        }
        Ok(samples)
    }

    /// Reads the assets of a trial. Their total size is limited as in a run, and to [`MAX_BYTES`].
    async fn read_assets(
        &self,
        assets: BTreeMap<Name, TryAsset>,
    ) -> Result<BTreeMap<String, Bytes>, RunsError> {
        let most_mib = u64::from(self.settings().bounds.assets_mib.get()).min(MAX_BYTES >> 20);
        let check = |bytes: u64| {
            RunsError::refuse_unless(bytes <= most_mib << 20, || {
                format!("the assets of a trial may have at most {most_mib} MiB in total")
            })
        };
        RunsError::refuse_unless(assets.len() <= MAX_ASSETS, || {
            format!("found {} assets, but a trial may have at most {MAX_ASSETS}", assets.len())
        })?;
        let mut read = BTreeMap::new();
        let mut total = 0_u64;
        for (name, asset) in assets {
            let bytes = match asset {
                TryAsset::Given { base64 } => STANDARD.decode(base64).map(Bytes::from).map_err(|error| {
                    RunsError::Refused(format!("the asset `{name}` has bytes that are not base64: {error}"))
                })?,
                TryAsset::Stored { store, key } => {
                    let found = self.store(&store)?;
                    let key: Arc<str> = key.into();
                    // The size is checked before the object is read, because an object may have any size.
                    check(total.saturating_add(found.version(key.clone()).await.map_err(storage)?.size))?;
                    found.get(key).await.0.map_err(storage)?
                }
            };
            total = total.saturating_add(bytes.len() as u64);
            check(total)?;
            read.insert(name.to_string(), bytes);
        }
        Ok(read)
    }
}

fn settings(request: &TryRequest) -> Result<TrialSettings, RunsError> {
    let bounded = |what: &str, wanted: Option<u32>, usual: u32, most: u32| {
        let value = wanted.unwrap_or(usual);
        let why = || format!("`{what}` must be a number from 1 to {most}, found {value}");
        RunsError::refuse_unless((1..=most).contains(&value), why).map(|()| value)
    };
    let deadline = bounded("deadline_ms", request.deadline_ms, DEADLINE_MS, MAX_DEADLINE_MS)?;
    let memory = bounded("memory_mib", request.memory_mib, MEMORY_MIB, MAX_MEMORY_MIB)?;
    Ok(TrialSettings {
        params: request.params.clone(),
        deadline: DeadlineMs::new(deadline).expect("its own bounds are wider"),
        memory: MemoryMib::new(memory).expect("its own bounds are wider"),
        output: OutputMib::default(),
        assets: BTreeMap::new(),
        seed: request.seed,
        batch: BATCH,
        repeat: bounded("repeat", request.repeat, 1, MAX_REPEAT)?,
        shown_bytes: SHOWN_BYTES,
    })
}

fn given(samples: Vec<TrySample>) -> Result<Vec<Sample>, RunsError> {
    check_count(samples.len())?;
    let made: Vec<Sample> = samples.into_iter().map(sample).collect::<Result<_, _>>()?;
    check_bytes(made.iter().map(Sample::bytes).sum())?;
    Ok(made)
}

fn sample(given: TrySample) -> Result<Sample, RunsError> {
    let key = shown(&given.key);
    let refused = |reason: &str| RunsError::Refused(format!("the sample `{key}` {reason}"));
    let mut line: Map<_, _> = given.fields.unwrap_or_default();
    line.insert("key".to_owned(), json!(if given.key.is_empty() { "sample" } else { &given.key }));
    let line = serde_json::to_vec(&line).expect("a map of JSON is JSON");
    let mut sample = sample_of(&line, 1, Origin::default()).map_err(|fault| refused(&fault.to_string()))?;
    let (usual, value) = match (given.text, given.base64) {
        (Some(text), None) => ("text", Value::Text(text)),
        (None, Some(text)) => {
            let bytes = STANDARD
                .decode(text)
                .map_err(|error| refused(&format!("has bytes that are not base64: {error}")))?;
            (BYTES_FIELD, Value::Blob(bytes.into()))
        }
        (None, None) => return Ok(sample),
        (Some(_), Some(_)) => return Err(refused("has both `text` and `base64`; pass one of them")),
    };
    sample.set(given.field.as_deref().unwrap_or(usual), value);
    Ok(sample)
}

fn check_count(samples: usize) -> Result<(), RunsError> {
    RunsError::refuse_unless((1..=MAX_SAMPLES).contains(&samples), || {
        format!("a trial takes 1 to {MAX_SAMPLES} samples, found {samples}")
    })
}

fn check_bytes(bytes: u64) -> Result<(), RunsError> {
    RunsError::refuse_unless(bytes <= MAX_BYTES, || {
        let most = MAX_BYTES >> 20;
        format!("the samples of a trial may have at most {most} MiB in total; use fewer samples")
    })
}
