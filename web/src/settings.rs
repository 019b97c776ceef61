use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::access::{OperatorToken, TokenError};
use crate::connections::{TlsError, TlsFiles};

/// Settings of a server: address, token and limits.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    /// Address to listen on; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Secret that clients send; `None` trusts every client that can reach the server.
    pub token: Option<OperatorToken>,
    /// File of further tokens (see [`TokenFile`](crate::TokenFile)), which is read again when it has changed.
    pub tokens_file: Option<PathBuf>,
    /// Certificate and key; plain HTTP if `None`.
    pub tls: Option<TlsFiles>,
    /// Further host names that requests may name, e.g. behind a proxy. `localhost` and IP addresses are always accepted.
    pub hosts: Vec<String>,
    pub limits: ServeLimits,
}

/// Limits of connections, requests and answers.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Maximum number of connections; while all of them are busy, further connections are answered with 503.
    pub connections: usize,
    /// Number of connections in addition to `connections`, for `/health` and sign-in only.
    pub kept_free: usize,
    /// Maximum number of event streams; each stream also counts as a connection.
    pub event_streams: usize,
    /// Maximum size of a document, in bytes.
    pub document_bytes: usize,
    /// Maximum size of the request of a trial, in bytes; its samples are encoded as base64.
    pub trial_bytes: usize,
    /// Maximum memory of all documents and trials in requests together, as text or parsed, in bytes; small documents do not
    /// count.
    pub held_bytes: usize,
    /// Maximum memory of live events, and of all large responses together until clients have read them, in bytes.
    pub answer_bytes: usize,
    /// Maximum time for the head of a request to arrive, and maximum idle time of a connection.
    pub head_time: Duration,
    /// Maximum pause of a client while it sends or reads a body.
    pub stall_time: Duration,
    /// Minimum rate at which a client must read a response, in bytes per second; live events are exempt.
    pub answer_bytes_per_s: u64,
    /// Maximum time for a document to arrive.
    pub body_time: Duration,
    /// Maximum time for which open requests continue after the shutdown has begun.
    pub drain_time: Duration,
}

/// Reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(
        "`{0}` can be reached from other machines, so a token is required: omit `--no-token`, or listen on 127.0.0.1"
    )]
    OpenToStrangers(SocketAddr),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot listen on `{address}`")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections: 512,
            kept_free: 16,
            // One client gets 258 of them, by the default share of 75 %.
            event_streams: 344,
            document_bytes: 1 << 20,
            trial_bytes: 96 << 20,
            held_bytes: 256 << 20,
            answer_bytes: 256 << 20,
            head_time: Duration::from_secs(10),
            stall_time: Duration::from_secs(20),
            answer_bytes_per_s: 16 << 10,
            body_time: Duration::from_secs(30),
            drain_time: Duration::from_secs(2),
        }
    }
}

impl ServeSettings {
    /// Fails if other machines could connect without a token.
    pub fn check(&self) -> Result<(), ServeError> {
        if self.token.is_none() && !self.listen.ip().is_loopback() {
            return Err(ServeError::OpenToStrangers(self.listen));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_allowed_without_a_token() {
        let settings = |listen: &str, token| ServeSettings {
            listen: listen.parse().unwrap(),
            token,
            tokens_file: None,
            tls: None,
            hosts: Vec::new(),
            limits: ServeLimits::default(),
        };
        assert!(settings("127.0.0.1:80", None).check().is_ok());
        assert!(settings("[::1]:80", None).check().is_ok());
        for open in ["0.0.0.0:80", "[::]:80", "192.168.1.2:80"] {
            assert!(settings(open, None).check().is_err(), "{open}");
            assert!(settings(open, Some(OperatorToken::new("0123456789abcdef").unwrap())).check().is_ok());
        }
    }
}
