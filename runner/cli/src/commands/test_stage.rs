//! `penstock test-stage`: runs a module on a few samples and reports the results.

mod words;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use bytes::Bytes;
use penstock_engine::item::Sample;
use penstock_engine::ports::StopFlag;
use penstock_pipeline::trial::{
    FileField, MAX_INPUT_BYTES, TrialError, TrialSettings, check_trial_params, read_samples, try_module,
};
use penstock_types::config::Limits;
use penstock_types::manifest::Mode;
use penstock_types::spec::{DeadlineMs, MAX_DOCUMENT_BYTES, MemoryMib, OutputMib};
use penstock_wasm::{Module, Sandbox, SandboxSettings};
use serde_json::{Map, Value};

use crate::args::TestStageArgs;
use crate::commands::compile_module;
use crate::input::{bad, bytes, cache_folder, pairs, read_bounded, std_or_file_bytes, with_runtime};
use crate::text::{say_as, warn};
use crate::{COMPLETED, FAILED};

/// Default number of samples of a batch.
const BATCH: u32 = 8;
/// Maximum number of live instances: the current instance, and one that replaces it or is compared with it.
const INSTANCES: u32 = 2;

pub(crate) fn test_stage(args: &TestStageArgs) -> Result<u8> {
    let params = params(&args.params)?;
    let assets = assets(&args.assets)?;
    let samples = samples(args)?;
    let module = module(args)?;
    let manifest = module.manifest();
    if args.batch.is_some() && manifest.mode != Mode::Batch {
        return Err(bad(format!(
            "`--batch` is for modules of mode `batch`, and `{}` takes one sample per call; omit `--batch`",
            manifest.name
        )));
    }
    let faults = check_trial_params(&module, &params);
    if !faults.is_empty() {
        let faults: Vec<String> = faults.iter().map(|fault| format!("  {fault}")).collect();
        return Err(bad(format!("invalid params:\n{}", faults.join("\n"))));
    }
    let settings = TrialSettings {
        params,
        deadline: DeadlineMs::new(args.deadline_ms).context("the deadline is out of bounds")?,
        memory: MemoryMib::new(args.memory_mib).context("the memory limit is out of bounds")?,
        output: OutputMib::new(args.output_mib).context("the output limit is out of bounds")?,
        assets,
        seed: args.seed,
        batch: args.batch.unwrap_or(BATCH) as usize,
        repeat: args.repeat,
        shown_bytes: 0,
    };
    let report = match try_module(&module, samples, &settings, &StopFlag::default()) {
        Err(TrialError::Start(fault)) => {
            warn(&format!("error: the module does not start: {}", fault.message));
            return Ok(FAILED);
        }
        report => report?,
    };
    say_as(args.json, &report, words::in_words)?;
    Ok(if report.is_good() { COMPLETED } else { FAILED })
}

fn samples(args: &TestStageArgs) -> Result<Vec<Sample>> {
    let usual = if args.text { "text" } else { "bytes" };
    let name = args.field.as_deref().unwrap_or(usual).to_owned();
    let field = FileField { name, is_text: args.text };
    let samples = with_runtime(|runtime| Ok(runtime.block_on(read_samples(&args.inputs, &field))?))
        .map_err(|error| bad(format!("{error:#}")))?;
    if samples.is_empty() {
        return Err(bad("no samples: the input contains no lines and no files"));
    }
    Ok(samples)
}

fn module(args: &TestStageArgs) -> Result<Module> {
    let limits = Limits::default();
    let code = std_or_file_bytes(&args.module, &limits.modules)?;
    let sandbox = Sandbox::new(SandboxSettings {
        cache_dir: cache_folder(args.cache_dir.as_deref()),
        instances: INSTANCES,
        compiler: compile_module::compiler(&limits.compile),
        gate: limits.modules,
        ..SandboxSettings::default()
    })?;
    sandbox.load(&code).map_err(|error| bad(format!("`{}`: {error}", args.module.display())))
}

fn params(given: &str) -> Result<Map<String, Value>> {
    let (text, origin) = match given.strip_prefix('@') {
        Some(file) => {
            // The size is limited as for documents, so that an endless file is not read for ever.
            let text = String::from_utf8(bytes(Path::new(file))?)
                .map_err(|_| bad(format!("the params in `{file}` are not UTF-8")))?;
            if text.len() > MAX_DOCUMENT_BYTES {
                return Err(bad(format!("the params in `{file}` have more than {MAX_DOCUMENT_BYTES} bytes")));
            }
            (text, format!("in `{file}`"))
        }
        None => (given.to_owned(), "after `-p`".to_owned()),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(params)) => Ok(params),
        Ok(_) => Err(bad(format!("the params {origin} are not a JSON object, such as {{\"size\": 224}}"))),
        Err(error) => Err(bad(format!("the params {origin} are not JSON: {error}"))),
    }
}

fn assets(given: &[String]) -> Result<BTreeMap<String, Bytes>> {
    let mut assets = BTreeMap::new();
    for given in pairs(given, "--asset", "NAME=FILE") {
        let (name, path) = given?;
        let content = content(Path::new(path))
            .map_err(|error| bad(format!("the asset `{name}` cannot be read at `{path}`: {error}")))?;
        assets.insert(name.to_owned(), content);
    }
    Ok(assets)
}

fn content(path: &Path) -> std::io::Result<Bytes> {
    let content = read_bounded(path, MAX_INPUT_BYTES)?;
    if content.len() as u64 > MAX_INPUT_BYTES {
        let limit = format!("larger than {} MiB", MAX_INPUT_BYTES >> 20);
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, limit));
    }
    Ok(Bytes::from(content))
}
