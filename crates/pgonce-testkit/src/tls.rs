//! Certificates for test clusters.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, RevokedCertParams, SerialNumber, date_time_ymd,
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
    authority: Authority,
}

/// What signs: the authority's name and key.
#[derive(Clone)]
struct Authority(Arc<Issuer<'static, KeyPair>>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

/// The number of the server's certificate, by which it is revoked.
const SERVER_NUMBER: u64 = 42;

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
        server.serial_number = Some(SerialNumber::from(SERVER_NUMBER));
        let server_key = KeyPair::generate_for(algorithm)?;
        let server_certificate = server.signed_by(&server_key, &issuer)?;
        Ok(TlsFiles {
            ca_certificate: authority_certificate.pem(),
            server_certificate: server_certificate.pem(),
            server_key: server_key.serialize_pem(),
            authority: Authority(Arc::new(issuer)),
        })
    }

    /// Makes a client certificate with this common name, signed by the same authority, and its key (PKCS #8), both as
    /// PEM texts.
    pub fn client(&self, name: &str) -> Result<(String, String), KitError> {
        let mut client = CertificateParams::new(Vec::new())?;
        client.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = client.signed_by(&key, &*self.authority.0)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// The authority's list of revoked certificates, a PEM text: of none, or of the server's.
    pub fn revocation_list(&self, with_server: bool) -> Result<String, KitError> {
        let server = RevokedCertParams {
            serial_number: SerialNumber::from(SERVER_NUMBER),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: if with_server { vec![server] } else { Vec::new() },
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(list.signed_by(&*self.authority.0)?.pem()?)
    }
}
