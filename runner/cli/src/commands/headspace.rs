use anyhow::Result;
use penstock_pipeline::headspace::{Headspace, HeadspaceError, Leg, headspace as measure};
use penstock_pipeline::{Outlets, Run};
use tokio::runtime::Runtime;

use crate::args::HeadspaceArgs;
use crate::input::{Document, bad};
use crate::interrupt::Interrupts;
use crate::report::table;
use crate::text::{duration, percent, rate, say_as, warn};
use crate::{COMPLETED, STOPPED};

pub(crate) fn headspace(runtime: &Runtime, args: &HeadspaceArgs) -> Result<u8> {
    let (_, prepared) = Document::prepared(&args.pipeline, runtime, Outlets::ALL)?;
    let interrupts = Interrupts::listen(runtime)?;
    let mut on_start = |leg: Leg, run: &Run| {
        if !args.quiet {
            let seconds = args.time.as_secs_f64();
            let what = match leg {
                Leg::Real => "1 of 3: the pipeline as it is",
                Leg::Loader => "2 of 3: the loader alone, its batches discarded",
                Leg::Consumer => "3 of 3: the consumer alone, with prepared batches",
            };
            warn(&format!("{what}, {seconds} s"));
        }
        interrupts.stop(run);
    };
    let headspace = match measure(&prepared, runtime.handle(), args.time, &mut on_start) {
        Err(HeadspaceError::Stopped) => return Ok(STOPPED),
        Err(error @ (HeadspaceError::Files | HeadspaceError::Stream)) => return Err(bad(error.to_string())),
        measured => measured?,
    };
    say_as(args.json, &headspace, in_words)?;
    Ok(COMPLETED)
}

fn in_words(headspace: &Headspace) -> String {
    let rows = [
        ("as it is", Some(headspace.real_rate)),
        ("the loader alone", Some(headspace.loader_rate)),
        ("the consumer alone", headspace.consumer_rate),
    ];
    let rates =
        table(&["", "items/s"], rows.into_iter().map(|(what, found)| vec![what.to_owned(), rate(found)]));
    let sink = &headspace.sink;
    let [put, get] = [sink.ave_put_time_s, sink.ave_get_time_s].map(duration);
    let readiness = percent(sink.readiness);
    let rows = [
        ["here", &*put, &*get, &*readiness],
        ["when loading is fast enough", "long", "short", "high"],
        ["when it is not", "short", "long", "low"],
    ];
    let scenario = table(
        &["queue before the consumer", "put", "get", "readiness"],
        rows.into_iter().map(|row| row.map(str::to_owned).to_vec()),
    );
    format!("{}\n\n{rates}\n\n{scenario}", headspace.sentence)
}
