//! Checks of every request: host name, origin and token.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::caller::{Caller, sign_in_needed};
use super::issued::Issued;
use super::operator_token::TokenError;
use super::session::Sessions;
use super::tokens::{TokenDigest, Tokens, digest};
use super::wrong::WrongTokens;
use crate::problem::{ApiResult, ProblemKind, refuse};
use crate::settings::ServeSettings;

/// Content security policy of the pages: no other origin, no inline script.
const CONTENT_POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; \
    form-action 'self'; frame-ancestors 'none'";

/// Paths beneath `/api/` that require no token.
const OPEN: [&str; 2] = ["/api/v1/session", "/api/docs"];

pub(crate) const CODE_LIFETIME: Duration = Duration::from_secs(600);
const MAX_CODES: usize = 16;

#[derive(Debug)]
pub(crate) struct RequestGuard {
    hosts: Vec<String>,
    speaks_tls: bool,
    /// Tokens of this server; `None` if it requires none.
    pub(crate) tokens: Option<Tokens>,
    /// Each code opens one session. A link contains a code rather than a token, because links remain in terminal logs and in the
    /// history of a browser.
    codes: Issued<Instant>,
    pub(crate) sessions: Sessions,
    wrong: WrongTokens,
}

impl RequestGuard {
    pub(crate) fn new(settings: &ServeSettings) -> Self {
        let tokens = settings.token.as_ref().map(|own| Tokens::new(own, settings.tokens_file.clone()));
        Self {
            hosts: settings.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            speaks_tls: settings.tls.is_some(),
            tokens,
            codes: Issued::new(MAX_CODES),
            sessions: Sessions::default(),
            wrong: WrongTokens::default(),
        }
    }

    pub(crate) fn issue_code(&self, token: TokenDigest, now: Instant) -> Result<String, TokenError> {
        self.codes.issue(token, now, now + CODE_LIFETIME)
    }

    /// Consumes a code; returns the token for which it was created. `None` if the code is unknown, used or expired.
    pub(crate) fn take_code(&self, code: &str, now: Instant) -> Option<TokenDigest> {
        self.codes.take(&[digest(code.as_bytes())], now)
    }

    /// Returns true if the request came over TLS, to this server or to a proxy in front of it. A proxy is recognized by the
    /// scheme of the `Origin` header, whose host has already been checked.
    pub(crate) fn is_over_tls(&self, headers: &HeaderMap) -> bool {
        let origin = headers.get(header::ORIGIN).map_or(&b""[..], HeaderValue::as_bytes);
        self.speaks_tls || origin.starts_with(b"https://")
    }

    /// Counts a wrong token from this address, and waits. The wait grows with the number of wrong tokens from the network of the
    /// address.
    pub(crate) async fn pause_after_wrong(&self, from: IpAddr) {
        tokio::time::sleep(self.wrong.add(from, Instant::now())).await;
    }

