//! What is checked of the server's certificate, by `sslmode`.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};

use super::client_certificate::ClientIdentity;
use super::error::ConnectError;
use super::settings::{ConnectionSettings, RootCertificates, SslMode, SslNegotiation, TlsVersion};
use super::{certificate, revocation};

/// The name by which PostgreSQL's protocol is agreed upon within TLS.
pub(super) const PROTOCOL: &[u8] = b"postgresql";

/// The TLS configuration for a connection with these settings, and what the client shows of itself in it.
///
/// The handshake's signature is checked in every mode, that is, that the server holds the key of the certificate it
/// shows.
pub(super) fn client_config(
    settings: &ConnectionSettings,
) -> Result<(Arc<ClientConfig>, Arc<ClientIdentity>), ConnectError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier {
        trust: trust(settings, &provider)?,
        check_name: settings.ssl_mode == SslMode::VerifyFull,
        algorithms: provider.signature_verification_algorithms,
    };
    let identity = Arc::new(ClientIdentity::read(settings, &provider)?);
    let versions: Vec<&SupportedProtocolVersion> = [(TlsVersion::V1_2, &TLS12), (TlsVersion::V1_3, &TLS13)]
        .into_iter()
        .filter(|(version, _)| (settings.ssl_min_version..=settings.ssl_max_version).contains(version))
        .map(|(_, version)| version)
        .collect();
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .expect("ring's cipher suites serve TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::<ClientIdentity>::clone(&identity));
    config.enable_sni = settings.ssl_sni;
    if settings.ssl_negotiation == SslNegotiation::Direct {
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
    }
    Ok((Arc::new(config), identity))
}

/// The certificates to trust; `None` if the chain is not checked.
fn trust(settings: &ConnectionSettings, provider: &Arc<CryptoProvider>) -> Result<Option<Trust>, ConnectError> {
    let Some(mut trust) = roots(settings)? else { return Ok(None) };
    trust.revoked = revocation::checker(settings, &trust.roots, provider)?;
    Ok(Some(trust))
}

fn roots(settings: &ConnectionSettings) -> Result<Option<Trust>, ConnectError> {
    let verify = settings.ssl_mode >= SslMode::VerifyCa;
    match &settings.root_certificates {
        // Prefer and allow promise nothing: they fall back to no TLS at all.
        _ if settings.ssl_mode < SslMode::Require => Ok(None),
        Some(RootCertificates::System) => Trust::system().map(Some),
        Some(RootCertificates::File(path)) if verify || path.exists() => Trust::read(path).map(Some),
        Some(RootCertificates::Default(path)) if path.exists() => Trust::read(path).map(Some),
        Some(RootCertificates::File(path) | RootCertificates::Default(path)) if verify => {
            Err(ConnectError::RootCertificates { path: Some(path.clone()), reason: "there is no such file".to_owned() })
        }
        None if verify => Err(ConnectError::RootCertificates {
            path: None,
            reason: "none are named; write sslrootcert=FILE, or sslrootcert=system".to_owned(),
        }),
        _ => Ok(None),
    }
}

#[derive(Debug)]
struct Trust {
    roots: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
    /// Checks a chain against lists of revoked certificates, if there are any.
    revoked: Option<Arc<WebPkiServerVerifier>>,
}

impl Trust {
    fn read(path: &std::path::Path) -> Result<Trust, ConnectError> {
        let failed = |reason: String| ConnectError::RootCertificates { path: Some(path.to_owned()), reason };
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|error| failed(error.to_string()))?;
        if certificates.is_empty() {
            return Err(failed("the file holds no PEM certificate".to_owned()));
        }
        let mut roots = RootCertStore::empty();
        // One that cannot be a root (version 1) may still be the server's own certificate, or stand beside one that
        // can.
        roots.add_parsable_certificates(certificates.iter().cloned());
        Ok(Trust { roots, certificates, revoked: None })
    }

    fn system() -> Result<Trust, ConnectError> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let reason = found.errors.first().map_or_else(|| "the system trusts none".to_owned(), ToString::to_string);
            return Err(ConnectError::RootCertificates { path: None, reason });
        }
        Ok(Trust { roots, certificates: Vec::new(), revoked: None })
    }
}

/// Checks what `sslmode` asks for.
#[derive(Debug)]
struct Verifier {
    trust: Option<Trust>,
    check_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(trust) = &self.trust else { return Ok(ServerCertVerified::assertion()) };
        // A server's certificate that was itself named as trusted needs no chain. It is often self-signed, hence marked
        // as an authority, which the chain's rules forbid for a server.
        if trust.certificates.iter().any(|trusted| trusted == end_entity) {
            if !certificate::is_current(end_entity, now) {
                return Err(CertificateError::Expired.into());
            }
        } else if let Some(checker) = &trust.revoked {
            revocation::verify(checker, end_entity, intermediates, server_name, now)?;
        } else {
            let parsed = ParsedCertificate::try_from(end_entity).map_err(|error| unusable(end_entity, error))?;
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&parsed, &trust.roots, intermediates, now, algorithms)?;
        }
        if self.check_name {
            verify_name(end_entity, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
            .map_err(|error| unusable(certificate, error))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if ParsedCertificate::try_from(certificate).is_ok() {
            return verify_tls13_signature(message, certificate, signature, &self.algorithms);
        }
        // A certificate of version 1, as openssl makes them where it is given no extensions: its key will do.
        let key = certificate::public_key(certificate).ok_or(CertificateError::BadEncoding)?;
        verify_tls13_signature_with_raw_key(message, &SubjectPublicKeyInfoDer::from(key), signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The same error, in plainer words if the certificate is of version 1, which has no rules that a chain could be
/// checked by.
fn unusable(end_entity: &CertificateDer<'_>, error: Error) -> Error {
    if certificate::is_version_1(end_entity) {
        return Error::General(
            "the server's certificate is of version 1; issue one of version 3, with extensions".into(),
        );
    }
    error
}

/// Whether the certificate names the host: by an alternative name, or, if it has none, by its common name, as libpq has
/// it.
fn verify_name(end_entity: &CertificateDer<'_>, server_name: &ServerName<'_>) -> Result<(), Error> {
    let refused = match ParsedCertificate::try_from(end_entity) {
        Ok(parsed) => match verify_server_name(&parsed, server_name) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        },
        Err(refused) => refused,
    };
    let named = certificate::common_name(end_entity);
    let named = named.is_some_and(|name| common_name_matches(&name, &server_name.to_str()));
    if named { Ok(()) } else { Err(refused) }
}

/// Whether a common name is that of the host. A `*.` stands for one label.
fn common_name_matches(name: &str, host: &str) -> bool {
    if name.eq_ignore_ascii_case(host) {
        return true;
    }
    match (name.strip_prefix("*."), host.split_once('.')) {
        (Some(parent), Some((label, domain))) => {
            !label.is_empty() && parent.contains('.') && parent.eq_ignore_ascii_case(domain)
        }
        _ => false,
    }
}

/// Why a handshake failed: TLS's own reason, or the socket's.
pub(super) fn handshake_error(error: io::Error) -> Result<Error, io::Error> {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(reason) => Ok(reason.clone()),
        None => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_name_is_compared_as_libpq_does() {
        assert!(common_name_matches("DB.example.org", "db.example.org"));
        assert!(common_name_matches("*.example.org", "db.example.org"));
        assert!(!common_name_matches("*.example.org", "a.db.example.org"));
        assert!(!common_name_matches("*.example.org", "example.org"));
        assert!(!common_name_matches("*.org", "example.org"));
        assert!(!common_name_matches("*", "localhost"));
    }
}
