//! Queries of runs: lists, figures over time, errors, logs, live events, counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_types::run::{FailureClass, RunDetail, RunError, RunState, RunSummary, Window};
use penstock_types::series::{Buckets, Series, TaskTimes};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::RunsError;
use crate::feed::{Event, Events};
use crate::history::{ErrorFilter, HeldRows, Layout, LogFilter, RunFilter, modules, read, runs};
use crate::live::LiveRun;
use crate::runs::Runs;
use crate::wire::{
    Counts, ErrorQuery, LiveCounts, LogEntry, LogQuery, MAX_LIMIT, MAX_POINTS, Page, RunQuery, RunSpec,
    SeriesQuery, StorageUse, WindowQuery,
};
use penstock_stream::StreamAddress;

/// Entries of a page unless given.
const LIMIT: u32 = 50;
/// Points of a series unless given.
const POINTS: u32 = 600;
/// Records of one answer at most: a bucket of a series, or a window, has one of each stage and of each queue. A series has up to
/// eight numbers of each.
const MAX_SERIES_RECORDS: usize = 250_000;
const MAX_WINDOW_RECORDS: usize = 100_000;
/// Runs that one reader watches at most.
const MAX_WATCHED: usize = 32;

impl Runs {
    /// Returns the address of the batches of a running run with the consumer `stream`.
    pub async fn stream(&self, id: &str) -> Result<StreamAddress, RunsError> {
        let live = self.live(id).filter(|live| !live.has_ended());
        if let Some(address) = live.as_ref().and_then(|live| live.stream()) {
            return Ok(address.clone());
        }
        let stored = self.stored_document(id).await?;
        let is_stream = stored.document.pointer("/consumer/stream").is_some();
        let why = match live.map(|live| live.summary().state) {
            _ if !is_stream => "its consumer is not `stream`: nobody can take its batches",
            None => "the run is over: no batches are to be had any more",
            Some(RunState::Queued) => "the run is queued: ask again when it is running",
            Some(_) => "the run is about to start: ask again in a moment",
        };
        Err(RunsError::Conflict(why.to_owned()))
    }

    /// Runs, a page at a time. A page stays where it is while runs are added before it.
    pub async fn list(&self, query: RunQuery) -> Result<Page<RunSummary>, RunsError> {
        let sort = query.sort;
        let states = query.states.clone();
        let filter = RunFilter {
            states: query.states,
            name: query.name,
            module: query.module,
            text: query.text,
            sort,
            after: query.cursor.as_deref().map(open_cursor::<(Value, String)>).transpose()?,
            limit: limit(query.limit),
        };
        let (mut items, more) =
            self.history().read(move |connection| runs::list(connection, &filter)).await?;
        let last = items.last().filter(|_| more);
        let next = last.map(|last| cursor(&(runs::sort_value(last, sort.by), &last.id)));
        let view = self.view();
        for item in &mut items {
            if let Some(live) = view.runs.get(item.id.as_str()) {
                *item = live.summary();
            }
        }
        // What is alive may have changed since it was written, and a page holds what it says it does.
        items.retain(|item| states.is_empty() || states.contains(&item.state));
        items.sort_by(|one, other| runs::compare(one, other, sort));
        Ok(Page { items, next })
    }

    /// All that is known of a run.
    pub async fn detail(&self, id: &str) -> Result<RunDetail, RunsError> {
        if let Some(live) = self.live(id) {
            let waiting = self.view().waiting.get(id).cloned();
            return Ok(live.detail(waiting));
        }
        let own = id.to_owned();
        let stored = self.history().read(move |connection| runs::find(connection, &own)).await?;
        let stored = stored.ok_or_else(|| RunsError::not_found("run", id))?;
        Ok(RunDetail {
            summary: stored.summary,
            waiting: None,
            snapshot: stored.snapshot,
            cloned_from: stored.cloned_from,
            history: stored.history,
            errors_left_out: stored.errors_left_out,
            logs_left_out: stored.logs_left_out,
        })
    }

