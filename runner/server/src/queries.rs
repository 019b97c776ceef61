//! Queries of runs: lists, figures over time, errors, logs, live events and counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_types::run::{FailureClass, RunDetail, RunError, RunId, RunState, RunSummary, Window};
use penstock_types::series::{Buckets, Series, TaskTimes, Timeline};
use penstock_types::spec::Spec;
use penstock_types::tune::SettingChange;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::RunsError;
use crate::feed::{Event, Events};
use crate::history::{HistoryError, Layout, RunRows, Unwritten, modules, read, runs};
use crate::live::LiveRun;
use crate::runs::{Runs, apart};
use crate::sharing::HeldAmount;
use crate::wire::{
    Counts, ErrorQuery, LogEntry, LogQuery, MAX_POINTS, Page, RunQuery, RunSpec, SeriesQuery, StorageUse,
    WindowQuery,
};
use penstock_stream::StreamAddress;

/// Default number of points of a series.
const POINTS: u32 = 600;
/// Number of buckets into which a run is divided to find the events of its timeline.
const TIMELINE_BUCKETS: usize = 1_000;
/// Maximum memory of a series or of a list of windows while it is made, in bytes. A bucket or window has one record for each stage
/// and each queue.
const MAX_ANSWER_BYTES: usize = 192 << 20;
/// Memory of the sums of a record, in bytes.
const SUMS_BYTES: usize = 480;
/// Memory of a figure of a record and of its JSON, in bytes.
const FIGURE_BYTES: usize = 24;
/// Number of metrics of a record on average, if all are requested.
const ALL_METRICS: usize = 12;
const MAX_WATCHED: usize = 32;

impl Runs {
    /// Returns the address of the batches of a running run with the consumer `stream`.
    pub async fn stream(&self, id: &RunId) -> Result<StreamAddress, RunsError> {
        let live = self.live(id).filter(|live| !live.has_ended());
        let document = self.spec(id).await?.document;
        let is_stream = document.pointer("/consumer/stream").is_some();
        if let Some(address) = live.as_ref().and_then(|live| live.stream()) {
            self.check_stores(&Spec::from_value(document).map_err(RunsError::invalid)?)?;
            return Ok(address.clone());
        }
        let why = match live.map(|live| live.summary().state) {
            _ if !is_stream => "the run's consumer is not `stream`, so its batches cannot be received",
            None => "the run has ended, so its batches are no longer available",
            Some(RunState::Queued) => "the run is queued; try again when it is running",
            Some(_) => "the run is about to start; try again in a moment",
        };
        Err(RunsError::Conflict(why.to_owned()))
    }

    /// Lists a page of runs. A cursor stays valid when runs are added.
    pub async fn list(&self, query: RunQuery) -> Result<Page<RunSummary>, RunsError> {
        let (sort, states, after) = (query.sort, query.states.clone(), after(query.cursor.as_ref())?);
        let found = self.history().read(move |connection| runs::list(connection, query, after)).await?;
        let mut page = page(found, |last| (runs::sort_value(last, sort.by), last.id.clone()));
        let view = self.view();
        for item in &mut page.items {
            if let Some(live) = view.runs.get(&item.id) {
                *item = live.summary();
            }
        }
        // Live runs may have changed since they were stored, so the filter and the order are applied again.
        page.items.retain(|item| states.is_empty() || states.contains(&item.state));
        page.items.sort_by(|one, other| runs::compare(one, other, sort));
        Ok(page)
    }

    pub async fn detail(&self, id: &RunId) -> Result<RunDetail, RunsError> {
        if let Some(live) = self.live(id) {
            let waiting = self.view().waiting.get(id).cloned();
            return Ok(live.detail(waiting));
        }
        self.find("run", id, runs::find).await
    }

    pub async fn spec(&self, id: &RunId) -> Result<RunSpec, RunsError> {
        Ok(self.find("run", id, runs::document).await?.0)
    }

