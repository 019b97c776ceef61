//! `penstock module`: reads and writes the manifests of modules.

use anyhow::Result;
use penstock_pipeline::{STD_VERSION, StdModule};
use penstock_types::config::{CompileBounds, GateBounds};
use penstock_types::manifest::Mode;
use penstock_types::text::printable;
use penstock_wasm::{ModuleReport, inspect as look, with_manifest};

use serde::Serialize;

use crate::args::{InspectArgs, ManifestArgs, ModuleListArgs};
use crate::commands::compile_module;
use crate::input::{bad, module_bytes, std_or_file_bytes};
use crate::text::{count, say_as};

/// Maximum number of bytes that are printed of each line of a module's description.
const MAX_DOC_LINE: usize = 2000;

/// Longest summary of a module in a list, in bytes.
const MAX_SUMMARY: usize = 100;

/// A module of the program, in a list.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    version: u32,
    report: &'static ModuleReport,
}

pub(crate) fn list(args: &ModuleListArgs) -> Result<()> {
    let modules = StdModule::all().iter();
    let modules: Vec<Listed> = modules
        .map(|module| Listed { name: module.name(), version: STD_VERSION, report: module.report() })
        .collect();
    say_as(args.json, &modules[..], |modules| {
        if modules.is_empty() {
            return "none: this program was built without std modules; run `make build`".to_owned();
        }
        let lines = modules.iter().map(|Listed { name, version, report }| {
            let (mode, size) = (report.manifest.mode.name(), report.size_bytes.div_ceil(1024));
            let summary = printable(report.manifest.doc.lines().next().unwrap_or_default(), MAX_SUMMARY);
            format!(
                "{:<20}{mode:<10}{:>12}  {summary}",
                format!("{name}@{version}"),
                format!("{} KiB", count(size))
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    })
}

pub(crate) fn inspect(args: &InspectArgs) -> Result<()> {
    let bounds = GateBounds::default();
    let bytes = std_or_file_bytes(&args.file, &bounds)?;
    let compiler = compile_module::compiler(&CompileBounds::default());
    let refused = |error| bad(format!("`{}`: {error}", args.file.display()));
    say_as(args.json, &look(&bytes, &bounds, &compiler).map_err(refused)?, in_words)
}

pub(crate) fn manifest(args: &ManifestArgs) -> Result<()> {
    let bounds = GateBounds::default();
    let refused = |error: &dyn std::fmt::Display| bad(format!("`{}`: {error}", args.file.display()));
    let described =
        with_manifest(&module_bytes(&args.file, &bounds)?, &module_bytes(&args.manifest, &bounds)?, &bounds);
    // In a temporary file first, so that a failed write leaves the module as it was.
    let part = args.file.with_added_extension("part");
    let written = std::fs::write(&part, described.map_err(|error| refused(&error))?);
    written.and_then(|()| std::fs::rename(&part, &args.file)).map_err(|error| refused(&error))
}

fn in_words(report: &ModuleReport) -> String {
    let manifest = &report.manifest;
    let mode = match manifest.mode {
        Mode::Sample => "sample: called with one sample",
        Mode::Batch => "batch: called with a whole batch",
        Mode::Stateful => "stateful: one instance, may hold samples back until the epoch ends",
    };
    let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let wants = manifest.wants.as_ref().map_or_else(|| "all fields".to_owned(), |wants| list(wants));
    let params = match &manifest.params {
        Some(schema) => format!("{schema:#}"),
        None => "none".to_owned(),
    };
    let doc: Vec<String> = manifest.doc.lines().map(|line| printable(line, MAX_DOC_LINE)).collect();
    let fan_out = match (manifest.mode, manifest.fan_out) {
        (Mode::Stateful, _) => "decided by the samples that it holds",
        (_, Some(true)) => "one sample may become several",
        (_, Some(false)) => "none",
        (_, None) => "unknown",
    };
    let lines = [
        ("module", format!("{} {}", manifest.name, manifest.version)),
        ("digest", report.digest.clone()),
        ("size", format!("{} bytes, {} functions", report.size_bytes, report.functions)),
        ("mode", mode.to_owned()),
        ("wants", wants),
        ("makes", list(&manifest.makes)),
        ("removes", manifest.removes.as_deref().map_or_else(|| "unknown".to_owned(), list)),
        ("fan-out", fan_out.to_owned()),
        ("counters", list(&manifest.counters)),
        ("imports", list(&report.imports)),
        ("exports", list(&report.exports)),
        ("doc", doc.join("\n          ")),
        ("params", params.replace('\n', "\n          ")),
    ];
    lines.map(|(name, value)| format!("{name:<10}{value}")).join("\n")
}
