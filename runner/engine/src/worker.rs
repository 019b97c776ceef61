use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::ports::{Failed, Fault, Output, StopFlag, ThreadOp, ThreadOpFactory};
use crate::schedule::{OpTime, Work};
use crate::shared::Shared;
use crate::tasks::panicked;
use crate::worker::cpu::CpuShare;

mod cpu;

/// Builds ops, by stage; `None` for stages that need no worker thread.
pub(crate) type Factories = Vec<Option<Arc<dyn ThreadOpFactory>>>;

/// The ops of one worker thread, by stage: built here on first use, dropped here, seen by no other thread.
struct OwnOps<'a> {
    factories: &'a Factories,
    ops: Vec<Option<Box<dyn ThreadOp>>>,
}

/// Runs ops on this thread until the run ends. Never waits for a queue: a finished result goes back into the schedule,
/// where it holds the task's slot until its put is accepted.
pub(crate) fn run_worker(shared: &Arc<Shared>, factories: &Factories, worker: usize) {
    let _guard = shared.guard();
    let mut own = OwnOps { factories, ops: factories.iter().map(|_| None).collect() };
    let stop = shared.stop_flag();
    let mut done = None;
    let mut now = shared.now();
    let mut cpu = CpuShare::starting();
    while let Some(job) = shared.next_job(worker, done.take(), now) {
        let stage = job.task.stage;
        if matches!(job.work, Work::Prepare) {
            let built = own.get_or_build(stage, stop).map(|_| ());
            shared.event(|schedule, now| schedule.prepared(stage, built, now));
            now = shared.now();
            continue;
        }
        // An instance that is still to be made is no part of the op.
        let built = own.get_or_build(stage, stop).map(|(_, made)| made);
        let begin = shared.now();
        let outcome = own.run(stage, job.work, built, stop);
        now = shared.now();
        let wall = now - begin;
        done = Some((job.task, outcome, OpTime { wall, cpu: cpu.of(wall) }));
    }
}

impl OwnOps<'_> {
    /// The op of `stage`, and how many were made for it just now.
    fn get_or_build(&mut self, stage: usize, stop: &StopFlag) -> Result<(&mut dyn ThreadOp, u64), Fault> {
        let made = u64::from(self.ops[stage].is_none());
        if self.ops[stage].is_none()
            && let Some(factory) = &self.factories[stage]
        {
            let built = catch_unwind(AssertUnwindSafe(|| factory.build(stop)));
            self.ops[stage] = Some(built.unwrap_or_else(|panic| Err(panicked(&*panic)))?);
        }
        let op = self.ops[stage].as_deref_mut().expect("a stage with jobs has a factory");
        Ok((op, made))
    }

    /// Calls the op of `stage`, of which `built` were made just now, if it could be made.
    fn run(
        &mut self,
        stage: usize,
        work: Work,
        built: Result<u64, Fault>,
        stop: &StopFlag,
    ) -> Result<Output, Fault> {
        let made = match (built, &work) {
            (Ok(made), _) => made,
            (Err(fault), Work::Apply(_)) => return Ok(fail_all(work, &fault)),
            (Err(fault), _) => return Err(fault),
        };
        let op = self.ops[stage].as_deref_mut().expect("it was built just now");
        let answer = catch_unwind(AssertUnwindSafe(|| match work {
            Work::Apply(item) => op.apply(item, stop),
            Work::Finish => op.finish(stop),
            Work::Prepare => Output::default(),
        }));
        match answer {
            Ok(mut output) => {
                output.instances += made;
                Ok(output)
            }
            Err(panic) => {
                // Nobody knows in which state it is.
                self.ops[stage] = None;
                Err(panicked(&*panic))
            }
        }
    }
}

/// All samples of an item failed, because there is no op to call on them.
fn fail_all(work: Work, fault: &Fault) -> Output {
    let samples = match work {
        Work::Apply(item) => item.into_samples(),
        Work::Finish | Work::Prepare => Vec::new(),
    };
    let failed = samples.into_iter().map(|sample| Failed { sample, fault: fault.clone() }).collect();
    Output { failed, ..Output::default() }
}
