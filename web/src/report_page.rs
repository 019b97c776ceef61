//! The report of a benchmark as one file that needs no server.

use penstock_bench::BenchReport;

use crate::pages;

/// The file that npm builds for it: everything it needs is in it, but the report.
const PAGE: &str = "report.html";
/// What stands where the report goes.
const PLACE: &str = "\"the report goes here\"";

/// Why there is no such page.
#[derive(Debug, thiserror::Error)]
pub enum ReportPageError {
    /// The binary was built without its pages.
    #[error(
        "this binary was built without its pages; `make ui` builds them, and the next cargo build takes them in"
    )]
    NoPages,
    /// The report cannot be written as JSON.
    #[error("the report cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// A page that shows the report wherever it is opened: scripts, styles, and the report itself are in it, and it asks nobody
/// for anything.
pub fn report_page(report: &BenchReport) -> Result<String, ReportPageError> {
    let page = pages::text(PAGE).ok_or(ReportPageError::NoPages)?;
    // A `</script>` in somebody's key would end the script that holds it.
    let report = serde_json::to_string(report)?.replace('<', "\\u003c");
    match page.split_once(PLACE) {
        Some((before, behind)) => Ok([before, &report, behind].concat()),
        None => Err(ReportPageError::NoPages),
    }
}
