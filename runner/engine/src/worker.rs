use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::dispatch::{Dispatcher, PanicGuard};
use crate::ports::{Fault, Output, StopFlag, ThreadOp, ThreadOpFactory};
use crate::schedule::{OpCall, OpTime};
use crate::worker::cpu::CpuShare;

mod cpu;

/// The ops of one worker thread, by stage: built here on first use, dropped here, seen by no other thread.
struct OwnOps<'a> {
    /// `None` for stages that need no worker thread.
    factories: &'a [Option<Arc<dyn ThreadOpFactory>>],
    ops: Vec<Option<Box<dyn ThreadOp>>>,
}

/// Runs ops on this thread until the run ends. Never waits for a queue: a finished result goes back into the schedule,
/// where it holds the task's slot until its put is accepted.
pub(crate) fn run_worker(
    dispatcher: &Arc<Dispatcher>,
    factories: &[Option<Arc<dyn ThreadOpFactory>>],
    worker: usize,
) {
    let _guard = PanicGuard(dispatcher.clone());
    let mut own = OwnOps { factories, ops: factories.iter().map(|_| None).collect() };
    let stop = dispatcher.stop_flag();
    let mut done = None;
    let mut now = dispatcher.now();
    let mut cpu = CpuShare::starting();
    while let Some(job) = dispatcher.next_job(worker, done.take(), now) {
        let stage = job.task.stage;
        if matches!(job.work, OpCall::Prepare) {
            let built = own.build(stage, stop).map(|_| ());
            dispatcher.event(|schedule, now| schedule.prepared(stage, built, now));
            now = dispatcher.now();
            continue;
        }
        // An instance that is still to be made is no part of the op.
        let built = own.build(stage, stop);
        let begin = dispatcher.now();
        let outcome = own.run(stage, job.work, built, stop);
        now = dispatcher.now();
        let wall = now - begin;
        done = Some((job.task, outcome, OpTime { wall, cpu: cpu.of(wall) }));
    }
}

impl OwnOps<'_> {
    /// Builds the op of `stage` unless there is one. Returns how many were made.
    fn build(&mut self, stage: usize, stop: &StopFlag) -> Result<u64, Fault> {
        if self.ops[stage].is_some() {
            return Ok(0);
        }
        let factory = self.factories[stage].as_ref().expect("a stage with jobs has a factory");
        let built = catch_unwind(AssertUnwindSafe(|| factory.build(stop)));
        self.ops[stage] = Some(built.unwrap_or_else(|panic| Err(Fault::of_panic(&*panic)))?);
        Ok(1)
    }

    /// Calls the op of `stage`, of which `built` were made just now, if it could be made.
    fn run(
        &mut self,
        stage: usize,
        work: OpCall,
        built: Result<u64, Fault>,
        stop: &StopFlag,
    ) -> Result<Output, Fault> {
        let (made, work) = match (built, work) {
            (Ok(made), work) => (made, work),
            // Its samples fail, because there is no op to call on them.
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
                // Nobody knows in which state it is.
                self.ops[stage] = None;
                Err(Fault::of_panic(&*panic))
            }
        }
    }
}