    pub async fn spec(&self, id: &str) -> Result<RunSpec, RunsError> {
        let stored = self.stored_document(id).await?;
        Ok(RunSpec { document: stored.document, modules: stored.digests })
    }

    /// Figures of a run over time.
    pub async fn series(&self, id: &str, query: SeriesQuery) -> Result<Series, RunsError> {
        // Before anything is read: what happens meanwhile comes as events, perhaps twice, but never not at all.
        let last = format!("{}-{}", self.epoch(), self.0.feed.last());
        if query.points.is_some_and(|points| !(1..=MAX_POINTS).contains(&points)) {
            return Err(RunsError::Refused(format!("`points` is a number from 1 to {MAX_POINTS}")));
        }
        let from = nanos(query.from_s.unwrap_or(0.0), "from_s")?;
        let to = query.to_s.map(|to| nanos(to, "to_s")).transpose()?;
        let (own, live) = (id.to_owned(), self.live(id));
        let read = move |connection: &rusqlite::Connection| {
            let held = HeldRows::of(live.as_ref().map(|live| &live.rows));
            let Some(layout) = runs::layout(connection, &own)? else { return Ok(None) };
            let end = end_of(connection, &own, &held)?;
            let most = most_buckets(&layout, MAX_SERIES_RECORDS);
            let points = query.points.map_or(most.min(POINTS as usize), |points| points as usize);
            let wanted = Buckets::over(from, to.unwrap_or(end).max(from), points);
            let buckets = read::buckets(connection, &own, &held, wanted, end)?;
            if buckets.count > most {
                let told = too_many(&layout, buckets.count, "points", MAX_SERIES_RECORDS);
                return Ok(Some(Err(format!("{told}: ask for {most} `points` at most"))));
            }
            let thinned = read::thinned(connection, &own, &held, buckets)?;
            Ok(Some(Ok(Series {
                from_s: buckets.from as f64 / 1e9,
                to_s: buckets.to() as f64 / 1e9,
                bucket_s: buckets.width as f64 / 1e9,
                t_s: thinned.ends_s(),
                columns: read::columns(&layout, &thinned, &query.metrics),
                last,
            })))
        };
        let found = self.history().read(read).await?.ok_or_else(|| RunsError::not_found("run", id))?;
        found.map_err(RunsError::Refused)
    }

    /// What a run did in equal windows. Percentiles are `null`: see [`Self::times`].
    pub async fn windows(&self, id: &str, query: WindowQuery) -> Result<Vec<Window>, RunsError> {
        let from = nanos(query.from_s.unwrap_or(0.0), "from_s")?;
        let to = query.to_s.map(|to| nanos(to, "to_s")).transpose()?;
        let every = nanos(query.every_s.unwrap_or(1.0), "every_s")?;
        let (own, live) = (id.to_owned(), self.live(id));
        let read = move |connection: &rusqlite::Connection| {
            let held = HeldRows::of(live.as_ref().map(|live| &live.rows));
            let Some(layout) = runs::layout(connection, &own)? else { return Ok(None) };
            let end = end_of(connection, &own, &held)?;
            let wanted = Buckets::every(from, to.unwrap_or(end), every);
            let buckets = read::buckets(connection, &own, &held, wanted, end)?;
            let most = most_buckets(&layout, MAX_WINDOW_RECORDS);
            if buckets.count > most {
                let told = too_many(&layout, buckets.count, "windows", MAX_WINDOW_RECORDS);
                return Ok(Some(Err(format!(
                    "{told}: ask for a shorter time or longer windows, {most} of them at most"
                ))));
            }
            Ok(Some(Ok(read::windows(connection, &own, &held, &layout, buckets)?)))
        };
        let found = self.history().read(read).await?.ok_or_else(|| RunsError::not_found("run", id))?;
        found.map_err(RunsError::Refused)
    }

