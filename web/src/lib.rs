//! The HTTP API and the pages of `penstock serve`.

mod answer;
mod api;
mod app;
mod audit;
mod body;
mod client;
mod client_stream;
mod codes;
mod extract;
mod guard;
mod issued;
mod linger;
mod metrics;
mod openapi;
mod pages;
mod places;
mod problem;
mod process;
mod router;
mod server;
mod session;
mod settings;
mod tls;
mod token;
mod tokens;
mod wrong;

pub use pages::{ReportPageError, report_page};
pub use problem::{DocumentFault, Problem};
pub use server::Server;
pub use settings::{ServeError, ServeLimits, ServeSettings};
pub use tls::{TlsError, TlsFiles};
pub use token::{Token, TokenError};
pub use tokens::{NamedToken, Role, TokenFile};

#[cfg(test)]
mod tests {
    use std::{env, fs};

    /// Path of the OpenAPI document, which `make api` writes and the build of the pages makes TypeScript types of.
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

    #[test]
    fn the_openapi_document_is_up_to_date() {
        let mut text = serde_json::to_string_pretty(&crate::api::routes().1).unwrap();
        text.push('\n');
        if env::var_os("PENSTOCK_WRITE_OPENAPI").is_some() {
            fs::write(FILE, &text).unwrap();
        }
        assert!(fs::read_to_string(FILE).unwrap_or_default() == text, "the API has changed: run `make api`");
    }
}
