//! The HTTP API and the pages of `penstock serve`.

mod access;
mod answer;
mod api;
mod app;
mod body;
mod connections;
mod extract;
mod limits;
mod metrics;
mod openapi;
mod pages;
mod problem;
mod process;
mod router;
mod settings;

pub use access::{NamedToken, OperatorToken, Role, TokenError, TokenFile};
pub use connections::{Server, TlsError, TlsFiles};
pub use limits::{ANSWER_BYTES, HELD_BYTES};
pub use pages::{ReportPageError, report_page};
pub use problem::{DocumentFault, Problem};
pub use settings::{ServeError, ServeSettings};

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
