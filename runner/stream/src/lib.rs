//! The consumer `stream`: every collated batch goes to a training loop in another process of the same machine.
//!
//! Arrays are in shared memory from the moment at which `collate` writes them: regions that only this process can write to. A
//! dedicated thread, called the door, serves the run's Unix socket. Only processes of the same user can connect, and they must
//! present the run's secret, which the server sends to clients that present the server's token. One consumer at a time receives
//! batches, in order, and acknowledges them. Batches that a consumer has not acknowledged when its connection ends, for any
//! reason, go first to the next consumer, marked as `redelivered`; acknowledged batches are never sent again.
//!
//! [`protocol`] defines the messages on the socket, [`client`] is the client side.

pub mod client;
mod consumer;
mod door;
mod frame;
mod mapping;
mod outbox;
mod parcel;
mod place;
pub mod protocol;
mod region;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_engine::memory::Pool;
use penstock_types::run::RunId;
use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::consumer::StreamConsumer;

use self::door::Door;
use self::place::SocketPath;
use self::protocol::{PROTOCOL, Secret, Welcome};
use self::region::SharedMemory;

/// Number of random bytes in a secret.
const SECRET_BYTES: usize = 32;
/// Maximum length, in bytes, of the pipeline's name as sent to consumers.
const SHOWN_NAME: usize = 256;

/// Address at which a run's batches are available, with the secret that gives access to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamAddress {
    /// Path of the Unix socket on the machine of the server.
    pub socket: String,
    /// Secret of this run, which a client sends in its first message.
    #[schemars(with = "String")]
    pub secret: Secret,
    /// Version of the protocol on the socket.
    pub protocol: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenStreamError {
    #[error("cannot get random numbers for a secret")]
    Secret(#[source] io::Error),
    #[error("cannot create the folder `{}` for the run's socket", .folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("cannot listen on the socket `{}`", .socket.display())]
    Socket { socket: PathBuf, source: io::Error },
    #[error("cannot start the thread that sends batches")]
    Door(#[source] io::Error),
}

/// Opens the stream of a run: its socket accepts connections. Returns the consumer to which the run passes its batches, and the
/// address for clients, including the secret. The socket is created in `folder`, or elsewhere if its path would be too long. At
/// most `ahead` batches are unacknowledged at a time; the run fails if a batch waits longer than `wait` while no consumer is connected.
pub fn open(
    folder: &Path,
    run: &RunId,
    name: &str,
    ahead: usize,
    wait: Duration,
) -> Result<(StreamConsumer, StreamAddress), OpenStreamError> {
    let secret = Secret(random_hex::<SECRET_BYTES>()?);
    let (place, listener) = SocketPath::listen(folder, run)?;
    let welcome = Welcome { protocol: PROTOCOL, run: run.clone(), name: printable(name, SHOWN_NAME), ahead };
    let socket = place.shown.clone();
    let address = StreamAddress { socket, secret: secret.clone(), protocol: PROTOCOL };
    let door = Door::new(place, listener, secret, welcome).map_err(OpenStreamError::Door)?;
    let consumer = StreamConsumer::new(door, run, Pool::new(SharedMemory::default()), wait)?;
    Ok((consumer, address))
}

fn random_hex<const BYTES: usize>() -> Result<String, OpenStreamError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| OpenStreamError::Secret(io::Error::other(error.to_string())))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_and_unique_and_never_shown() {
        let secret = random_hex::<SECRET_BYTES>().unwrap();
        assert_eq!(secret.len(), 64);
        assert_ne!(secret, random_hex::<SECRET_BYTES>().unwrap());
        let known = Secret(secret.clone());
        let is_known = |offered: &str| known.is(&Secret(offered.to_owned()));
        assert!(is_known(&secret) && !is_known("") && !is_known(&secret[1..]));
        let address = StreamAddress { socket: "/s".to_owned(), secret: known.clone(), protocol: 1 };
        assert!(!format!("{known:?} {address:?}").contains(&secret));
    }
}