    /// How long the successful ops of a stage took, over the whole run.
    pub async fn times(&self, id: &str, stage: &str) -> Result<TaskTimes, RunsError> {
        let (own, name, live) = (id.to_owned(), stage.to_owned(), self.live(id));
        let read = move |connection: &rusqlite::Connection| {
            let held = live.map_or_else(Vec::new, |live| live.rows.held_times());
            let Some(layout) = runs::layout(connection, &own)? else { return Ok(None) };
            let Some(place) = layout.stages.iter().position(|stage| stage.id == name) else {
                return Ok(Some(None));
            };
            Ok(Some(Some(TaskTimes::from(&read::times(connection, &own, place, held)?))))
        };
        let found = self.history().read(read).await?.ok_or_else(|| RunsError::not_found("run", id))?;
        found.ok_or_else(|| RunsError::not_found("stage", stage))
    }

    /// Failed samples of a run, oldest first.
    pub async fn errors(&self, id: &str, query: ErrorQuery) -> Result<Page<RunError>, RunsError> {
        self.flush_errors_and_logs(id).await?;
        let filter = ErrorFilter {
            stage: query.stage,
            class: query.class,
            text: query.text,
            after: query.cursor.as_deref().map(open_cursor).transpose()?.unwrap_or(0),
            limit: limit(query.limit),
        };
        let own = id.to_owned();
        let (items, more) =
            self.history().read(move |connection| read::errors(connection, &own, &filter)).await?;
        let next = items.last().filter(|_| more).map(|last: &RunError| cursor(&last.number));
        Ok(Page { items, next })
    }

    /// What the modules of a run logged, oldest first.
    pub async fn logs(&self, id: &str, query: LogQuery) -> Result<Page<LogEntry>, RunsError> {
        self.flush_errors_and_logs(id).await?;
        let filter = LogFilter {
            stage: query.stage,
            level: query.level,
            text: query.text,
            after: query.cursor.as_deref().map(open_cursor).transpose()?.unwrap_or(0),
            limit: limit(query.limit),
        };
        let own = id.to_owned();
        let (items, more) =
            self.history().read(move |connection| read::logs(connection, &own, &filter)).await?;
        let next = items.last().filter(|_| more).map(|last: &LogEntry| cursor(&last.number));
        Ok(Page { items, next })
    }

    /// What happens from now on, or from behind the event `since` of this epoch: to lists, and to these runs. Of a run that
    /// is over, the end comes first. What is not kept any more comes as a gap.
    pub async fn events(&self, watched: &[String], since: Option<u64>) -> Result<Events, RunsError> {
        if watched.len() > MAX_WATCHED {
            return Err(RunsError::Refused(format!("at most {MAX_WATCHED} runs can be watched at a time")));
        }
        // A place in the feed before anything is looked up, so that nothing falls in between.
        let since = since.or_else(|| Some(self.0.feed.last()));
        let mut first = Vec::new();
        for id in watched {
            let summary = self.detail(id).await?.summary;
            if summary.state.is_over() {
                first.push(Event::End(summary));
            }
        }
        Ok(self.0.feed.reader(watched.to_vec(), since, first))
    }

    pub async fn counts(&self) -> Result<Counts, RunsError> {
        let mut runs = self.history().read(runs::count_by_state).await?;
        let view = self.view();
        // What is alive changes faster than it is written down.
        let alive = [RunState::Queued, RunState::Running, RunState::Draining];
        runs.extend(alive.map(|state| (state, 0)));
        let live: Vec<&Arc<LiveRun>> = view.runs.values().filter(|live| !live.is_over()).collect();
        for live in &live {
            *runs.entry(live.summary().state).or_default() += 1;
        }
        let totals = &self.0.totals;
        let failures = FailureClass::ALL.iter().zip(&totals.failures);
        let live = live.into_iter().filter_map(|live| {
            let snapshot = live.snapshot()?;
            Some(LiveCounts { run: live.id().to_string(), name: snapshot.name.clone(), snapshot })
        });
        Ok(Counts {
            runs,
            samples: totals.samples.load(Ordering::Relaxed),
            failures: failures.map(|(class, count)| (*class, count.load(Ordering::Relaxed))).collect(),
            live: live.collect(),
        })
    }

