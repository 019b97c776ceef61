//! `s3-server`: the server as a program, for benches that must not share their process with it.
#![expect(clippy::print_stdout, reason = "it prints its address")]

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use clap::Parser;
use penstock_s3_server::{Conditions, Latency, Mode, Server, Settings};

/// Serve a folder, or an empty bucket, as S3 on 127.0.0.1. Prints its address and serves until it is killed.
#[derive(Parser)]
#[command(version)]
struct Call {
    /// Folder whose files are the objects; without it, the bucket is empty at first. Nothing is written to the folder.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Number of empty objects in the bucket at first, named 0000/0000000.bin, ..., 1000 in a folder.
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    empty_objects: u64,
    /// Name of the bucket.
    #[arg(long, default_value = "data")]
    bucket: String,
    /// Port; 0 for a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Time until each response begins, including the server's own work, e.g. 20ms.
    #[arg(long, default_value = "0s", value_parser = humantime::parse_duration)]
    latency: Duration,
    /// Time until every `--tail-every`th response begins, in place of `--latency`, e.g. 500ms.
    #[arg(long, value_parser = humantime::parse_duration)]
    tail: Option<Duration>,
    /// Number of responses of which one is slow; see `--tail`.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    tail_every: u64,
    /// Bytes per second that all responses together may have; without it, there is no limit.
    #[arg(long, value_name = "BYTES")]
    rate: Option<NonZeroU64>,
    /// Property of real buckets, e.g. region=eu-west-1; may be given several times. An unknown one is answered with the list.
    #[arg(long, value_name = "NAME[=VALUE]")]
    mode: Vec<Mode>,
    /// Maximum number of keys on a page of a listing.
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    page: usize,
    /// Access key id of the clients.
    #[arg(long, default_value = "penstock-test")]
    access_key_id: String,
    /// Secret key for the signatures.
    #[arg(long, default_value = "penstock-test-secret")]
    secret_access_key: String,
}

fn main() -> anyhow::Result<()> {
    let Call {
        root,
        empty_objects,
        bucket,
        port,
        latency,
        tail,
        tail_every,
        rate,
        mode,
        page,
        access_key_id,
        secret_access_key,
    } = Call::parse();
    let latency = Latency { usual: latency, tail, tail_every };
    let settings = Settings {
        bucket,
        root,
        port,
        access_key_id,
        secret_access_key,
        latency,
        rate,
        conditions: Conditions::Kept,
        modes: mode,
        page,
        // Requests are not recorded, since the server may run for days.
        remembers: false,
    };
    let server = Server::start(settings)
        .context("cannot start; check that the folder exists and that the port is free")?;
    for number in 0..empty_objects {
        server.put(&format!("{:04}/{number:07}.bin", number / 1000), Bytes::new());
    }
    println!("{}", server.endpoint());
    server.wait();
    Ok(())
}
