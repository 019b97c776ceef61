//! Lists of the runs and of the modules of a server.

use anyhow::Result;
use penstock_server::{MAX_LIMIT, ModuleSummary, Page};
use penstock_types::run::RunSummary;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::{ModulesArgs, RunsArgs};
use crate::client::{Client, query};
use crate::report::columns;
use crate::text::{count, dash, duration, percent, rate, say_as};

pub(crate) fn runs(args: &RunsArgs) -> Result<()> {
    let tags = (!args.tags.is_empty()).then(|| args.tags.join(","));
    let wanted = [("state", args.state.as_deref()), ("q", args.text.as_deref()), ("tag", tags.as_deref())];
    let found = all(&Client::new(&args.server)?, "/runs", &wanted, args.limit as usize)?;
    let none = if wanted.iter().all(|(_, word)| word.is_none()) { "none yet" } else { "none matches" };
    show(&found, args.json, none, |runs: &[RunSummary]| {
        columns(
            runs,
            &[
                ("id", &|run| run.id.to_string()),
                ("pipeline", &|run| run.name.clone()),
                ("state", &|run| run.state.name().to_owned()),
                ("submitted", &|run| run.submitted_at.clone()),
                ("time", &|run| duration(run.elapsed_s)),
                ("samples", &|run| run.samples.map_or_else(dash, count)),
                ("samples/s", &|run| rate(run.samples_per_s)),
                ("sink ready", &|run| percent(run.readiness)),
                ("wait", &|run| duration(run.wait_s)),
                ("failed", &|run| count(run.failed_samples)),
                ("tags", &|run| run.tags.join(" ")),
            ],
        )
    })
}

pub(crate) fn modules(args: &ModulesArgs) -> Result<()> {
    let found = all(&Client::new(&args.server)?, "/modules", &[], usize::MAX)?;
    show(&found, args.json, "none yet", |modules: &[ModuleSummary]| {
        let aliases = |module: &ModuleSummary| {
            let aliases = module.aliases.iter().map(|(alias, version)| format!("{alias}={version}"));
            aliases.collect::<Vec<_>>().join(" ")
        };
        columns(
            modules,
            &[
                ("module", &|module| module.name.clone()),
                ("versions", &|module| count(module.versions)),
                ("latest", &|module| module.latest.version.to_string()),
                ("aliases", &aliases),
                ("size", &|module| format!("{} KiB", count(module.latest.report.size_bytes.div_ceil(1024)))),
                ("runs", &|module| count(module.runs)),
                ("owner", &|module| module.owner.clone().unwrap_or_else(dash)),
                ("digest", &|module| module.latest.report.digest.clone()),
            ],
        )
    })
}

/// Reads the first `most` entries of a list, page by page.
fn all<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    wanted: &[(&str, Option<&str>)],
    most: usize,
) -> Result<Vec<T>> {
    let mut found = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let size = (most - found.len()).min(MAX_LIMIT as usize).to_string();
        let page = [("limit", Some(&*size)), ("cursor", cursor.as_deref())];
        let page: Page<T> = client.get(&query(path, &[wanted, &page].concat()))?;
        found.extend(page.items);
        match page.next {
            Some(next) if found.len() < most => cursor = Some(next),
            _ => return Ok(found),
        }
    }
}

fn show<T: Serialize>(
    found: &[T],
    as_json: bool,
    none: &str,
    in_words: impl Fn(&[T]) -> String,
) -> Result<()> {
    say_as(as_json, found, |found| if found.is_empty() { none.to_owned() } else { in_words(found) })
}
