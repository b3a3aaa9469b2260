//! Authentication: what the server asks for, and whether it gets it.
//!
//! See PostgreSQL, "Message Flow", "Start-up", and "SASL Authentication".

use std::path::PathBuf;

use bytes::Buf;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::frontend;

use super::auth_methods::AuthMethod;
use super::error::ConnectError;
use super::settings::{CertificateMode, ChannelBindingMode, ConnectionSettings};
use super::startup::Session;

impl Session {
    /// The next Authentication message: its code and what follows it.
    async fn receive_authentication(&mut self) -> Result<(u32, bytes::Bytes), ConnectError> {
        let mut frame = self.receive().await?;
        if frame.tag != b'R' {
            return Err(self.unexpected(&frame));
        }
        let code = frame.body.try_get_u32().map_err(|_| self.at().protocol("a malformed Authentication message"))?;
        Ok((code, frame.body))
    }

    /// Answers what the server wants to know, or refuses to.
    pub(super) async fn authenticate(&mut self, settings: &ConnectionSettings) -> Result<(), ConnectError> {
        let mut file = None;
        let done = self.exchange(settings, &mut file).await;
        done.map_err(|error| error.with_password_file(file))?;
        let unmet = self.transport.certificate_exchange().unmet();
        match unmet.filter(|_| settings.certificate_mode == CertificateMode::Require) {
            Some(reason) => Err(self.at().authentication(reason)),
            None => Ok(()),
        }
    }

    async fn exchange(
        &mut self,
        settings: &ConnectionSettings,
        file: &mut Option<PathBuf>,
    ) -> Result<(), ConnectError> {
        let (code, body) = self.receive_authentication().await?;
        let method = method(code).ok_or_else(|| self.at().protocol(format_args!("authentication code {code}")))?;
        if let Some(required) = settings.require_auth.as_ref().filter(|required| !required.allows(method)) {
            let asks = match method {
                AuthMethod::None => "does not ask who we are",
                method => &format!("asks for {}", method.as_str()),
            };
            return Err(self.at().authentication(format_args!("require_auth={required}, and the server {asks}")));
        }
        if let AuthMethod::Other(name) = method {
            return Err(self.at().authentication(format_args!("the server asks for {name}, which is not supported")));
        }
        if method != AuthMethod::Scram && settings.channel_binding == ChannelBindingMode::Require {
            return Err(self.at().authentication(self.why_unbound()));
        }
        if method == AuthMethod::None {
            return Ok(());
        }
        let credential = settings.credential(&self.at())?;
        *file = credential.file;
        let password = credential.password.reveal().as_bytes();
        match method {
            AuthMethod::Scram => self.authenticate_scram(settings, password, &body).await?,
            AuthMethod::Md5 => {
                let salt = body.as_ref().try_into().map_err(|_| self.at().protocol("a malformed md5 salt"))?;
                let hash = md5_hash(settings.user.as_bytes(), password, salt);
                self.send(|buffer| frontend::password_message(hash.as_bytes(), buffer)).await?;
            }
            _ => self.send(|buffer| frontend::password_message(password, buffer)).await?,
        }
        match self.receive_authentication().await? {
            (AUTHENTICATION_OK, _) => Ok(()),
            (code, _) => Err(self.at().protocol(format_args!("authentication went on with code {code}"))),
        }
    }

    async fn authenticate_scram(
        &mut self,
        settings: &ConnectionSettings,
        password: &[u8],
        mechanisms: &[u8],
    ) -> Result<(), ConnectError> {
        let offered = |name: &str| mechanisms.split(|byte| *byte == 0).any(|mechanism| mechanism == name.as_bytes());
        let end_point =
            self.transport.server_end_point().filter(|_| settings.channel_binding != ChannelBindingMode::Disable);
        let (mechanism, binding) = match (end_point, offered(sasl::SCRAM_SHA_256_PLUS)) {
            (Some(hash), true) => (sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(hash.to_vec())),
            // Says "I could", so that a server which offered it notices if somebody in between struck it out.
            (Some(_), false) => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested()),
            (None, _) => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported()),
        };
        if !offered(mechanism) {
            return Err(self.at().authentication("the server offers no SASL mechanism that is supported"));
        }
        if mechanism != sasl::SCRAM_SHA_256_PLUS && settings.channel_binding == ChannelBindingMode::Require {
            return Err(self.at().authentication(self.why_unbound()));
        }
        let mut scram = sasl::ScramSha256::new(password, binding);
        self.send(|buffer| frontend::sasl_initial_response(mechanism, scram.message(), buffer)).await?;
        let challenge = self.receive_sasl(AUTHENTICATION_SASL_CONTINUE).await?;
        scram.update(&challenge).map_err(|error| self.at().authentication(error))?;
        self.send(|buffer| frontend::sasl_response(scram.message(), buffer)).await?;
        let proof = self.receive_sasl(AUTHENTICATION_SASL_FINAL).await?;
        scram.finish(&proof).map_err(|error| self.at().authentication(error))
    }

    async fn receive_sasl(&mut self, expected: u32) -> Result<bytes::Bytes, ConnectError> {
        match self.receive_authentication().await? {
            (code, body) if code == expected => Ok(body),
            (code, _) => Err(self.at().protocol(format_args!("the SCRAM exchange went on with code {code}"))),
        }
    }

    /// Why SCRAM was not bound to the channel, although `channel_binding=require` asks for it.
    fn why_unbound(&self) -> &'static str {
        match (self.transport.is_tls(), self.transport.server_end_point().is_some()) {
            (false, _) => "channel_binding=require, and the connection does not use TLS",
            (true, false) => {
                "channel_binding=require, and the server's certificate has no hash to bind to (RSA-PSS, Ed25519)"
            }
            (true, true) => "channel_binding=require, and the server does not offer it",
        }
    }
}

const AUTHENTICATION_OK: u32 = 0;
const AUTHENTICATION_CLEARTEXT: u32 = 3;
const AUTHENTICATION_MD5: u32 = 5;
const AUTHENTICATION_SASL: u32 = 10;
const AUTHENTICATION_SASL_CONTINUE: u32 = 11;
const AUTHENTICATION_SASL_FINAL: u32 = 12;

/// What the server asks for; `None` for a code that no server sends first.
fn method(code: u32) -> Option<AuthMethod> {
    match code {
        AUTHENTICATION_OK => Some(AuthMethod::None),
        AUTHENTICATION_CLEARTEXT => Some(AuthMethod::Password),
        AUTHENTICATION_MD5 => Some(AuthMethod::Md5),
        AUTHENTICATION_SASL => Some(AuthMethod::Scram),
        2 => Some(AuthMethod::Other("Kerberos 5")),
        7 => Some(AuthMethod::Other("gss")),
        9 => Some(AuthMethod::Other("sspi")),
        _ => None,
    }
}
