use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::dispatch::{Dispatcher, JobBatch, PanicGuard};
use crate::ports::{Fault, Output, StopFlag, ThreadOp, ThreadOpFactory};
use crate::schedule::{DoneTask, OpCall, OpTime, WorkerJob};
use crate::worker::cpu::CpuShare;

mod cpu;

/// Time after which a worker returns the rest of a batch, because an op took longer than expected.
const MOST_BATCH_TIME: Duration = Duration::from_micros(100);

/// The ops of one worker thread, by stage: built on this thread on first use, dropped there, and never shared.
struct WorkerOps<'a> {
    /// Factories by stage; `None` for stages that need no worker thread.
    factories: &'a [Option<Arc<dyn ThreadOpFactory>>],
    ops: Vec<Option<Box<dyn ThreadOp>>>,
}

/// Runs ops on this thread until the run ends. The thread never waits for a queue: a finished result returns to the schedule and
/// occupies the task's slot until it is put into the next queue.
pub(crate) fn run_worker(
    dispatcher: &Arc<Dispatcher>,
    factories: &[Option<Arc<dyn ThreadOpFactory>>],
    worker: usize,
) {
    let _guard = PanicGuard(dispatcher.clone());
    let mut thread_ops = WorkerOps { factories, ops: factories.iter().map(|_| None).collect() };
    let stop = &dispatcher.stop;
    let mut batch = JobBatch::default();
    let mut now = dispatcher.clock.now();
    let mut cpu = CpuShare::starting();
    while dispatcher.next_jobs(worker, &mut batch, now) {
        now = dispatcher.clock.now();
        let latest = now.after(MOST_BATCH_TIME);
        while let Some(WorkerJob { task, work, .. }) = batch.jobs.pop_front() {
            let built = thread_ops.build(task.stage, stop);
            if matches!(work, OpCall::Prepare) {
                dispatcher.event(|schedule, now| schedule.prepared(task.stage, built.map(|_| ()), now));
                now = dispatcher.clock.now();
                break;
            }
            // Building an instance does not count as time of the op.
            let begin = if matches!(built, Ok(0)) { now } else { dispatcher.clock.now() };
            let outcome = thread_ops.run(task.stage, work, built, stop);
            now = dispatcher.clock.now();
            let wall = now - begin;
            batch.done.push(DoneTask { task, outcome, time: OpTime { wall, cpu: cpu.of(wall) } });
            if now > latest || stop.is_set() {
                break;
            }
        }
    }
}

impl WorkerOps<'_> {
    /// Builds the op of `stage` unless it exists. Returns the number of built instances, 0 or 1.
    fn build(&mut self, stage: usize, stop: &StopFlag) -> Result<u64, Fault> {
        if self.ops[stage].is_some() {
            return Ok(0);
        }
        let factory = self.factories[stage].as_ref().expect("a stage with jobs has a factory");
        let built = catch_unwind(AssertUnwindSafe(|| factory.build(stop)));
        self.ops[stage] = Some(built.unwrap_or_else(|panic| Err(Fault::of_panic(&*panic)))?);
        Ok(1)
    }

    /// Calls the op of `stage`; `built` is the result of [`Self::build`].
    fn run(
        &mut self,
        stage: usize,
        work: OpCall,
        built: Result<u64, Fault>,
        stop: &StopFlag,
    ) -> Result<Output, Fault> {
        let (made, work) = match (built, work) {
            (Ok(made), work) => (made, work),
            // The samples fail, because there is no op to process them.
            (Err(fault), OpCall::Apply(item)) => return Ok(Output::all_failed(item.into_samples(), &fault)),
            (Err(fault), OpCall::Finish | OpCall::Prepare) => return Err(fault),
        };
        let op = self.ops[stage].as_deref_mut().expect("it was built just now");
        let answer = catch_unwind(AssertUnwindSafe(|| match work {
            OpCall::Apply(item) => op.apply(item, stop),
            OpCall::Finish => op.finish(stop),
            OpCall::Prepare => Output::default(),
        }));
        match answer {
            Ok(mut output) => {
                output.replaced = output.instances;
                output.instances += made;
                Ok(output)
            }
            Err(panic) => {
                // The panic may have left the op in an inconsistent state, so the op is dropped.
                self.ops[stage] = None;
                Err(Fault::of_panic(&*panic))
            }
        }
    }
}