    /// Holder of the token or session that a request sends. On a server without tokens, every client has all permissions.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> ApiResult<Caller> {
        let Some(tokens) = &self.tokens else { return Ok(Caller::anyone()) };
        let now = SystemTime::now();
        let token = bearer(headers).map(digest).or_else(|| self.sessions.token(headers, now));
        tokens.holder(&token.ok_or_else(sign_in_needed)?, now)
    }

    /// Checks host, origin and token. Returns the sender; `None` if the path is open and no token was sent.
    fn check(&self, request: &Request) -> ApiResult<Option<Caller>> {
        let headers = request.headers();
        let host = self.host(request)?;
        self.check_origin(request, &host)?;
        let path = request.uri().path();
        let is_guarded = path == "/metrics" || path.starts_with("/api/");
        // A token that is sent to an open path is checked, too: otherwise an attacker could try tokens there without pauses.
        if is_guarded && (!OPEN.contains(&path) || bearer(headers).is_some()) {
            return self.caller(headers).map(Some);
        }
        Ok(None)
    }

    /// Refuses unknown host names, because the name of another site may resolve to the address of this server (DNS rebinding).
    fn host(&self, request: &Request) -> ApiResult<Authority> {
        let mut named = request.headers().get_all(header::HOST).iter();
        let host = named.next().filter(|_| named.next().is_none());
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        let Some(host) = host else {
            return refuse(ProblemKind::BAD_REQUEST, "the header `Host` must name exactly one host");
        };
        let name = host.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let known = name == "localhost" || name.parse::<IpAddr>().is_ok() || self.hosts.contains(&name);
        if !known || host.as_str().contains('@') {
            return refuse(
                ProblemKind::WRONG_HOST,
                "unknown host name; use the server's IP address or `localhost`, or add the name to `hosts` in its configuration",
            );
        }
        Ok(host)
    }

    /// Refuses requests from pages of other sites. Requests of programs without an `Origin` header are accepted.
    fn check_origin(&self, request: &Request, host: &Authority) -> ApiResult<()> {
        let headers = request.headers();
        let foreign = |what: &str| {
            let detail = format!("{what}; only pages of this server may send requests");
            refuse(ProblemKind::WRONG_ORIGIN, detail)
        };
        for origin in headers.get_all(header::ORIGIN) {
            let page = origin.to_str().ok().and_then(|origin| {
                origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
            });
            if !page.is_some_and(|page| page.eq_ignore_ascii_case(host.as_str())) {
                return foreign("the `Origin` of the request is another site");
            }
        }
        let value_of = |header: &str| headers.get(header).map_or(&b""[..], HeaderValue::as_bytes);
        let is_foreign = !matches!(value_of("sec-fetch-site"), b"" | b"same-origin" | b"none");
        // Links on other sites may lead to pages of this server, but may not open an event stream.
        let is_page = request.method() == Method::GET && !request.uri().path().starts_with("/api/v1/");
        let is_link = is_page && value_of("sec-fetch-mode") == b"navigate";
        if is_foreign && !is_link {
            return foreign("the request comes from a page of another site");
        }
        Ok(())
    }
}

/// Token in the `Authorization` header of a request, if any.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, offered) =
        headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(offered)
}

