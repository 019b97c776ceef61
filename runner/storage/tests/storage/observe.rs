//! Tests of the reported phases of a read.
#![expect(clippy::disallowed_methods, reason = "reported times are compared with measured ones")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_s3_server::{Fault, Latency, Server, Settings, Trouble};
use penstock_storage::{
    BoundedStore, DEFAULT_READS, MemoryStore, ReadParts, Retries, S3Settings, Store, StoreError, observe,
    s3_store,
};

use crate::folder_with;
use crate::s3::settings;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A server that holds the object `x` and responds after 20 ms.
fn slow_server(bytes: impl Into<Bytes>) -> Server {
    let latency = Latency { usual: ms(20), ..Latency::default() };
    let server = Server::start(Settings { latency, ..Settings::default() }).unwrap();
    server.put("x", bytes);
    server
}

fn store(server: &Server, attempts: u32) -> Arc<dyn Store> {
    let attempts = NonZeroU32::new(attempts).unwrap();
    let retries = Retries { attempts, base: ms(1), cap: ms(5) };
    s3_store("data", S3Settings { retries, ..settings(server.endpoint()) }).unwrap()
}

fn sum(parts: ReadParts) -> Duration {
    parts.retry + parts.connect + parts.first_byte + parts.body + parts.verify
}

/// Reads `x`, and checks that the phases together are not longer than the read.
async fn observed(store: &dyn Store) -> (Result<Bytes, StoreError>, ReadParts) {
    let start = Instant::now();
    let (read, parts) = observe(store.get(Arc::from("x"))).await;
    let all = start.elapsed();
    assert!(sum(parts) <= all, "{parts:?} are longer than {all:?}");
    (read, parts)
}

#[tokio::test]
async fn waiting_for_a_server_is_distinguished_from_connecting_and_reading() {
    let server = slow_server("short");
    let store = store(&server, 5);
    let (read, parts) = observed(&*store).await;
    assert_eq!(read.unwrap(), "short");
    assert_eq!((parts.attempts, parts.retries, parts.new_connections), (1, 0, 1), "{parts:?}");
    assert!(parts.first_byte >= ms(20) && parts.connect > Duration::ZERO, "{parts:?}");
    assert!(parts.retry.is_zero() && parts.verify.is_zero(), "{parts:?}");
}

#[tokio::test]
async fn an_idle_connection_is_reused() {
    let server = slow_server("short");
    let store = store(&server, 5);
    observed(&*store).await.0.unwrap();
    // Waits until the client's background task has returned the connection to its pool.
    tokio::time::sleep(ms(50)).await;
    let (_, parts) = observed(&*store).await;
    assert_eq!((parts.new_connections, parts.connect), (0, Duration::ZERO), "{parts:?}");
    assert!(parts.first_byte >= ms(20), "{parts:?}");
    let ports: Vec<u16> = server.seen().iter().map(|seen| seen.port).collect();
    assert_eq!(ports[0], ports[1]);
}

#[tokio::test]
async fn failed_attempts_are_counted_and_their_time_is_separate() {
    let server = slow_server("short");
    server.inject(Fault::on("x", Trouble::Status(503, "SlowDown")).times(1));
    let (read, parts) = observed(&*store(&server, 5)).await;
    assert_eq!((read.unwrap(), parts.attempts, parts.retries), (Bytes::from_static(b"short"), 2, 1));
    assert!(parts.retry > Duration::ZERO && parts.first_byte >= ms(20), "{parts:?}");

    server.inject(Fault::on("x", Trouble::Status(503, "SlowDown")));
    let (read, parts) = observed(&*store(&server, 3)).await;
    assert!(read.is_err());
    assert_eq!((parts.attempts, parts.retries), (3, 2));
    assert!(parts.retry > Duration::ZERO && parts.body.is_zero(), "{parts:?}");
}

#[tokio::test]
async fn a_slow_body_is_reported_as_body_time() {
    let server = slow_server(vec![7; 5_000]);
    server.inject(Fault::on("x", Trouble::Trickle(250, ms(50))));
    let (read, parts) = observed(&*store(&server, 5)).await;
    assert_eq!(read.unwrap().len(), 5_000);
    // Sending the body takes a second. Half a second is accepted, because the client may start to measure late.
    assert!(parts.body >= ms(500), "{parts:?}");
}

#[tokio::test]
async fn every_part_of_a_large_object_is_a_request_and_the_first_byte_counts_once() {
    let server = slow_server("");
    let store = store(&server, 5);
    // Objects written by this store have a CRC-32, which is verified.
    store.put(Arc::from("x"), Bytes::from(vec![7; 20 << 20])).await.unwrap();
    let (read, parts) = observed(&*store).await;
    assert_eq!(read.unwrap().len(), 20 << 20);
    // The first request is for the whole object, of which 8 MiB are read; further requests are for parts of 8 MiB and 4 MiB.
    assert_eq!((parts.attempts, parts.retries), (3, 0), "{parts:?}");
    assert!(parts.first_byte >= ms(20) && parts.body >= ms(20), "{parts:?}");
    assert!(parts.verify > Duration::ZERO, "{parts:?}");
}

#[tokio::test]
async fn the_phases_of_a_file_are_opening_and_reading() {
    let (_folder, store) = folder_with(&[("x", &[7; 1 << 20])]);
    let start = Instant::now();
    let ((read, time), parts) = observe(store.get(Arc::from("x"))).await;
    assert_eq!(read.unwrap().len(), 1 << 20);
    assert!(sum(parts) <= time.end - time.start && time.start >= start, "{parts:?} of {time:?}");
    assert!(parts.first_byte > Duration::ZERO && parts.body > Duration::ZERO, "{parts:?}");
    let counted =
        ReadParts { attempts: 1, first_byte: parts.first_byte, body: parts.body, ..ReadParts::default() };
    assert_eq!(parts, counted);
    let (missing, parts) = observe(store.get(Arc::from("y"))).await;
    assert!(missing.0.is_err());
    assert_eq!(parts, ReadParts { attempts: 1, ..ReadParts::default() });
}

#[tokio::test]
async fn the_latency_of_a_memory_store_is_reported_as_first_byte() {
    let memory = MemoryStore::synthetic("memory", &[(1, 1_000)]).with_latency(ms(2)).unwrap();
    let store = BoundedStore::new(Arc::new(memory), DEFAULT_READS);
    let ((read, time), parts) = observe(store.get(Arc::from("000000.bin"))).await;
    assert_eq!(read.unwrap().len(), 1_000);
    assert!(parts.first_byte >= ms(2) && sum(parts) <= time.end - time.start, "{parts:?} of {time:?}");
    assert_eq!(parts, ReadParts { attempts: 1, first_byte: parts.first_byte, ..ReadParts::default() });
}

#[tokio::test]
async fn concurrent_reads_are_observed_separately() {
    let (server, (_folder, folder)) = (slow_server("short"), folder_with(&[("x", b"x")]));
    let store = store(&server, 5);
    let (slow, quick) = futures::join!(observed(&*store), observe(folder.get(Arc::from("x"))));
    assert_eq!((slow.1.attempts, quick.1.attempts), (1, 1));
    assert!(slow.1.first_byte >= ms(20) && quick.1.new_connections == 0);
}
