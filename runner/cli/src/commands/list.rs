//! What a server has: runs and modules.

use anyhow::Result;
use penstock_runner::{ModuleSummary, Page};
use penstock_types::run::RunSummary;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::COMPLETED;
use crate::args::{ModulesArgs, RunsArgs};
use crate::client::Client;
use crate::commands::push::encoded;
use crate::report::table;
use crate::text::{count, duration, percent, rate, say};

/// Lists runs.
pub(crate) fn runs(args: &RunsArgs) -> Result<u8> {
    let mut address = format!("/runs?limit={}", args.limit);
    for (name, value) in [("state", &args.state), ("q", &args.text)] {
        if let Some(value) = value {
            address.push_str(&format!("&{name}={}", encoded(value)));
        }
    }
    list(&Client::new(&args.server)?, &address, args.json, |runs: &[RunSummary]| {
        let header = [
            "id",
            "pipeline",
            "state",
            "submitted",
            "time",
            "samples",
            "qps",
            "sink ready",
            "wait",
            "failed",
        ];
        let rows = runs.iter().map(|run| {
            vec![
                run.id.clone(),
                run.name.clone(),
                run.state.name().to_owned(),
                run.submitted_at.clone(),
                duration(run.elapsed_s),
                run.samples.map_or_else(|| "-".to_owned(), count),
                rate(run.qps),
                percent(run.readiness),
                duration(run.wait_s),
                count(run.failed_samples),
            ]
        });
        table(&header, rows)
    })
}

/// Lists modules.
pub(crate) fn modules(args: &ModulesArgs) -> Result<u8> {
    list(&Client::new(&args.server)?, "/modules?limit=200", args.json, |modules: &[ModuleSummary]| {
        let header = ["module", "versions", "latest", "aliases", "size", "runs", "digest"];
        let rows = modules.iter().map(|module| {
            let aliases = module.aliases.iter().map(|(alias, version)| format!("{alias}={version}"));
            vec![
                module.name.clone(),
                count(module.versions),
                module.latest.version.to_string(),
                aliases.collect::<Vec<_>>().join(" "),
                format!("{} KiB", count(module.latest.report.size_bytes.div_ceil(1024))),
                count(module.runs),
                module.latest.report.digest.clone(),
            ]
        });
        table(&header, rows)
    })
}

fn list<T: Serialize + DeserializeOwned>(
    client: &Client,
    address: &str,
    as_json: bool,
    in_words: impl Fn(&[T]) -> String,
) -> Result<u8> {
    let page: Page<T> = client.get(address)?;
    match as_json {
        true => say(&serde_json::to_string_pretty(&page.items)?)?,
        false if page.items.is_empty() => say("none yet")?,
        false => say(&in_words(&page.items))?,
    }
    Ok(COMPLETED)
}
