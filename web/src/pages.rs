//! The web pages, embedded in the binary as built by npm.

use axum::body::Body;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use penstock_bench::BenchReport;
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::access::hexadecimal;
use crate::problem::{ApiError, ProblemKind};

const INDEX: &str = "index.html";
const API_PAGE: &str = "api/docs";
/// Folder of files whose names contain a digest of their content.
const ASSETS: &str = "assets/";
/// Extension of the Brotli form of a file, which the build of the pages writes beside the file.
const BROTLI: &str = ".br";
/// Folders of pages whose last path segment is a name, which may contain a dot.
const NAMED: [&str; 3] = ["modules/", "runs/", "bench/"];

#[derive(RustEmbed)]
#[folder = "ui/dist"]
struct Files;

/// Responds to every path that has no other route: with the file of this name, or else with `index.html`, which renders all
/// pages.
pub(crate) async fn page(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    // The page with the documentation of the API is an exception: its path is beneath that of the API.
    if path == "api" || path.starts_with("api/") && path != API_PAGE {
        return ApiError::not_found("the API has no such path; `/api/openapi.json` lists all paths")
            .into_response();
    }
    if method != Method::GET && method != Method::HEAD {
        return ApiError::new(ProblemKind::METHOD_NOT_ALLOWED, "pages support only `GET` and `HEAD`")
            .into_response();
    }
    if let Some(file) = Files::get(path) {
        return answer(path, file, &headers);
    }
    // Paths with a file extension name files, so they are not pages.
    let may_be_page = !path.starts_with(ASSETS) && !path.rsplit('/').next().unwrap_or_default().contains('.');
    let is_named = NAMED.iter().any(|folder| path.starts_with(folder));
    match Files::get(INDEX).filter(|_| may_be_page || is_named) {
        Some(index) => answer(INDEX, index, &headers),
        None => ApiError::not_found("no page has this path").into_response(),
    }
}

fn answer(path: &str, file: EmbeddedFile, headers: &HeaderMap) -> Response {
    let tag = format!("\"{}\"", hexadecimal(&file.metadata.sha256_hash()[..16]));
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let kept = if path.starts_with(ASSETS) { "public, max-age=31536000, immutable" } else { "no-cache" };
    let common = [(header::CACHE_CONTROL, kept.to_owned()), (header::ETAG, tag)];
    if is_known {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    let kind = [(header::CONTENT_TYPE, file.metadata.mimetype().to_owned())];
    let packed = if accepts_brotli(headers) { Files::get(&format!("{path}{BROTLI}")) } else { None };
    match packed {
        // The compression layer skips answers with an encoding.
        Some(packed) => {
            let coding = [(header::CONTENT_ENCODING, "br"), (header::VARY, "accept-encoding")];
            (common, kind, coding, Body::from(packed.data)).into_response()
        }
        None => (common, kind, Body::from(file.data)).into_response(),
    }
}

fn accepts_brotli(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| coding.trim() == "br")
}

/// HTML file of a report page as built by npm: one file with everything except the report.
const REPORT_PAGE: &str = "report.html";
/// Placeholder for the report in the HTML file.
const REPORT_PLACE: &str = "\"the report goes here\"";

/// Reason why the page of a report cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ReportPageError {
    #[error(
        "this binary was built without its pages; `make ui` builds them, and the next cargo build includes them"
    )]
    NoPages,
    #[error("the report cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// Creates a page that shows the report without a server: one HTML file with scripts, styles and the report.
pub fn report_page(report: &BenchReport) -> Result<String, ReportPageError> {
    let page = Files::get(REPORT_PAGE).and_then(|page| String::from_utf8(page.data.into_owned()).ok());
    let page = page.ok_or(ReportPageError::NoPages)?;
    // A `</script>` in a key would end the script element that holds the report.
    let report = serde_json::to_string(report)?.replace('<', "\\u003c");
    match page.split_once(REPORT_PLACE) {
        Some((before, behind)) => Ok([before, &report, behind].concat()),
        None => Err(ReportPageError::NoPages),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    async fn get(path: &str) -> Response {
        page(Method::GET, path.parse().unwrap(), HeaderMap::new()).await
    }

    #[tokio::test]
    async fn page_paths_get_the_index_and_missing_files_are_not_found() {
        for path in
            ["/", "/runs/new", "/runs/a.b", "/modules/decode.v2/1", "/bench", "/bench/a.b", "/api/docs"]
        {
            let answer = get(path).await;
            assert_eq!(
                (answer.status(), &answer.headers()[header::CACHE_CONTROL]),
                (StatusCode::OK, &HeaderValue::from_static("no-cache")),
                "{path}"
            );
        }
        for path in ["/assets/none", "/none.js", "/api", "/api/v1/none", "/../Cargo.toml"] {
            assert_eq!(get(path).await.status(), StatusCode::NOT_FOUND, "{path}");
        }
        let written = page(Method::POST, "/".parse().unwrap(), HeaderMap::new()).await;
        assert_eq!(written.status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn brotli_is_sent_only_to_clients_that_accept_it() {
        let accepts = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            accepts_brotli(&headers)
        };
        assert_eq!(["gzip, deflate, br, zstd", "br"].map(accepts), [true, true]);
        assert_eq!(["gzip, deflate", "br;q=0", "*"].map(accepts), [false, false, false]);
        assert!(!accepts_brotli(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn a_page_in_the_browsers_cache_is_not_sent_again() {
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, get("/").await.headers()[header::ETAG].clone());
        let again = page(Method::GET, "/".parse().unwrap(), headers).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(again.headers().contains_key(header::ETAG));
    }
}
