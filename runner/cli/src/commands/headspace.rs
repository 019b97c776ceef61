use anyhow::Result;
use penstock_pipeline::headspace::{Headspace, HeadspaceError, Leg, headspace as measure};
use penstock_pipeline::{Outlets, Run};

use crate::args::HeadspaceArgs;
use crate::input::{Document, bad, runtime};
use crate::interrupt::Interrupts;
use crate::report::table;
use crate::text::{duration, percent, rate, say_as, warn};
use crate::{COMPLETED, STOPPED};

/// Measures what there is to gain by loading faster.
pub(crate) fn headspace(args: &HeadspaceArgs) -> Result<u8> {
    let runtime = runtime()?;
    let document = Document::read(&args.pipeline.document)?;
    let named = (&args.pipeline.stores, &args.pipeline.modules);
    let prepared = document.prepare(named, runtime.handle(), Outlets::ALL)?;
    let interrupts = Interrupts::listen(&runtime)?;
    let mut on_start = |leg: Leg, run: &Run| {
        if !args.quiet {
            let seconds = args.time.as_secs_f64();
            let what = match leg {
                Leg::Real => "1 of 3: the pipeline as it is",
                Leg::Loader => "2 of 3: the loader alone, into nothing",
                Leg::Consumer => "3 of 3: the consumer alone, with batches that are there",
            };
            warn(&format!("{what}, {seconds} s"));
        }
        interrupts.stop(run);
    };
    let measured = measure(&prepared, runtime.handle(), args.time, &mut on_start);
    runtime.shutdown_background();
    let headspace = match measured {
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
    let row =
        |what: &str, put: String, get: String, readiness: String| vec![what.to_owned(), put, get, readiness];
    let scenario = table(
        &["queue before the consumer", "put", "get", "readiness"],
        [
            row(
                "here",
                duration(sink.ave_put_time_s),
                duration(sink.ave_get_time_s),
                percent(sink.readiness),
            ),
            row("when loading is fast enough", "long".into(), "short".into(), "high".into()),
            row("when it is not", "short".into(), "long".into(), "low".into()),
        ]
        .into_iter(),
    );
    format!("{}\n\n{rates}\n\n{scenario}", headspace.sentence)
}