/// Refuses requests that fail the guard's checks, and adds security headers to every response.
pub(crate) async fn guard_request(
    State(guard): State<Arc<RequestGuard>>,
    mut request: Request,
    next: Next,
) -> Response {
    let is_api = request.uri().path().starts_with("/api/") || request.uri().path() == "/metrics";
    let mut response = match guard.check(&request) {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(error) => {
            let response = error.into_response();
            if response.status() == StatusCode::UNAUTHORIZED
                && bearer(request.headers()).is_some()
                && let Some(ConnectInfo(address)) = request.extensions().get::<ConnectInfo<IpAddr>>().copied()
            {
                guard.pause_after_wrong(address).await;
            }
            response
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    if is_api && !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::super::operator_token::OperatorToken;
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn guard(token: bool) -> RequestGuard {
        RequestGuard::new(&ServeSettings {
            listen: "127.0.0.1:7700".parse().unwrap(),
            token: token.then(|| OperatorToken::new(TOKEN).unwrap()),
            tokens_file: None,
            tls: None,
            hosts: vec!["Penstock.example".to_owned()],
        })
    }

    fn answer(guard: &RequestGuard, method: &str, path: &str, headers: &[(&str, &str)]) -> StatusCode {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match guard.check(&request.body(Body::empty()).unwrap()) {
            Ok(_) => StatusCode::OK,
            Err(error) => error.into_response().status(),
        }
    }

    #[test]
    fn addresses_localhost_and_configured_names_are_accepted_hosts() {
        let guard = guard(false);
        let get = |host: &str| answer(&guard, "GET", "/api/v1/runs", &[("host", host)]);
        for host in [
            "127.0.0.1:7700",
            "localhost:7700",
            "LOCALHOST",
            "[::1]:7700",
            "10.1.2.3",
            "penstock.example:443",
        ] {
            assert_eq!(get(host), StatusCode::OK, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "x@localhost",
            "localhost@evil.example",
        ] {
            assert_eq!(get(host), StatusCode::MISDIRECTED_REQUEST, "{host}");
        }
        assert_eq!(answer(&guard, "GET", "/", &[]), StatusCode::BAD_REQUEST);
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(answer(&guard, "GET", "/", &two), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn pages_of_other_sites_can_neither_change_nor_read() {
        let guard = guard(false);
        let with = |method: &str, more: &[(&str, &str)]| {
            answer(&guard, method, "/api/v1/runs", &[&[("host", "localhost:7700")], more].concat())
        };
        assert_eq!(with("POST", &[("origin", "http://localhost:7700")]), StatusCode::OK);
        for origin in ["http://evil.example", "null", "http://localhost", "http://localhost:7701", "file://"]
        {
            for method in ["POST", "GET", "DELETE"] {
                assert_eq!(with(method, &[("origin", origin)]), StatusCode::FORBIDDEN, "{method} {origin}");
            }
        }
        assert_eq!(with("DELETE", &[("sec-fetch-site", "cross-site")]), StatusCode::FORBIDDEN);
        assert_eq!(with("POST", &[("sec-fetch-site", "same-site")]), StatusCode::FORBIDDEN);
        let get = |path: &str, mode: &str, site: &str| {
            let more = [("sec-fetch-mode", mode), ("sec-fetch-site", site)];
            answer(&guard, "GET", path, &[&[("host", "localhost:7700")], &more[..]].concat())
        };
        for mode in ["cors", "no-cors", "navigate", "websocket"] {
            assert_eq!(get("/api/v1/events", mode, "cross-site"), StatusCode::FORBIDDEN, "{mode}");
            assert_eq!(get("/api/v1/events", mode, "same-site"), StatusCode::FORBIDDEN, "{mode}");
            assert_eq!(get("/api/v1/events", mode, "same-origin"), StatusCode::OK, "{mode}");
            assert_eq!(get("/api/v1/events", mode, "none"), StatusCode::OK, "{mode}");
        }
        // Links on other sites may lead to pages of this server.
        assert_eq!(get("/runs", "navigate", "cross-site"), StatusCode::OK);
        assert_eq!(get("/runs", "no-cors", "cross-site"), StatusCode::FORBIDDEN);
        assert_eq!(with("POST", &[]), StatusCode::OK);
    }

    #[test]
    fn the_token_opens_the_api_in_a_header_only() {
        let guard = guard(true);
        let get = |path: &str, more: &[(&str, &str)]| {
            answer(&guard, "GET", path, &[&[("host", "localhost")], more].concat())
        };
        let bearer = format!("Bearer {TOKEN}");
        for path in ["/api/v1/runs", "/metrics", "/api/openapi.json", "/api/nothing"] {
            assert_eq!(get(path, &[]), StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(get(path, &[("authorization", &bearer)]), StatusCode::OK, "{path}");
            assert_eq!(get(path, &[("authorization", "bearer wrong-wrong-wrong")]), StatusCode::UNAUTHORIZED);
        }
        assert_eq!(get(&format!("/api/v1/runs?token={TOKEN}"), &[]), StatusCode::UNAUTHORIZED);
        for open in ["/", "/runs/new", "/health", "/api/v1/session"] {
            assert_eq!(get(open, &[]), StatusCode::OK, "{open}");
        }
    }

    #[test]
    fn a_code_works_once_and_expires() {
        const HOLDER: TokenDigest = [7; 32];
        let (codes, now) = (guard(true), Instant::now());
        let (first, second) =
            (codes.issue_code(HOLDER, now).unwrap(), codes.issue_code(HOLDER, now).unwrap());
        assert_eq!((codes.take_code("", now), codes.take_code(&first[1..], now)), (None, None));
        assert_eq!((codes.take_code(&first, now), codes.take_code(&first, now)), (Some(HOLDER), None));
        assert_eq!(codes.take_code(&second, now + CODE_LIFETIME), None);
        let late = codes.issue_code(HOLDER, now).unwrap();
        assert_eq!(codes.take_code(&late, now + CODE_LIFETIME - Duration::from_secs(1)), Some(HOLDER));
    }
}
