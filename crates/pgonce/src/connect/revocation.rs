//! Lists of revoked certificates: `sslcrl` and `sslcrldir`.
//!
//! As with OpenSSL, once there is a list, every certificate of a chain must be covered by one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::{CertificateError, Error, RootCertStore};

use super::error::ConnectError;
use super::settings::ConnectionSettings;

type Lists = Vec<CertificateRevocationListDer<'static>>;

fn failed(path: &Path, reason: impl std::fmt::Display) -> ConnectError {
    ConnectError::RevocationList { path: path.to_owned(), reason: reason.to_string() }
}

/// What checks chains against the lists, if there are any.
pub(super) fn checker(
    settings: &ConnectionSettings,
    roots: &RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<WebPkiServerVerifier>>, ConnectError> {
    let mut lists = Lists::new();
    let mut first = None;
    if let Some(path) = settings.revocation_lists.file.as_ref().and_then(|choice| choice.present()) {
        lists.extend(read(path)?);
        first = Some(path);
    }
    if let Some(directory) = &settings.revocation_lists.directory {
        for entry in fs::read_dir(directory).map_err(|error| failed(directory, error))? {
            let path = entry.map_err(|error| failed(directory, error))?.path();
            if path.is_file() {
                lists.extend(read(&path)?);
            }
        }
        if lists.is_empty() {
            return Err(failed(directory, "no file in it holds a PEM revocation list"));
        }
        first = first.or(Some(directory));
    }
    let Some(first) = first else { return Ok(None) };
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots.clone()), Arc::clone(provider));
    builder.with_crls(lists).build().map(Some).map_err(|error| failed(first, error))
}

fn read(path: &Path) -> Result<Lists, ConnectError> {
    let lists = CertificateRevocationListDer::pem_file_iter(path).and_then(Iterator::collect);
    let lists: Lists = lists.map_err(|error| failed(path, error))?;
    if lists.is_empty() {
        return Err(failed(path, "it holds no PEM revocation list"));
    }
    Ok(lists)
}

/// Checks the chain and that nothing in it was revoked. The name is another question, which the verifier asks last.
pub(super) fn verify(
    checker: &WebPkiServerVerifier,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    server_name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), Error> {
    match checker.verify_server_cert(end_entity, intermediates, server_name, &[], now) {
        Ok(_)
        | Err(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Ok(()),
        Err(error) => Err(error),
    }
}
