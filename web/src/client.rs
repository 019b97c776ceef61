//! The client for which a request counts in quotas and in fair scheduling.

use std::net::IpAddr;

use axum::extract::ConnectInfo;
use axum::http::Extensions;
use penstock_server::ClientId;

use crate::places::network;
use crate::tokens::Caller;

/// Client of a request: the holder of a named token, else the network of the sender. All users of a proxy without named tokens
/// are one client.
pub(crate) fn client(extensions: &Extensions) -> ClientId {
    if let Some(named) = Caller::of(extensions).filter(|caller| caller.has_own_name()) {
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