    /// What is kept, and how much room it takes; that is looked up once a minute.
    pub async fn storage(&self) -> Result<StorageUse, RunsError> {
        let (data_dir, data_dir_bytes) = (self.0.workshop.data_dir.clone(), self.0.workshop.data_dir_bytes());
        let count = move |connection: &rusqlite::Connection| {
            let runs: BTreeMap<RunState, u64> = runs::count_by_state(connection)?;
            let free = rustix::fs::statvfs(&data_dir).map_or(0, |found| found.f_bavail * found.f_frsize);
            Ok(StorageUse {
                data_dir_bytes,
                modules: modules::count(connection)?,
                runs: runs.values().sum(),
                free_bytes: free,
            })
        };
        Ok(self.history().read(count).await?)
    }

    /// Writes the pending errors and logs of a live run, so that they can be read. Fails for an unknown run.
    async fn flush_errors_and_logs(&self, id: &str) -> Result<(), RunsError> {
        if let Some(live) = self.live(id) {
            // When it cannot be written, what could be is still there to be read.
            self.history().work(move |connection| live.write(connection)).await.ok();
            return Ok(());
        }
        let own = id.to_owned();
        let layout = self.history().read(move |connection| runs::layout(connection, &own)).await?;
        layout.map(drop).ok_or_else(|| RunsError::not_found("run", id))
    }
}

/// Records of one bucket.
fn nodes(layout: &Layout) -> usize {
    (layout.stages.len() + layout.queues.len()).max(1)
}

/// Buckets of a run with this layout that so many records are enough for.
fn most_buckets(layout: &Layout, records: usize) -> usize {
    (records / nodes(layout)).max(1)
}

fn too_many(layout: &Layout, count: usize, what: &str, most: usize) -> String {
    let (stages, queues) = (layout.stages.len(), layout.queues.len());
    let records = count.saturating_mul(nodes(layout));
    format!(
        "{count} {what} of {stages} stages and {queues} queues would be {records} records, and {most} are given at a time"
    )
}

/// Until when there is something of a run, in nanoseconds.
fn end_of(
    connection: &rusqlite::Connection,
    run: &str,
    held: &HeldRows,
) -> Result<u64, crate::history::HistoryError> {
    match held.end() {
        Some(end) => Ok(end),
        None => read::end(connection, run),
    }
}

pub(crate) fn limit(wanted: Option<u32>) -> u32 {
    wanted.unwrap_or(LIMIT).clamp(1, MAX_LIMIT)
}

/// Encodes the end of a page. Opaque to clients.
pub(crate) fn cursor(place: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(place).expect("numbers and texts are JSON"))
}

pub(crate) fn open_cursor<T: DeserializeOwned>(cursor: &str) -> Result<T, RunsError> {
    let place = URL_SAFE_NO_PAD.decode(cursor).ok().and_then(|place| serde_json::from_slice(&place).ok());
    place.ok_or_else(|| RunsError::Refused("the cursor is none that was given for such a list".to_owned()))
}

fn nanos(seconds: f64, what: &str) -> Result<u64, RunsError> {
    // More than a century is nobody's run.
    let is_time = (0.0..4e9).contains(&seconds);
    if is_time {
        Ok((seconds * 1e9) as u64)
    } else {
        Err(RunsError::Refused(format!("`{what}` is a number of seconds, 0 or more")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_too_much_is_told_with_the_arithmetic_and_what_would_do() {
        let stage = json!({ "id": "1:a", "name": "a", "kind": "sleep", "label": "[1:a]", "concurrency": 1 });
        let queue = json!({ "id": "1:a_queue", "label": "[1:a_queue]", "capacity": 2 });
        let layout = json!({ "stages": vec![stage; 255], "queues": vec![queue; 257] });
        let layout: Layout = serde_json::from_value(layout).unwrap();
        assert_eq!(most_buckets(&layout, MAX_SERIES_RECORDS), 488);
        assert_eq!(
            too_many(&layout, 5_000, "points", MAX_SERIES_RECORDS),
            "5000 points of 255 stages and 257 queues would be 2560000 records, and 250000 are given at a time"
        );
    }
}
