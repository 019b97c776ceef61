//! Certificate and key of a server that speaks TLS itself.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Files of a certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, followed by its intermediate certificates.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
}

/// Reason why a server cannot use TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read a {what} as PEM from `{}`", .path.display())]
    File { what: &'static str, path: PathBuf, source: pem::Error },
    #[error("the certificate and its key cannot be used")]
    Unusable(#[from] rustls::Error),
}

/// Configuration of TLS 1.2 and 1.3 with the current content of the files.
pub(crate) fn config(TlsFiles { certificate, key }: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let failed = |what, path: &PathBuf, source| TlsError::File { what, path: path.clone(), source };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain =
        chain.and_then(|chain| if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) });
    let chain = chain.map_err(|source| failed("certificate", certificate, source))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|source| failed("key", key, source))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(Arc::new(config.with_single_cert(chain, key)?))
}
