//! Model of a server: all acknowledged changes, which the server must keep, also after a crash.

use std::collections::{BTreeMap, BTreeSet};

use penstock_tests::{Answer, Served};
use penstock_types::ledger::Ledger;
use penstock_types::run::{RunDetail, RunState};
use serde_json::{Value, json};

/// An object whose creation was acknowledged.
#[derive(Clone, Debug)]
pub(crate) enum Thing {
    Run(KeptRun),
    Version(Vec<u8>),
    Report(Value),
}

#[derive(Clone, Debug)]
pub(crate) struct KeptRun {
    pub(crate) document: Value,
    /// Query string after `/runs`, and the idempotency key.
    pub(crate) query: String,
    pub(crate) key: Option<String>,
    /// Final state, error and counts of the run; `None` until they have been observed.
    pub(crate) end: Option<Value>,
}

/// Expected presence of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Presence {
    There,
    /// Deletion was requested, but its result is unknown.
    Unsure,
    Gone,
}

/// All changes that a server has acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Objects by their addresses in the API.
    pub(crate) things: BTreeMap<String, (Presence, Thing)>,
    /// Versions by the addresses of aliases; `None` after a change whose result is unknown.
    pub(crate) aliases: BTreeMap<String, Option<u64>>,
}

/// Body of a request: its media type and its bytes.
pub(crate) type Content<'a> = Option<(&'a str, &'a [u8])>;

/// Sends a request to the API on a new connection: the server might close an idle connection just then.
pub(crate) fn ask(
    served: &Served,
    method: &str,
    path: &str,
    content: Content<'_>,
    key: Option<&str>,
) -> Option<Answer> {
    let mut headers = vec![("connection", "close")];
    headers.extend(key.map(|key| ("idempotency-key", key)));
    served.try_ask(method, &format!("/api/v1{path}"), content, &headers)
}

/// Gets an object that must exist; the error states why it could not be read.
pub(crate) fn get(served: &Served, path: &str) -> Result<Answer, String> {
    match ask(served, "GET", path, None, None) {
        Some(answer) if answer.status == 200 => Ok(answer),
        Some(answer) => Err(format!("GET {path}: found {} {}, expected 200", answer.status, answer.text())),
        None => Err(format!("GET {path}: found no response, expected 200")),
    }
}

impl Model {
    /// Compares the model with the server; returns the differences. All runs must have ended.
    pub(crate) fn check(&mut self, served: &Served) -> Vec<String> {
        let mut found = Vec::new();
        let listed = listed(served).unwrap_or_else(|wrong| {
            found.push(wrong);
            BTreeSet::new()
        });
        for (path, (presence, thing)) in &mut self.things {
            let is_there = match ask(served, "GET", path, None, None).map(|answer| answer.status) {
                Some(200) => true,
                Some(404) => false,
                status => {
                    found.push(format!("GET {path}: found {status:?}, expected 200 or 404"));
                    continue;
                }
            };
            if *presence == if is_there { Presence::Gone } else { Presence::There } {
                found.push(format!("{path}: exists: {is_there}, expected {presence:?}"));
            }
            if matches!(thing, Thing::Run(_)) && listed.contains(path) != is_there {
                found.push(format!("{path}: exists: {is_there}, but the list differs"));
            }
            if is_there {
                found.extend(thing.check(served, path).err().map(|wrong| format!("{path}: {wrong}")));
            }
        }
        for (path, version) in &self.aliases {
            let (Some(version), Some((module, alias))) = (version, path.split_once("/aliases/")) else {
                continue;
            };
            let told = get(served, module).map(|module| module.json()["aliases"][alias].clone());
            if told != Ok(json!(version)) {
                found.push(format!("{path}: found {told:?}, expected {version}"));
            }
        }
        found
    }
}

impl Thing {
    fn check(&mut self, served: &Served, path: &str) -> Result<(), String> {
        let is_whole = match self {
            Self::Run(run) => return run.check(served, path),
            Self::Version(bytes) => get(served, &format!("{path}/content"))?.bytes == *bytes,
            Self::Report(report) => get(served, path)?.json() == *report,
        };
        if is_whole { Ok(()) } else { Err("found other bytes than were sent".to_owned()) }
    }
}

impl KeptRun {
    /// Checks a run that has ended: its ledger, its stored data, and that its final state equals the one observed before.
    fn check(&mut self, served: &Served, path: &str) -> Result<(), String> {
        let told = get(served, path)?.json();
        let detail: RunDetail =
            serde_json::from_value(told.clone()).map_err(|error| format!("{error} in {told}"))?;
        let summary = &detail.summary;
        let ledger = &told["snapshot"]["ledger"];
        let end = json!([summary.state, summary.error, summary.samples, ledger]);
        if *self.end.get_or_insert_with(|| end.clone()) != end {
            return Err(format!("found the end {end}, expected {:?} as before", self.end));
        }
        check_ledger(&detail, self.query.is_empty())
            .map_err(|wrong| format!("{wrong}, of {}", self.document))?;
        for part in ["series", "windows", "errors", "logs", "dead-letters"] {
            get(served, &format!("{path}/{part}"))?;
        }
        let document = &get(served, &format!("{path}/spec"))?.json()["document"];
        if *document != self.document {
            return Err(format!("found the document {document}, expected {}", self.document));
        }
        let Some(key) = &self.key else { return Ok(()) };
        let (runs, text) = (format!("/runs{}", self.query), self.document.to_string());
        let again = ask(served, "POST", &runs, Some(("application/json", text.as_bytes())), Some(key));
        match again {
            Some(again) if again.status == 200 && again.json()["id"] == summary.id[..] => Ok(()),
            Some(again) => Err(format!(
                "found {} {} for its key {key}, expected the same run",
                again.status,
                again.text()
            )),
            None => Err(format!("found no response for its key {key}")),
        }
    }
}

/// Addresses of all runs, from the list, page after page.
fn listed(served: &Served) -> Result<BTreeSet<String>, String> {
    let (mut runs, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let page = get(served, &format!("/runs?limit=200{cursor}"))?.json();
        let ids = page["items"].as_array().into_iter().flatten().filter_map(|run| run["id"].as_str());
        runs.extend(ids.map(|id| format!("/runs/{id}")));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(runs),
        }
    }
}

/// Checks the sums in the ledger of a run that has ended. `is_whole` is true if the run had no time limit.
fn check_ledger(detail: &RunDetail, is_whole: bool) -> Result<(), String> {
    let (samples, state) = (detail.summary.samples, detail.summary.state);
    let is_completed = state == RunState::Completed;
    let Some(snapshot) = detail.snapshot.as_ref().filter(|_| state.is_over()) else {
        return if state.is_over() && !is_completed {
            Ok(())
        } else {
            Err(format!("found it {state:?} without figures"))
        };
    };
    let ledger = &snapshot.ledger;
    let made = ledger.stages.first().map(|source| source.made);
    if !ledger.balanced || Ledger::close(ledger.stages.clone(), ledger.queues.clone(), &[]) != *ledger {
        return Err(format!("found a ledger that does not balance: {ledger:?}"));
    }
    if samples != Some(ledger.total.delivered) {
        return Err(format!("found {samples:?} samples, and {} in the ledger", ledger.total.delivered));
    }
    let is_short = ledger.total.left > 0 || snapshot.expected.is_some() && made != snapshot.expected;
    if is_completed && is_whole && is_short {
        return Err(format!(
            "found the run completed, with {made:?} of {:?} samples read: {ledger:?}",
            snapshot.expected
        ));
    }
    Ok(())
}
