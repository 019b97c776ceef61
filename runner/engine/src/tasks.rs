use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use penstock_types::run::FailureClass;
use penstock_types::text::with_causes;

use crate::item::Item;
use crate::ports::{Fault, Source, SourceFault, TaskOp};
use crate::schedule::{OpTime, Task};
use crate::shared::Shared;

/// Runs one op that waits, and hands its answer in.
pub(crate) async fn run_task(shared: Arc<Shared>, op: Arc<dyn TaskOp>, task: Task, item: Item) {
    let _guard = shared.guard();
    let begin = shared.now();
    let answer = AssertUnwindSafe(async move { op.start(item).await }).catch_unwind().await;
    let time = OpTime { wall: shared.now() - begin, cpu: 0 };
    let outcome = answer.map_err(|panic| panicked(&*panic));
    shared.event(|schedule, now| schedule.complete(task, outcome, time, now));
}

/// Lets the source produce until the data ends, one chunk ahead of what is wanted.
pub(crate) async fn run_source(shared: Arc<Shared>, mut source: Box<dyn Source>) {
    let _guard = shared.guard();
    loop {
        let produced = match AssertUnwindSafe(source.next()).catch_unwind().await {
            Ok(produced) => produced.map_err(|fault| said(&fault)),
            Err(panic) => Err(panicked(&*panic).message.to_string()),
        };
        if !shared.offer(produced, source.total()).await {
            return;
        }
    }
}

/// The fault of an op that panicked.
pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Fault {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    Fault::new(FailureClass::Bug, format!("panicked: {message}"))
}

fn said(fault: &SourceFault) -> String {
    format!("the source cannot go on: {}", with_causes(fault))
}
