use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use penstock_server::{RunSettings, Validation};
use penstock_types::run::RunDetail;
use serde_json::json;
use ureq::http::Method;

use crate::COMPLETED;
use crate::args::{ResumeArgs, ServerArgs, SetArgs, StopArgs, SubmitArgs};
use crate::client::{Client, query};
use crate::input::{Document, bad};
use crate::progress::Progress;
use crate::report::{exit_code, report};
use crate::text::{say, say_as, warn};

/// Interval between two queries of a run's state.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn submit(args: &SubmitArgs) -> Result<u8> {
    let (_, document) = Document::document(&args.document)?;
    let client = Client::new(&args.server)?;
    let bytes = serde_json::to_vec(&document)?;
    let content = Some(("application/json", &*bytes));
    if args.check {
        say(&in_words(&client.ask(Method::POST, "/runs?validate_only=true", content, &[])?))?;
        return Ok(COMPLETED);
    }
    let time = args.time.map(|time| time.as_secs_f64().to_string());
    let tags = (!args.tags.is_empty()).then(|| args.tags.join(","));
    let address = query("/runs", &[("for_s", time.as_deref()), ("tags", tags.as_deref())]);
    let key: Vec<(&str, &str)> = args.key.iter().map(|key| ("idempotency-key", &**key)).collect();
    let run: RunDetail = client.ask(Method::POST, &address, content, &key)?;
    let id = &run.summary.id;
    let page = client.page(&format!("/runs/{id}"));
    if !args.follow {
        say_as(args.json, &run, |_| format!("{id}\n{page}"))?;
        return Ok(COMPLETED);
    }
    warn(&format!("run {id}: {page}; Ctrl-C stops watching, not the run"));
    follow(&client, id, args)
}

fn follow(client: &Client, id: &str, args: &SubmitArgs) -> Result<u8> {
    let mut progress = Progress::new(args.quiet);
    let mut waiting = None;
    let run = loop {
        let run: RunDetail = client.get(&format!("/runs/{id}"))?;
        if run.summary.state.is_over() {
            break run;
        }
        if run.waiting != waiting {
            waiting.clone_from(&run.waiting);
            waiting.iter().for_each(|why| warn(&format!("queued: {why}")));
        }
        if let Some(snapshot) = &run.snapshot {
            progress.show(snapshot);
        }
        sleep(LOOK);
    };
    progress.clear();
    if args.json || (!args.quiet && run.snapshot.is_some()) {
        say_as(args.json, &run, |run| run.snapshot.as_ref().map_or_else(String::new, report))?;
    }
    Ok(exit_code(run.summary.state, run.summary.error.as_deref()))
}

fn in_words(valid: &Validation) -> String {
    let Validation { stages, threads, memory_mib, .. } = valid;
    let mut told = format!("valid: {} stages, {threads} threads, {memory_mib} MiB", stages.len());
    for (stage, digest) in &valid.modules {
        told.push_str(&format!("\n  {stage} runs {digest}"));
    }
    if let Some(why) = &valid.would_wait {
        told.push_str(&format!("\n  would wait: {why}"));
    }
    told
}

pub(crate) fn stop(args: &StopArgs) -> Result<()> {
    let (_, run) = act(&args.server, &args.run, "stop")?;
    Ok(say(&format!("{} is {}", run.summary.id, run.summary.state.name()))?)
}

pub(crate) fn resume(args: &ResumeArgs) -> Result<()> {
    let (client, run) =
        act(&args.server, &args.run, if args.force { "resume?force=true" } else { "resume" })?;
    let id = &run.summary.id;
    Ok(say(&format!("{id}\n{}", client.page(&format!("/runs/{id}"))))?)
}

pub(crate) fn set(args: &SetArgs) -> Result<()> {
    check_id(&args.run)?;
    let set = pairs_of_numbers(&args.settings)?;
    let content = serde_json::to_vec(&json!({ "set": set }))?;
    let content = Some(("application/json", &*content));
    let address = format!("/runs/{}/settings", args.run);
    let client = Client::new(&args.server)?;
    let before: RunSettings = client.ask(Method::GET, &address, None, &[])?;
    let made: RunSettings = client.ask(Method::PATCH, &address, content, &[])?;
    let in_words = |made: &RunSettings| {
        // Changes are only added. A trial of the tuner ends before, which gives a setting its earlier value.
        let added = made.changes.get(before.changes.len()..).unwrap_or_default();
        let lines = set.iter().map(|(pointer, value)| {
            let change = added.iter().rev().find(|change| change.pointer.as_str() == pointer);
            match change.filter(|change| change.to == *value) {
                Some(change) => format!("{pointer} {} -> {value}", change.from),
                None => format!("{pointer} is {value} already"),
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    say_as(args.json, &made, in_words)
}

fn pairs_of_numbers(settings: &[String]) -> Result<BTreeMap<String, u32>> {
    let number = |setting: &String| {
        let (pointer, value) = setting.split_once('=')?;
        Some((pointer.to_owned(), value.parse().ok()?))
    };
    let wrong = |setting: &String| {
        bad(format!(
            "`{setting}` is not a setting; write `POINTER=NUMBER`, as in `/stages/2/wasm/concurrency=8`"
        ))
    };
    settings.iter().map(|setting| number(setting).ok_or_else(|| wrong(setting))).collect()
}

fn check_id(run: &str) -> Result<()> {
    match run.is_empty() || run.contains(['/', '?', '#']) {
        true => Err(bad(format!("`{run}` is not the id of a run; list runs with `penstock runs`"))),
        false => Ok(()),
    }
}

/// Sends an action on a run; returns the run in the response.
fn act(server: &ServerArgs, run: &str, action: &str) -> Result<(Client, RunDetail)> {
    check_id(run)?;
    let client = Client::new(server)?;
    let empty = Some(("application/json", &b"{}"[..]));
    let run = client.ask(Method::POST, &format!("/runs/{run}/{action}"), empty, &[])?;
    Ok((client, run))
}
