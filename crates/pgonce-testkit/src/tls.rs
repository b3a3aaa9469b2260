//! Certificates for test clusters.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384,
};

use crate::KitError;

/// The curve of the keys, and with it the hash of the signature, which SCRAM channel binding depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Curve {
    /// ECDSA on P-256 with SHA-256.
    #[default]
    P256,
    /// ECDSA on P-384 with SHA-384.
    P384,
}

/// A certificate authority of a test's own, and a server certificate signed by it. PEM texts.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The authority's certificate: what a client trusts (`sslrootcert`).
    pub ca_certificate: String,
    /// The server's certificate.
    pub server_certificate: String,
    /// The server's private key.
    pub server_key: String,
}

impl TlsFiles {
    /// Makes an authority and a certificate for `localhost` and 127.0.0.1.
    pub fn generate() -> Result<TlsFiles, KitError> {
        TlsFiles::generate_for(&["localhost", "127.0.0.1"], Curve::P256)
    }

    /// Makes an authority and a certificate for these host names and addresses, with keys on this curve.
    pub fn generate_for(hosts: &[&str], curve: Curve) -> Result<TlsFiles, KitError> {
        let algorithm = match curve {
            Curve::P256 => &PKCS_ECDSA_P256_SHA256,
            Curve::P384 => &PKCS_ECDSA_P384_SHA384,
        };
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.distinguished_name.push(DnType::CommonName, "pgonce test authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority_key = KeyPair::generate_for(algorithm)?;
        let authority_certificate = authority.self_signed(&authority_key)?;
        let issuer = Issuer::new(authority, authority_key);

        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut server = CertificateParams::new(hosts)?;
        server.distinguished_name.push(DnType::CommonName, "pgonce test server");
        let server_key = KeyPair::generate_for(algorithm)?;
        let server_certificate = server.signed_by(&server_key, &issuer)?;
        Ok(TlsFiles {
            ca_certificate: authority_certificate.pem(),
            server_certificate: server_certificate.pem(),
            server_key: server_key.serialize_pem(),
        })
    }
}
