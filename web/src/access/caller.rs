//! Senders of requests: their roles, and the client for which a request counts in quotas and in fair scheduling.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::ConnectInfo;
use axum::http::Extensions;
use penstock_server::{ANYONE, ClientId, OPERATOR};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connections::network;
use crate::problem::{ApiError, ApiResult, ProblemKind, refuse};

/// Role of a token. Each role includes the permissions of the roles before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Allows reading runs, modules and stores.
    Read,
    /// Allows uploading and trying modules, submitting, stopping and replaying runs, and receiving their batches.
    Run,
    /// Allows deleting, moving aliases (which changes the modules that documents of other clients run), and reading the audit
    /// log.
    Admin,
}

/// Sender of a request: the holder of a token, or an unnamed client of a server without tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    /// Stores that documents of the caller may name; all if `None`.
    pub(crate) stores: Option<Arc<BTreeSet<String>>>,
}

impl Caller {
    /// Caller for every client of a server without tokens.
    pub(crate) fn anyone() -> Self {
        Self { name: ANYONE.into(), role: Role::Admin, stores: None }
    }

    /// Returns the sender of a request, which the guard has determined. `None` if the path requires no token and no token was
    /// sent.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Fails unless the caller has at least this role.
    pub(crate) fn needs(&self, role: Role) -> ApiResult<()> {
        if self.role >= role {
            return Ok(());
        }
        let (own, role) = (self.role.name(), role.name());
        let detail =
            format!("the token `{}` has the role `{own}`, but this operation requires `{role}`", self.name);
        refuse(ProblemKind::ROLE_TOO_LOW, detail)
    }
}

pub(crate) fn sign_in_needed() -> ApiError {
    let detail = "send the server's token as `Authorization: Bearer …`, or sign in with a browser";
    ApiError::new(ProblemKind::SIGN_IN_NEEDED, detail)
}

impl Role {
    /// All roles, from the fewest permissions to the most.
    pub const ALL: [Self; 3] = [Self::Read, Self::Run, Self::Admin];

    /// Name of the role, as JSON and the command line write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Admin => "admin",
        }
    }
}

/// Client of a request: the holder of a named token, else the network of the sender. All users of a proxy without named tokens
/// are one client.
pub(crate) fn client(extensions: &Extensions) -> ClientId {
    let is_named = |caller: &&Caller| ![OPERATOR, ANYONE].contains(&&*caller.name);
    if let Some(named) = Caller::of(extensions).filter(is_named) {
        return ClientId::new(format!("token {}", named.name));
    }
    let Some(ConnectInfo(address)) = extensions.get::<ConnectInfo<IpAddr>>() else {
        return ClientId::default();
    };
    ClientId::new(match network(*address) {
        IpAddr::V6(network) if !network.is_loopback() => format!("{network}/64"),
        address => address.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_token_an_ipv4_address_or_an_ipv6_network_is_one_client() {
        let client = |address: &str, caller: Option<Caller>| {
            let mut extensions = Extensions::new();
            extensions.insert(ConnectInfo(address.parse::<IpAddr>().unwrap()));
            caller.map(|caller| extensions.insert(caller));
            client(&extensions).to_string()
        };
        let anyone = || Some(Caller::anyone());
        assert_eq!(client("10.0.0.1", None), "10.0.0.1");
        assert_eq!(client("::ffff:10.0.0.1", anyone()), "10.0.0.1");
        assert_eq!(client("2001:db8::1", anyone()), "2001:db8::/64");
        assert_eq!(client("2001:db8::ffff:0:0:2", None), "2001:db8::/64");
        assert_eq!(client("2001:db8:0:1::1", None), "2001:db8:0:1::/64");
        assert_eq!(
            (client("127.0.0.2", None), client("::1", None)),
            ("127.0.0.2".to_owned(), "::1".to_owned())
        );
        let named = Caller { name: "ci".into(), ..Caller::anyone() };
        assert_eq!(client("10.0.0.1", Some(named)), "token ci");
    }
}