    /// Reads what the history has of this id, of which `what` names the kind. Fails if that is nothing.
    pub(crate) async fn find<T: Send + 'static>(
        &self,
        what: &'static str,
        id: &str,
        find: fn(&rusqlite::Connection, &str) -> Result<Option<T>, HistoryError>,
    ) -> Result<T, RunsError> {
        let own = id.to_owned();
        let found = self.history().read(move |connection| find(connection, &own)).await?;
        found.ok_or_else(|| RunsError::not_found(what, id))
    }

    /// Reads rows of a run by `read`, which also gets the layout of the run. Fails for an unknown run.
    pub(crate) async fn read_rows<T: Send + 'static>(
        &self,
        id: &RunId,
        work: impl FnOnce(RunRows<'_>, Layout) -> Result<T, RunsError> + Send + 'static,
    ) -> Result<T, RunsError> {
        let (own, live) = (id.clone(), self.live(id));
        let read = move |connection: &rusqlite::Connection| {
            let layout = runs::layout(connection, &own)?.ok_or_else(|| RunsError::not_found("run", &own))?;
            work(RunRows::of(connection, &own, live.as_ref().map(|live| &live.rows)), layout)
        };
        self.history().read(read).await
    }

    pub async fn series(&self, id: &RunId, query: SeriesQuery) -> Result<Series, RunsError> {
        // The number is taken before the rows are read: the events after it may repeat some of the figures, but none are missing.
        let last = format!("{}-{}", self.epoch(), self.0.feed.last());
        RunsError::refuse_unless(
            query.points.is_none_or(|points| (1..=MAX_POINTS).contains(&points)),
            || format!("`points` must be a number from 1 to {MAX_POINTS}"),
        )?;
        let from = nanos(query.from_s.unwrap_or(0.0), "from_s")?;
        let (to, room) = (query.to_s.map(|to| nanos(to, "to_s")).transpose()?, self.room());
        let read = move |rows: RunRows<'_>, layout: Layout| {
            let end = rows.end()?;
            let has_spreads = query.spreads != Some(false);
            let metrics = if query.metrics.is_empty() { ALL_METRICS } else { query.metrics.len() };
            let records = Records::of(&layout, metrics * if has_spreads { 3 } else { 1 });
            let most = records.most_buckets();
            let points = query.points.map_or(most.min(POINTS as usize), |points| points as usize);
            let buckets = rows.buckets(Buckets::over(from, to.unwrap_or(end).max(from), points), end)?;
            RunsError::refuse_unless(buckets.count <= most, || {
                let reason = records.too_many(&layout, buckets.count, "points");
                format!("{reason}; request at most {most} `points`")
            })?;
            records.hold(room.as_deref(), buckets.count)?;
            let thinned = rows.lines(buckets, &query.metrics, has_spreads)?;
            let mut columns = read::columns(&layout, &thinned, &query.metrics, &query.ids);
            for column in &mut columns {
                if !has_spreads {
                    (column.min, column.max) = (Vec::new(), Vec::new());
                }
                query.digits.into_iter().for_each(|digits| read::shorten(column, digits));
            }
            Ok(Series {
                from_s: buckets.from as f64 / 1e9,
                to_s: buckets.to() as f64 / 1e9,
                bucket_s: buckets.width as f64 / 1e9,
                t_s: thinned.ends_s(),
                columns,
                last,
            })
        };
        self.read_rows(id, read).await
    }

    /// Returns figures of a run in windows of equal length. Percentiles are `null`; [`Self::times`] returns them.
    pub async fn windows(&self, id: &RunId, query: WindowQuery) -> Result<Vec<Window>, RunsError> {
        let from = nanos(query.from_s.unwrap_or(0.0), "from_s")?;
        let to = query.to_s.map(|to| nanos(to, "to_s")).transpose()?;
        let room = self.room();
        let every = nanos(query.every_s.unwrap_or(1.0), "every_s")?;
        let changes = self.changes(id).await?;
        let read = move |rows: RunRows<'_>, layout: Layout| {
            let end = rows.end()?;
            let buckets = rows.buckets(Buckets::every(from, to.unwrap_or(end), every), end)?;
            let records = Records::of(&layout, 3 * ALL_METRICS);
            let most = records.most_buckets();
            RunsError::refuse_unless(buckets.count <= most, || {
                let reason = records.too_many(&layout, buckets.count, "windows");
                format!("{reason}; request a shorter time or longer windows, at most {most} of them")
            })?;
            records.hold(room.as_deref(), buckets.count)?;
            Ok(rows.windows(&layout, &changes, buckets)?)
        };
        self.read_rows(id, read).await
    }

    /// Changes of the settings of a run so far, oldest first.
    async fn changes(&self, id: &RunId) -> Result<Vec<SettingChange>, RunsError> {
        Ok(self.run_settings(id).await?.changes)
    }

    pub async fn timeline(&self, id: &RunId) -> Result<Timeline, RunsError> {
        let read = |rows: RunRows<'_>, layout: Layout| {
            let end = rows.end()?;
            let thinned = rows.thinned(rows.buckets(Buckets::over(0, end, TIMELINE_BUCKETS), end)?)?;
            let stages: Vec<_> =
                layout.stages.iter().map(|stage| (stage.id.as_str(), stage.name.as_str())).collect();
            Ok(Timeline::of(&stages, thinned.rows()))
        };
        self.read_rows(id, read).await
    }

    /// Returns the times of the successful ops of a stage over the whole run.
    pub async fn times(&self, id: &RunId, stage: &str) -> Result<TaskTimes, RunsError> {
        let stage = stage.to_owned();
        let read = move |rows: RunRows<'_>, layout: Layout| {
            let place = layout.stages.iter().position(|known| known.id == stage);
            let place = place.ok_or_else(|| RunsError::not_found("stage", &stage))?;
            Ok(TaskTimes::from(&rows.times(place)?))
        };
        self.read_rows(id, read).await
    }

    pub async fn errors(&self, id: &RunId, query: ErrorQuery) -> Result<Page<RunError>, RunsError> {
        self.flush_errors_and_logs(id).await?;
        let (own, after) = (id.clone(), after(query.cursor.as_ref())?.unwrap_or(0));
        let read = move |connection: &rusqlite::Connection| read::errors(connection, &own, query, after);
        Ok(page(self.history().read(read).await?, |last| last.number))
    }

    pub async fn logs(&self, id: &RunId, query: LogQuery) -> Result<Page<LogEntry>, RunsError> {
        self.flush_errors_and_logs(id).await?;
        let (own, after) = (id.clone(), after(query.cursor.as_ref())?.unwrap_or(0));
        let read = move |connection: &rusqlite::Connection| read::logs(connection, &own, query, after);
        Ok(page(self.history().read(read).await?, |last| last.number))
    }

    /// Returns a reader of the events of lists and of the watched runs, from now on or after the event `since` of this epoch. If
    /// a watched run has already ended, the reader gets its end first. Events that are no longer kept are reported as a gap.
    pub async fn events(&self, watched: &[RunId], since: Option<u64>) -> Result<Events, RunsError> {
        RunsError::refuse_unless(watched.len() <= MAX_WATCHED, || {
            format!("at most {MAX_WATCHED} runs can be watched at a time")
        })?;
        // The position in the feed is taken before the runs are read, so that no event is missed in between.
        let since = since.or_else(|| Some(self.0.feed.last()));
        let mut first = Vec::new();
        for id in watched {
            let summary = match self.live(id) {
                Some(live) => live.summary(),
                None => self.detail(id).await?.summary,
            };
            if summary.state.is_over() {
                first.push(Event::End(summary));
            }
        }
        Ok(self.0.feed.reader(watched.to_vec(), since, first))
    }

    pub async fn counts(&self) -> Result<Counts, RunsError> {
        let mut runs = self.history().read(runs::count_by_state).await?;
        let view = self.view();
        // The stored states of live runs may be out of date.
        let alive = [RunState::Queued, RunState::Running, RunState::Draining];
        runs.extend(alive.map(|state| (state, 0)));
        let live: Vec<&Arc<LiveRun>> = view.runs.values().filter(|live| !live.is_over()).collect();
        for live in &live {
            *runs.entry(live.summary().state).or_default() += 1;
        }
        let totals = &self.0.totals;
        let failures = FailureClass::ALL.iter().zip(&totals.failures);
        Ok(Counts {
            runs,
            samples: totals.samples.load(Ordering::Relaxed),
            failures: failures.map(|(class, count)| (*class, count.load(Ordering::Relaxed))).collect(),
            live: live.into_iter().filter_map(|live| live.snapshot()).collect(),
        })
    }

    /// Returns the use of the data directory, which is measured once a minute.
    pub async fn storage(&self) -> Result<StorageUse, RunsError> {
        let (data_dir, disk) = (self.settings().data_dir.clone(), self.0.workshop.disk.clone());
        let count = move |connection: &rusqlite::Connection| {
            Ok(StorageUse {
                data_dir_bytes: disk.used(),
                data_dir_limit_bytes: disk.most(),
                modules: modules::count(connection)?,
                runs: runs::count_by_state(connection)?.values().sum(),
                free_bytes: rustix::fs::statvfs(&data_dir).map_or(0, |found| found.f_bavail * found.f_frsize),
            })
        };
        self.history().read(count).await
    }

    /// Writes the pending errors and logs of a live run, so that they can be read. Fails for an unknown run.
    async fn flush_errors_and_logs(&self, id: &RunId) -> Result<(), RunsError> {
        let Some(live) = self.live(id) else { return self.read_rows(id, |_, _| Ok(())).await };
        let own = live.clone();
        // All data are written soon, but a write that is queued already may lack the newest errors and logs.
        apart(self, move || {
            own.write_soon();
            Ok(())
        })
        .await?;
        // If the write fails, entries that were written earlier can still be read.
        let write = move |connection: &mut rusqlite::Connection| {
            live.write(connection, &(live.unwritten_errors_and_logs(), Unwritten::default()))
        };
        self.history().work(write).await.ok();
        Ok(())
    }
}

