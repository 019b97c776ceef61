use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_engine::ports::Sums;
use penstock_types::policy::StageKindName;
use penstock_types::run::{RunState, RunSummary};
use penstock_types::series::Level;
use penstock_types::stats::{BookRow, Histogram, QueueRow, QueueSums, TaskRow, TaskSums, Tick};
use rusqlite::{Connection, Transaction};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::buffer::Unwritten;
use super::chunk::unpack;
use super::layout::LayoutStage;
use super::read::columns;
use super::runs::{Entry, Registered, insert, sweep, write};
use super::{
    CHECK_TIME, History, HistoryError, Layout, READERS, RowBuffer, RunRows, damage, runs, schema, transact,
};
use crate::feed::Feed;
use crate::live::LiveRun;
use crate::wire::{RunSpec, ValidQueue};

const STAGES: usize = 9;
const QUARTER: u64 = 250_000_000;
const HOUR: u64 = 3600 * 1_000_000_000;

fn layout() -> Layout {
    let stages = (1..=STAGES).map(|number| LayoutStage {
        id: format!("{number}:work"),
        name: "work".to_owned(),
        kind: StageKindName::Wasm,
        label: format!("[{number}:work]"),
        concurrency: 4,
    });
    let queue =
        |number| ValidQueue { id: format!("{number}_queue"), label: format!("[{number}]"), capacity: 2 };
    Layout { stages: stages.collect(), queues: (0..=STAGES).map(queue).collect(), shape: None }
}

fn registered() -> (Registered, RunSpec) {
    let run = Registered {
        summary: RunSummary {
            id: "run".into(),
            name: "long".to_owned(),
            submitted_at: super::now(),
            threads: 4,
            memory_mib: 1,
            ..RunSummary::default()
        },
        layout: layout(),
        for_s: None,
        cloned_from: None,
        resumes: None,
    };
    (run, RunSpec { document: json!({}), modules: BTreeMap::new() })
}

/// Creates the sums of one interval of 250 ms, the one with the number `quarter`, with pseudo-random figures.
fn pulse(quarter: u64) -> Sums {
    let mut noise = quarter;
    let mut some = |most: u64| {
        // Linear congruential generator with Knuth's constants for MMIX; only its high bits are random enough.
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (noise >> 33) % most
    };
    let mut task = || {
        let (tasks, op_time) = (some(40), some(QUARTER));
        let mut op_times = Histogram::default();
        (0..tasks.min(4)).for_each(|_| op_times.record(some(QUARTER)));
        let row = TaskRow {
            elapsed: QUARTER,
            tasks,
            op_time,
            op_count: op_times.count(),
            idle: op_time,
            thread_wait: some(QUARTER),
            busy: some(QUARTER),
            blocked: some(QUARTER),
            ..TaskRow::default()
        };
        TaskSums { row, op_times }
    };
    let stages = (0..STAGES).map(|_| task()).collect();
    let mut queue = || {
        let row = QueueRow {
            elapsed: QUARTER,
            puts: some(40),
            gets: some(40),
            put_wait: some(QUARTER),
            get_wait: some(QUARTER),
            empty: some(QUARTER),
        };
        QueueSums { row, ..QueueSums::default() }
    };
    let queues = (0..=STAGES).map(|_| queue()).collect();
    let tick = |quarters: u64| Tick::from_nanos(quarters * QUARTER);
    Sums {
        t0: tick(quarter),
        t1: tick(quarter + 1),
        stages,
        queues,
        state: RunState::Running,
        expected: None,
        delivered: quarter,
        failed_samples: 0,
        occupancy: vec![1; STAGES + 1],
        books: vec![BookRow { taken: quarter % 7, ..BookRow::default() }; STAGES + 3],
    }
}

