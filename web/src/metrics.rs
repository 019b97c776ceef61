//! The endpoint `/metrics`, in the format of Prometheus.

use std::sync::atomic::AtomicU64;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use penstock_server::Counts;
use penstock_types::run::RunSnapshot;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::app::App;
use crate::problem::{ApiError, ApiResult};
use crate::process::process_use;

type Labels = Vec<(&'static str, String)>;
type Values = Family<Labels, Gauge<f64, AtomicU64>>;
type Sums = Family<Labels, Counter>;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Responds with the current figures of the server and of active runs. Runs that have ended are not included.
pub(crate) async fn metrics(State(app): State<App>) -> ApiResult<impl IntoResponse> {
    let counts = app.runs.counts().await?;
    let text = text(&app, &counts).map_err(|error| {
        tracing::error!(%error, "failed to encode the metrics");
        ApiError::defect()
    })?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text))
}

fn text(app: &App, counts: &Counts) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("penstock");
    let runs = Values::default();
    for (state, count) in &counts.runs {
        runs.get_or_create(&vec![("state", state.name().to_owned())]).set(*count as f64);
    }
    registry.register("runs", "Runs in the history, by state", runs);
    let samples = Counter::<u64>::default();
    samples.inc_by(counts.samples);
    registry.register("samples", "Samples that consumers received since the server started", samples);
    let failures = Sums::default();
    for (class, count) in &counts.failures {
        failures.get_or_create(&vec![("class", class.name().to_owned())]).inc_by(*count);
    }
    let help = "Samples that failed since the server started, by class of failure";
    registry.register("failed_samples", help, failures);
    budget(&mut registry, app);
    live(&mut registry, &counts.live);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn budget(registry: &mut Registry, app: &App) {
    let used = app.runs.use_now();
    let mut gauge = |name: &str, help: &str, value: f64| {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    gauge("budget_threads", "Worker threads that all runs may use", f64::from(used.threads));
    gauge("budget_threads_used", "Worker threads of active runs", f64::from(used.threads_used));
    gauge("budget_memory_mebibytes", "Memory that all runs may use", used.memory_mib as f64);
    gauge("budget_memory_used_mebibytes", "Memory of active runs", used.memory_mib_used as f64);
    if let Some(process) = process_use() {
        gauge("process_resident_memory_bytes", "Memory of the server", process.rss_bytes as f64);
        gauge("process_open_files", "Files and connections of the server", process.open_files as f64);
        let cpu = Counter::<f64, AtomicU64>::default();
        cpu.inc_by(process.cpu_s);
        registry.register_with_unit("process_cpu", "CPU time of the server", Unit::Seconds, cpu);
    }
}

fn live(registry: &mut Registry, runs: &[RunSnapshot]) {
    let (tasks, failed, items) = (Sums::default(), Sums::default(), Sums::default());
    let (times, readiness) = (Values::default(), Values::default());
    let (gets, puts) = (Values::default(), Values::default());
    let (hits, misses, hit_bytes) = (Sums::default(), Sums::default(), Sums::default());
    for snapshot in runs {
        let labels = |what: &'static str, id: &str| {
            vec![("run", snapshot.id.to_string()), ("pipeline", snapshot.name.clone()), (what, id.to_owned())]
        };
        for stage in &snapshot.stages {
            let labels = labels("stage", &stage.id);
            tasks.get_or_create(&labels).inc_by(stage.task.num_tasks);
            failed.get_or_create(&labels).inc_by(stage.task.failed_samples);
            measured(&times, &labels, stage.task.ave_time_s);
        }
        for queue in &snapshot.queues {
            let labels = labels("queue", &queue.id);
            items.get_or_create(&labels).inc_by(queue.figures.num_items);
            measured(&readiness, &labels, queue.figures.readiness);
            measured(&gets, &labels, queue.figures.ave_get_time_s);
            measured(&puts, &labels, queue.figures.ave_put_time_s);
        }
        for (store, figures) in &snapshot.caches {
            let labels = labels("store", store);
            hits.get_or_create(&labels).inc_by(figures.hits);
            misses.get_or_create(&labels).inc_by(figures.misses);
            hit_bytes.get_or_create(&labels).inc_by(figures.hit_bytes);
        }
    }
    let help = "Look-ups that the data cache of a store answered in an active run, since the run's start";
    registry.register("cache_hits", help, hits);
    let help = "Look-ups that the store answered in an active run, since the run's start";
    registry.register("cache_misses", help, misses);
    let help = "Bytes that the data cache of a store provided in an active run, since the run's start";
    registry.register("cache_hit_bytes", help, hit_bytes);
    registry.register("stage_tasks", "Tasks of a stage of an active run, since the run's start", tasks);
    let help = "Samples that failed in a stage of an active run, since the run's start";
    registry.register("stage_failed_samples", help, failed);
    registry.register_with_unit("stage_task_time", "Mean time of the tasks of a stage", Unit::Seconds, times);
    let help = "Items taken from a queue of an active run, since the run's start";
    registry.register("queue_items", help, items);
    let help = "Share of time with at least one item in the queue, since the run's start";
    registry.register("queue_readiness", help, readiness);
    registry.register_with_unit("queue_get_time", "Mean time that a get waited", Unit::Seconds, gets);
    registry.register_with_unit("queue_put_time", "Mean time that a put waited", Unit::Seconds, puts);
}

/// Adds a value, unless it was not measured.
fn measured(values: &Values, labels: &Labels, value: Option<f64>) {
    if let Some(value) = value {
        values.get_or_create(labels).set(value);
    }
}