/// Records of an answer, and the memory that they take.
#[derive(Clone, Copy, Debug)]
struct Records {
    /// Number of records in one bucket: one for each stage and each queue.
    in_bucket: usize,
    /// Memory of one record while the answer is made, in bytes.
    bytes: usize,
}

impl Records {
    /// Records of a run with this layout that have this number of figures each.
    fn of(layout: &Layout, figures: usize) -> Self {
        let in_bucket = (layout.stages.len() + layout.queues.len()).max(1);
        Self { in_bucket, bytes: SUMS_BYTES + figures * FIGURE_BYTES }
    }

    fn most_buckets(self) -> usize {
        (MAX_ANSWER_BYTES / self.bytes / self.in_bucket).max(1)
    }

    fn hold(self, room: Option<&HeldAmount>, buckets: usize) -> Result<(), RunsError> {
        let bytes = buckets.saturating_mul(self.in_bucket).saturating_mul(self.bytes);
        if room.is_none_or(|room| room.grow(bytes as u64)) {
            return Ok(());
        }
        let message = "too many large answers are in progress; try again later, or request fewer points";
        Err(RunsError::Busy(message.to_owned()))
    }

    fn too_many(self, layout: &Layout, count: usize, what: &str) -> String {
        let (stages, queues) = (layout.stages.len(), layout.queues.len());
        let records = count.saturating_mul(self.in_bucket);
        format!(
            "{count} {what} of {stages} stages and {queues} queues are {records} records, but a response with these figures has at most {}",
            MAX_ANSWER_BYTES / self.bytes
        )
    }
}

