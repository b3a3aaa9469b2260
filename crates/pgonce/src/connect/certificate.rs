//! What is read of the server's certificate beyond what TLS itself checks.

use ring::digest::{self, Algorithm};
use rustls::pki_types::UnixTime;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::oid::db::{rfc4519, rfc5280, rfc5912};
use x509_cert::der::{Decode, Encode};
use x509_cert::{Certificate, Version};

/// The `tls-server-end-point` channel binding: the certificate's hash, by the hash of its signature's algorithm (RFC
/// 5929, 4.1).
///
/// `None` where the algorithm has no single hash (Ed25519, RSA-PSS): such a certificate cannot be bound to.
pub(super) fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let parsed = Certificate::from_der(certificate).ok()?;
    let algorithm = signature_hash(parsed.signature_algorithm.oid)?;
    Some(digest::digest(algorithm, certificate).as_ref().to_vec())
}

const ECDSA_WITH_SHA_1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.1");

fn signature_hash(algorithm: ObjectIdentifier) -> Option<&'static Algorithm> {
    match algorithm {
        // MD5 and SHA-1 are replaced by SHA-256.
        ECDSA_WITH_SHA_1
        | rfc5912::MD_5_WITH_RSA_ENCRYPTION
        | rfc5912::SHA_1_WITH_RSA_ENCRYPTION
        | rfc5912::SHA_256_WITH_RSA_ENCRYPTION
        | rfc5912::ECDSA_WITH_SHA_256 => Some(&digest::SHA256),
        rfc5912::SHA_384_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_384 => Some(&digest::SHA384),
        rfc5912::SHA_512_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_512 => Some(&digest::SHA512),
        _ => None,
    }
}

/// The public key of a certificate, in DER (SubjectPublicKeyInfo).
pub(super) fn public_key(certificate: &[u8]) -> Option<Vec<u8>> {
    Certificate::from_der(certificate).ok()?.tbs_certificate.subject_public_key_info.to_der().ok()
}

/// Whether the certificate is of version 1: without extensions.
pub(super) fn is_version_1(certificate: &[u8]) -> bool {
    Certificate::from_der(certificate).is_ok_and(|parsed| parsed.tbs_certificate.version == Version::V1)
}

/// Whether the certificate's dates include `now`.
pub(super) fn is_current(certificate: &[u8], now: UnixTime) -> bool {
    let Ok(certificate) = Certificate::from_der(certificate) else { return false };
    let validity = certificate.tbs_certificate.validity;
    let seconds = now.as_secs();
    (validity.not_before.to_unix_duration().as_secs()..=validity.not_after.to_unix_duration().as_secs())
        .contains(&seconds)
}

/// The common name of a certificate that has no alternative names: what libpq then takes for the host's name.
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    let certificate = Certificate::from_der(certificate).ok()?.tbs_certificate;
    let extensions = certificate.extensions.unwrap_or_default();
    if extensions.iter().any(|extension| extension.extn_id == rfc5280::ID_CE_SUBJECT_ALT_NAME) {
        return None;
    }
    let mut names = certificate.subject.0.iter().flat_map(|relative| relative.0.iter());
    let name = names.rfind(|name| name.oid == rfc4519::COMMON_NAME)?;
    // Every string type that names are written in holds its text as it is, for ASCII.
    let text = std::str::from_utf8(name.value.value()).ok()?;
    text.is_ascii().then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_follows_the_signature() {
        let length = |oid| signature_hash(oid).map(Algorithm::output_len);
        assert_eq!(length(rfc5912::SHA_1_WITH_RSA_ENCRYPTION), Some(32));
        assert_eq!(length(rfc5912::ECDSA_WITH_SHA_384), Some(48));
        assert_eq!(length(rfc5912::SHA_512_WITH_RSA_ENCRYPTION), Some(64));
        assert_eq!(length(ObjectIdentifier::new_unwrap("1.3.101.112")), None);
    }

    #[test]
    fn what_is_no_certificate_yields_nothing() {
        assert_eq!(server_end_point(b"no certificate"), None);
        assert_eq!(common_name(b""), None);
        assert!(!is_current(b"", UnixTime::now()));
    }
}
