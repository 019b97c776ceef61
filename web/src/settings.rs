use std::net::SocketAddr;
use std::path::PathBuf;

use crate::access::{OperatorToken, TokenError};
use crate::connections::{TlsError, TlsFiles};

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
        };
        assert!(settings("127.0.0.1:80", None).check().is_ok());
        assert!(settings("[::1]:80", None).check().is_ok());
        for open in ["0.0.0.0:80", "[::]:80", "192.168.1.2:80"] {
            assert!(settings(open, None).check().is_err(), "{open}");
            assert!(settings(open, Some(OperatorToken::new("0123456789abcdef").unwrap())).check().is_ok());
        }
    }
}