/// Creates a page. If there are more entries, the cursor of the next page is made from the position (`place`) of the last entry.
pub(crate) fn page<T, P: Serialize>((items, more): (Vec<T>, bool), place: impl Fn(&T) -> P) -> Page<T> {
    let last = items.last().filter(|_| more).map(place);
    let written = |place| serde_json::to_vec(&place).expect("numbers and texts are JSON");
    // Encoded, so that clients treat the cursor as opaque.
    Page { next: last.map(|place| URL_SAFE_NO_PAD.encode(written(place))), items }
}

/// Decodes a cursor into the position of the last entry of the previous page.
pub(crate) fn after<T: DeserializeOwned>(cursor: Option<&String>) -> Result<Option<T>, RunsError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let place = URL_SAFE_NO_PAD.decode(cursor).ok().and_then(|place| serde_json::from_slice(&place).ok());
    let unknown = || RunsError::Refused("the cursor is not valid for this list".to_owned());
    place.ok_or_else(unknown).map(Some)
}

pub(crate) fn nanos(seconds: f64, what: &str) -> Result<u64, RunsError> {
    // The limit of over a century is longer than any run.
    RunsError::refuse_unless((0.0..4e9).contains(&seconds), || {
        format!("`{what}` must be a number of seconds, 0 or more")
    })?;
    Ok((seconds * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use penstock_types::spec::Percent;
    use serde_json::json;

    use super::*;
    use crate::fair::ClientId;
    use crate::sharing::SharedAmount;

    #[test]
    fn a_request_for_too_many_records_reports_their_number_and_the_limit() {
        let stage = json!({ "id": "1:a", "name": "a", "kind": "sleep", "label": "[1:a]", "concurrency": 1 });
        let queue = json!({ "id": "1:a_queue", "label": "[1:a_queue]", "capacity": 2 });
        let layout = json!({ "stages": vec![stage; 255], "queues": vec![queue; 257] });
        let layout: Layout = serde_json::from_value(layout).unwrap();
        let all = Records::of(&layout, 3 * ALL_METRICS);
        assert_eq!(all.most_buckets(), 292);
        assert_eq!(
            all.too_many(&layout, 5_000, "points"),
            "5000 points of 255 stages and 257 queues are 2560000 records, but a response with these figures has at most 149796"
        );
        assert!(
            Records::of(&layout, 1).most_buckets() > 2 * all.most_buckets(),
            "fewer figures leave room for more"
        );

        // Two of the largest answers do not fit at a time, and a small one of another client does.
        let memory = SharedAmount::new(224 << 20, Percent::default());
        let (one, other) = (ClientId::new("one"), ClientId::new("other"));
        let rooms = [memory.part(&one), memory.part(&one), memory.part(&other)];
        all.hold(Some(&rooms[0]), 292).unwrap();
        assert_eq!(memory.used(), (292 * 512 * all.bytes) as u64);
        assert!(matches!(all.hold(Some(&rooms[1]), 292), Err(RunsError::Busy(_))));
        all.hold(Some(&rooms[2]), 40).unwrap();
    }
}