/// Creates a history with one run of `hours` hours.
fn recorded(hours: u64) -> (tempfile::TempDir, Connection) {
    let folder = tempfile::tempdir().unwrap();
    let mut connection = Connection::open(folder.path().join("history")).unwrap();
    super::configure(&connection).unwrap();
    schema::migrate(&mut connection).unwrap();
    let (run, spec) = registered();
    transact(&mut connection, |transaction| insert(transaction, &run, &spec, None, None)).unwrap().unwrap();
    let buffer = RowBuffer::new(&layout());
    let quarters = hours * HOUR / QUARTER;
    for quarter in 0..quarters {
        buffer.add(&pulse(quarter));
        let is_last = quarter + 1 == quarters;
        if is_last {
            buffer.finish();
        }
        // Rows are written whenever a chunk of the finest level is full; a real run writes the same rows more often.
        if is_last || quarter % 256 == 255 {
            let unwritten = buffer.unwritten();
            let entry = Entry::default();
            transact(&mut connection, |transaction| write(transaction, "run", &entry, &unwritten)).unwrap();
            buffer.on_written(&unwritten);
        }
    }
    assert_eq!(buffer.lost(), 0);
    (folder, connection)
}

#[test]
fn a_series_of_four_hours_and_ten_queues_is_read_within_a_second() {
    let (_folder, connection) = recorded(4);
    let rows = RunRows::of(&connection, "run", None);
    let read_series = || {
        let start = cpu_time();
        let wanted = penstock_types::series::Buckets::over(0, 4 * HOUR, 600);
        let thinned = rows.thinned(rows.buckets(wanted, 4 * HOUR).unwrap()).unwrap();
        let shown = serde_json::to_vec(&columns(&layout(), &thinned, &[], &[])).unwrap();
        assert!((500..=600).contains(&thinned.ends_s().len()), "{}", thinned.ends_s().len());
        assert!(shown.len() > 1_000_000, "{}", shown.len());
        cpu_time() - start
    };
    // CPU time is measured instead of elapsed time, because other processes may use the same core.
    let took = [read_series(), read_series(), read_series()];
    assert!(took.iter().any(|took| *took < Duration::from_secs(1)), "{took:?}");
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

#[test]
fn the_finest_rows_are_removed_after_a_week_and_coarser_rows_have_the_same_sums() {
    let (_folder, mut connection) = recorded(1);
    let sums = |connection: &Connection, width: u64| {
        let rows = RunRows::of(connection, "run", None);
        // The range extends far beyond the end of the run.
        let wanted = penstock_types::series::Buckets::every(0, 1000 * HOUR, width);
        let buckets = rows.buckets(wanted, HOUR).unwrap();
        assert!(buckets.count as u64 <= HOUR.div_ceil(buckets.width));
        let windows = rows.windows(&layout(), &[], buckets).unwrap();
        let tasks: u64 = windows.iter().map(|window| window.stages[0].task.num_tasks).sum();
        (windows.len(), tasks)
    };
    let times = |connection: &Connection| RunRows::of(connection, "run", None).times(0).unwrap().count();
    let tasks = times(&connection);
    let before = sums(&connection, QUARTER);
    assert_eq!(before.0, 4 * 3600);
    assert_eq!(transact(&mut connection, sweep).unwrap(), 0);
    connection.execute("UPDATE chunks SET written_at = written_at - 8 * 24 * 3600", []).unwrap();
    assert!(transact(&mut connection, sweep).unwrap() > 0);
    let after = sums(&connection, QUARTER);
    assert_eq!(after, (900, before.1));
    assert_eq!(times(&connection), tasks);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_read_keeps_its_place_until_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let history = History::open(folder.path(), &tokio::runtime::Handle::current()).unwrap();
    let (gate, opened) = tokio::sync::watch::channel(false);
    for _ in 0..READERS {
        let (opened, (begun, has_begun)) = (opened.clone(), tokio::sync::oneshot::channel());
        let read = history.read(move |_| {
            begun.send(()).unwrap();
            while !*opened.borrow() {
                std::thread::yield_now();
            }
            Ok::<_, HistoryError>(())
        });
        tokio::select! {
            biased;
            _ = read => panic!("the read has not ended"),
            begun = has_begun => begun.unwrap(),
        }
    }
    assert_eq!(history.0.places.available_permits(), 0);
    gate.send_replace(true);
    history.read(|_| Ok::<_, HistoryError>(())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_panics_is_rolled_back_and_others_continue() {
    let folder = tempfile::tempdir().unwrap();
    let history = History::open(folder.path(), &tokio::runtime::Handle::current()).unwrap();
    let failed = history
        .write(|transaction| -> Result<(), HistoryError> {
            transaction.execute("CREATE TABLE half (done TEXT)", [])?;
            panic!("a defect")
        })
        .await;
    assert!(matches!(failed, Err(HistoryError::Defect)), "{failed:?}");
    let count = "SELECT count(*) FROM sqlite_schema WHERE name = 'half'";
    let half: i64 = history
        .write(move |transaction| Ok(transaction.query_row(count, [], |row| row.get(0))?))
        .await
        .unwrap();
    assert_eq!(half, 0);
    history.close(Box::new(|_| ()), Duration::from_secs(60));
    let late = history.write(|_| Ok(())).await;
    assert!(matches!(late, Err(HistoryError::Closed)), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_hangs_does_not_delay_the_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let history = History::open(folder.path(), &tokio::runtime::Handle::current()).unwrap();
    let (gate, hangs) = std::sync::mpsc::sync_channel::<()>(0);
    history.hand_over(Box::new(move |_| assert!(hangs.recv().is_err()))).unwrap();
    let (send, last) = std::sync::mpsc::sync_channel(1);
    history.close(Box::new(move |_| send.send(()).unwrap()), Duration::from_millis(20));
    assert!(last.try_recv().is_err());
    drop(gate);
    assert_eq!(last.recv_timeout(Duration::from_secs(60)), Ok(()));
}

#[test]
fn a_buffer_that_is_not_written_keeps_a_limited_number_of_chunks_and_counts_the_lost() {
    let buffer = RowBuffer::new(&layout());
    // Adds 18 chunks of 256 rows of 250 ms each; the buffer keeps 16 of them.
    (0..18 * 256).for_each(|quarter| {
        buffer.add(&pulse(quarter));
    });
    assert_eq!(buffer.lost(), 2);
    let held = buffer.held(Level::Finest);
    assert_eq!((held.rows.len(), held.rows[0].number), (16 * 256, 2 * 256));
}

#[test]
fn rows_added_during_a_write_or_after_a_failed_one_are_written_by_the_next() {
    let buffer = RowBuffer::new(&layout());
    let finest = |unwritten: &Unwritten| {
        let chunks = unwritten.chunks.iter().filter(|chunk| chunk.level == Level::Finest);
        chunks.map(|chunk| unpack(&chunk.data).unwrap().len()).sum::<usize>()
    };
    let add = |quarters: std::ops::Range<u64>| quarters.for_each(|quarter| drop(buffer.add(&pulse(quarter))));
    add(0..10);
    let failed = buffer.unwritten();
    assert_eq!(finest(&failed), 10);
    add(10..14);
    let under_way = buffer.unwritten();
    assert_eq!(finest(&under_way), 14);
    add(14..15);
    buffer.on_written(&under_way);
    // The next write includes the whole chunk again.
    assert_eq!(finest(&buffer.unwritten()), 15);
    buffer.on_written(&buffer.unwritten());
    assert_eq!(finest(&buffer.unwritten()), 0);
}

#[test]
fn buffered_and_stored_rows_are_counted_once() {
    let (_folder, mut connection) = recorded(0);
    let buffer = RowBuffer::new(&layout());
    let mut tasks = 0;
    for quarter in 0..700 {
        let pulse = pulse(quarter);
        tasks += pulse.stages[0].row.tasks;
        buffer.add(&pulse);
        // After a write in the middle of a chunk, the first rows of the chunk are stored, and the buffer still holds all of its
        // rows.
        if quarter == 600 {
            let unwritten = buffer.unwritten();
            transact(&mut connection, |transaction| write(transaction, "run", &Entry::default(), &unwritten))
                .unwrap();
            buffer.on_written(&unwritten);
        }
    }
    let rows = RunRows::of(&connection, "run", Some(&buffer));
    assert_eq!(rows.end().unwrap(), 700 * QUARTER);
    for width in [QUARTER, 4 * QUARTER, 16 * QUARTER, 256 * QUARTER] {
        let buckets = penstock_types::series::Buckets::every(0, 700 * QUARTER, width);
        let windows = rows.windows(&layout(), &[], buckets).unwrap();
        let counted: u64 = windows.iter().map(|window| window.stages[0].task.num_tasks).sum();
        assert_eq!((windows.len() as u64, counted), ((700 * QUARTER).div_ceil(width), tasks));
    }
}

#[test]
fn the_state_of_a_run_is_replaced_and_removed_with_the_run() {
    let (_folder, mut connection) = recorded(0);
    let mut write = |state: Option<Option<String>>| {
        let entry = Entry { state, ..Entry::default() };
        transact(&mut connection, |transaction| write(transaction, "run", &entry, &Unwritten::default()))
            .unwrap();
        runs::interrupt_all(&connection).unwrap();
        (runs::state(&connection, "run").unwrap(), runs::find(&connection, "run").unwrap().unwrap().resumable)
    };
    let state = |text: &str| Some(Some(text.to_owned()));
    assert_eq!(write(None), (None, false));
    assert_eq!(write(state("first")), (state("first"), true));
    assert_eq!(write(state("second")), (state("second"), true));
    assert_eq!(write(None), (state("second"), true));
    assert_eq!(write(Some(None)), (Some(None), false));
    transact(&mut connection, |transaction| runs::remove(transaction, "run")).unwrap();
    assert_eq!(runs::state(&connection, "run").unwrap(), None);
}

#[test]
fn overwritten_pages_are_reported_and_a_check_ends_in_time() {
    let (folder, connection) = recorded(1);
    assert_eq!(damage(&connection, CHECK_TIME), None);
    connection.pragma_update(None, "journal_mode", "delete").unwrap();
    drop(connection);
    let path = folder.path().join("history");
    let mut bytes = std::fs::read(&path).unwrap();
    let pages = bytes.len() / 4096;
    assert!(pages > 8, "{pages} pages");
    bytes[(pages / 2) * 4096..(pages / 2 + 1) * 4096].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let connection = Connection::open(&path).unwrap();
    assert!(damage(&connection, CHECK_TIME).is_some());
    // A check with a time limit of zero ends and finds no damage.
    let (_folder, whole) = recorded(1);
    assert_eq!(damage(&whole, Duration::ZERO), None);
}

/// The writer, for which all runs wait, only writes.
#[test]
fn what_is_written_of_a_run_is_made_before_its_turn_comes() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), tokio::runtime::Runtime::new().unwrap());
    let history = History::open(folder.path(), runtime.handle()).unwrap();
    let (run, spec) = registered();
    let live = Arc::new(LiveRun::new(run, Feed::new(), history.clone(), Arc::default()));
    let own = live.clone();
    let insert = move |work: &Transaction<'_>| insert(work, &own.registered, &spec, None, None);
    history.write_blocking(insert).unwrap().unwrap();
    let (go_on, waits) = std::sync::mpsc::sync_channel::<()>(0);
    history.hand_over(Box::new(move |_| waits.recv().unwrap())).unwrap();
    live.write_soon();
    (0..8).for_each(|quarter| drop(live.rows.add(&pulse(quarter))));
    go_on.send(()).unwrap();
    let stored = || {
        let query = |work: &Transaction<'_>| {
            let query = "SELECT state, (SELECT count(*) FROM chunks) FROM runs";
            Ok(work.query_row(query, [], |row| <(String, i64)>::try_from(row))?)
        };
        history.write_blocking(query).unwrap()
    };
    assert_eq!(stored(), ("queued".to_owned(), 0));
    let (go_on, waits) = std::sync::mpsc::sync_channel::<()>(0);
    history.hand_over(Box::new(move |_| waits.recv().unwrap())).unwrap();
    live.write_soon();
    // What was made before the end is not written after it.
    live.on_ended(None, RunState::Stopped, None, None);
    go_on.send(()).unwrap();
    assert_eq!(stored(), ("queued".to_owned(), 0));
    assert!(live.write_all());
    assert_eq!(stored().0, "stopped");
    assert!(stored().1 > 0);
}
