//! The client certificate, which a server may ask for: `sslcert`, `sslkey`, `sslcertmode`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, SignatureScheme};

use super::error::ConnectError;
use super::passfile::shell_word;
use super::settings::{CertificateMode, ConnectionSettings};

/// What the client shows of itself in one handshake, and whether it was asked to.
#[derive(Debug, Default)]
pub(super) struct ClientIdentity {
    key: Option<Arc<CertifiedKey>>,
    asked: AtomicBool,
    sent: AtomicBool,
}

impl ClientIdentity {
    /// Reads certificate and key, if there are any and they may be shown.
    pub(super) fn read(
        settings: &ConnectionSettings,
        provider: &CryptoProvider,
    ) -> Result<ClientIdentity, ConnectError> {
        if settings.certificate_mode == CertificateMode::Disable {
            return Ok(ClientIdentity::default());
        }
        let Some(path) = settings.certificate.as_ref().and_then(|choice| choice.present()) else {
            return Ok(ClientIdentity::default());
        };
        let chain = certificates(path)?;
        let Some(key_path) = settings.certificate_key.as_ref().map(|choice| choice.path()) else {
            return Err(failed(path, "there is a certificate, and no private key; name it in sslkey"));
        };
        let key = private_key(key_path)?;
        let key = provider.key_provider.load_private_key(key).map_err(|error| failed(key_path, error))?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                Err(failed(key_path, format_args!("it is not the key of the certificate {}", path.display())))
            }
            _ => Ok(ClientIdentity { key: Some(Arc::new(key)), ..ClientIdentity::default() }),
        }
    }

    /// Whether the server asked, and whether it was shown a certificate.
    pub(super) fn exchange(&self) -> CertificateExchange {
        CertificateExchange { asked: self.asked.load(Ordering::Relaxed), sent: self.sent.load(Ordering::Relaxed) }
    }
}

/// What came of the client certificate in a handshake.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CertificateExchange {
    asked: bool,
    sent: bool,
}

impl CertificateExchange {
    /// Why `sslcertmode=require` is not met, if it is not.
    pub(super) fn unmet(self) -> Option<&'static str> {
        match self {
            CertificateExchange { asked: false, .. } => {
                Some("sslcertmode=require, and the server did not ask for a client certificate")
            }
            CertificateExchange { sent: false, .. } => {
                Some("sslcertmode=require, and there is no client certificate to show; name it in sslcert and sslkey")
            }
            _ => None,
        }
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Ordering::Relaxed);
        let key = self.key.as_ref()?;
        self.sent.store(key.key.choose_scheme(schemes).is_some(), Ordering::Relaxed);
        Some(Arc::clone(key))
    }

    fn has_certs(&self) -> bool {
        self.key.is_some()
    }
}

fn failed(path: &Path, reason: impl std::fmt::Display) -> ConnectError {
    ConnectError::ClientCertificate { path: path.to_owned(), reason: reason.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let chain: Vec<CertificateDer<'static>> = chain.map_err(|error| failed(path, error))?;
    if chain.is_empty() {
        return Err(failed(path, "it holds no PEM certificate"));
    }
    Ok(chain)
}

/// Reads a private key, if nobody else can.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ConnectError> {
    if path.to_str().is_some_and(|text| text.contains(':') && !path.exists()) {
        return Err(failed(path, "a key in an engine or on a token is not supported; name a PEM file"));
    }
    let about = fs::metadata(path).map_err(|error| failed(path, error))?;
    if !about.is_file() {
        return Err(failed(path, "it is not a plain file"));
    }
    let mode = about.permissions().mode() & 0o777;
    let (others, allowed) = if about.uid() == 0 { (0o037, "0640") } else { (0o077, "0600") };
    if mode & others != 0 {
        let word = shell_word(path);
        let reason =
            format!("it has mode {mode:04o}, so that others may read or change it; type: chmod {allowed} {word}");
        return Err(failed(path, reason));
    }
    let bytes = fs::read(path).map_err(|error| failed(path, error))?;
    if let Some(advice) = encrypted(&bytes, path) {
        return Err(failed(path, advice));
    }
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => Ok(key),
        // Like libpq, which takes DER too.
        Err(_) => PrivateKeyDer::try_from(bytes).map_err(|_| failed(path, "it holds no private key, in PEM or DER")),
    }
}

/// What to do with a key that is encrypted.
fn encrypted(bytes: &[u8], path: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    (text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED")).then(|| {
        let word = shell_word(path);
        format!(
            "it is encrypted, which is not supported; decrypt it once, for instance with \
             `(umask 077; openssl pkey -in {word} -out NEW_KEY)`, and name that in sslkey"
        )
    })
}
