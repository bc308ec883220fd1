//! TLS of the control plane for clients of an aggregator: how they identify the aggregator, and a
//! one-line message for each failure.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use ring::digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring::default_provider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError,
    RootCertStore, SignatureScheme,
};

use crate::Variable;

const SECONDS_A_DAY: u64 = 24 * 60 * 60;

/// The settings that identify an aggregator which speaks TLS, and the certificate that is shown to
/// it. Without a fingerprint or a CA there is no TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// SHA-256 of the aggregator's certificate, see [`Fingerprint`]. The client checks nothing
    /// else: the certificate may sign itself, and its names and dates do not matter.
    pub fingerprint: Option<String>,
    /// File with the certificates, in PEM, of CAs, one of which has signed the aggregator's
    /// certificate.
    pub ca: Option<PathBuf>,
    /// File with the certificate, in PEM, that the client shows, and those between it and its CA.
    pub cert: Option<PathBuf>,
    /// File with the certificate's private key, in PEM.
    pub key: Option<PathBuf>,
}

/// Settings that make no sense, alone or together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {given}; {allowed}")]
pub struct WrongSetting {
    /// The setting.
    pub name: &'static str,
    /// What was given.
    pub given: String,
    /// What is allowed.
    pub allowed: &'static str,
}

/// Why there is no TLS connection to an aggregator, as text about the aggregator ("it …").
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TlsError {
    #[error(
        "it does not use TLS; start it with --tls-cert and --tls-key, or leave out the TLS \
         settings here"
    )]
    Plain,
    #[error(
        "it accepts TLS only; give the fingerprint of its certificate (tls-fingerprint), or the \
         file of its CA (tls-ca)"
    )]
    Required,
    #[error(
        "its certificate has the fingerprint {seen}, but {given} was given; if its operator has \
         changed the certificate, give the new fingerprint; otherwise somebody else answers in its \
         place"
    )]
    Fingerprint { given: Fingerprint, seen: Fingerprint },
    #[error(
        "its certificate expired {days} days ago by this host's clock; have its operator renew it, \
         or set the clock"
    )]
    Expired { days: u64 },
    #[error("its certificate is not valid yet; check the clocks of both hosts")]
    NotYetValid,
    #[error(
        "its certificate is not signed by a CA of {}; give the file of the CA that has signed it \
         (tls-ca), or the certificate's fingerprint (tls-fingerprint)",
        ca.display()
    )]
    UnknownCa { ca: PathBuf },
    #[error(
        "its certificate is for {names}, not for {given}; give a name or an address that it is for"
    )]
    Name { given: String, names: String },
    #[error(
        "a signature of its certificate or with its key is wrong: somebody else answers in its \
         place"
    )]
    Forged,
    #[error("it asks for a client certificate; give one and its key (tls-cert, tls-key)")]
    ClientCertificateRequired,
    #[error("it refuses the client certificate {}: {why}", cert.display())]
    ClientCertificateRefused { cert: PathBuf, why: &'static str },
    #[error("{} {why}", file.display())]
    File { file: PathBuf, why: String },
    #[error(
        "{} is not the key of {}; give the two that belong together",
        key.display(), cert.display()
    )]
    Pair { cert: PathBuf, key: PathBuf },
    #[error("TLS failed: {0}")]
    Other(String),
}

/// SHA-256 of a certificate in DER, as `openssl x509 -fingerprint -sha256` has it. In text,
/// `sha256:` and 64 hexadecimal digits; taken also with a colon after each byte, or without the
/// prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
        Self(bytes)
    }

    /// The fingerprint of the first certificate in a file, in PEM.
    pub fn in_file(file: &Path) -> Result<Self, TlsError> {
        Ok(Self::of(&certificates(file, &read(file)?)?[0]))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Fingerprint {
    type Err = WrongSetting;

    fn from_str(given: &str) -> Result<Self, WrongSetting> {
        let text = given.trim().to_ascii_lowercase();
        let digits = text.strip_prefix("sha256:").unwrap_or(&text).replace(':', "");
        let mut bytes = [0; 32];
        let is_hex = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        for (place, byte) in bytes.iter_mut().enumerate().filter(|_| is_hex) {
            *byte = u8::from_str_radix(&digits[2 * place..2 * place + 2], 16).unwrap_or_default();
        }
        let wrong = || WrongSetting {
            name: "TLS fingerprint",
            given: format!("{given:?}"),
            allowed: "sha256: and 64 hexadecimal digits are allowed",
        };
        is_hex.then_some(Self(bytes)).ok_or_else(wrong)
    }
}

/// The environment variables of [`ClientTls`], in the order of its fields.
pub const VARIABLES: [Variable; 4] = [
    Variable {
        name: "SWITCHML_TLS_FINGERPRINT",
        values: "sha256: and 64 hexadecimal digits",
        default: "",
        meaning: "The fingerprint of the aggregator's certificate. Connections then use TLS.",
    },
    Variable {
        name: "SWITCHML_TLS_CA",
        values: "a file, in PEM",
        default: "",
        meaning: "The CAs that sign the aggregator's certificate. Connections then use TLS.",
    },
    Variable {
        name: "SWITCHML_TLS_CERT",
        values: "a file, in PEM",
        default: "",
        meaning: "The certificate that this side shows, if the aggregator asks for one.",
    },
    Variable {
        name: "SWITCHML_TLS_KEY",
        values: "a file, in PEM",
        default: "",
        meaning: "The private key of SWITCHML_TLS_CERT.",
    },
];

impl ClientTls {
    /// These settings, completed by those of `other`. A fingerprint and a CA replace each other.
    pub fn over(self, other: Self) -> Self {
        let trusts = self.is_used();
        let shows = self.cert.is_some() || self.key.is_some();
        let (trust, identity) =
            (if trusts { &self } else { &other }, if shows { &self } else { &other });
        Self {
            fingerprint: trust.fingerprint.clone(),
            ca: trust.ca.clone(),
            cert: identity.cert.clone(),
            key: identity.key.clone(),
        }
    }

    /// The settings in the environment, whose variables ([`VARIABLES`]) `text` reads. An empty
    /// variable counts as not set.
    pub fn from_variables<E>(
        text: impl Fn(&'static str) -> Result<Option<String>, E>,
    ) -> Result<Self, E> {
        let given = |name| text(name).map(|text| text.filter(|text| !text.is_empty()));
        let file = |name| given(name).map(|text| text.map(PathBuf::from));
        let [fingerprint, ca, cert, key] = VARIABLES.map(|variable| variable.name);
        Ok(Self {
            fingerprint: given(fingerprint)?,
            ca: file(ca)?,
            cert: file(cert)?,
            key: file(key)?,
        })
    }

    /// Whether the settings ask for TLS.
    pub fn is_used(&self) -> bool {
        self.fingerprint.is_some() || self.ca.is_some()
    }

    /// Makes sure that the settings make sense together, without a look at files.
    pub fn check(&self) -> Result<(), WrongSetting> {
        let wrong = |name, given: &str, allowed| {
            Err(WrongSetting { name, given: given.to_owned(), allowed })
        };
        if let Some(given) = &self.fingerprint {
            given.parse::<Fingerprint>()?;
        }
        if self.fingerprint.is_some() && self.ca.is_some() {
            return wrong("TLS CA", "given together with a fingerprint", "give one of them");
        }
        match (&self.cert, &self.key) {
            (Some(_), None) => wrong("TLS key", "not set", "give it with the certificate"),
            (None, Some(_)) => wrong("TLS certificate", "not set", "give it with the key"),
            (Some(_), _) if !self.is_used() => wrong(
                "TLS certificate",
                "given alone",
                "give the fingerprint of the aggregator's certificate or its CA, too",
            ),
            _ => Ok(()),
        }
    }

    /// The TLS configuration of connections, from the present contents of the files; `None` without
    /// TLS.
    pub(crate) fn config(&self) -> Result<Option<Arc<ClientConfig>>, TlsError> {
        let provider = Arc::new(default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let config = config.with_safe_default_protocol_versions().map_err(other)?;
        let config = match (&self.fingerprint, &self.ca) {
            (Some(given), _) => {
                let given = given.parse().map_err(other)?;
                let verifier = Arc::new(Pinned { given, provider });
                config.dangerous().with_custom_certificate_verifier(verifier)
            }
            (None, Some(ca)) => config.with_root_certificates(roots(ca, &read(ca)?)?),
            (None, None) => return Ok(None),
        };
        let mut config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let (shown, secret) = identity((cert, &read(cert)?), (key, &read(key)?))?;
                config.with_client_auth_cert(shown, secret).map_err(|error| unfit(cert, key, error))
            }
            _ => Ok(config.with_no_client_auth()),
        }?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Some(Arc::new(config)))
    }

    /// The cause of a failed connection to `host`, if it is one of TLS.
    pub(crate) fn explain(&self, error: &io::Error, host: &str) -> Option<TlsError> {
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        let file = |file: &Option<PathBuf>| file.clone().unwrap_or_default();
        let cert = self.cert.as_ref();
        Some(match error {
            Error::InvalidMessage(_) => TlsError::Plain,
            Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after }) => {
                let past = time.as_secs().saturating_sub(not_after.as_secs());
                TlsError::Expired { days: past / SECONDS_A_DAY }
            }
            Error::InvalidCertificate(CertificateError::NotValidYetContext { .. }) => {
                TlsError::NotYetValid
            }
            Error::InvalidCertificate(CertificateError::BadSignature) => TlsError::Forged,
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                TlsError::UnknownCa { ca: file(&self.ca) }
            }
            Error::InvalidCertificate(CertificateError::NotValidForNameContext {
                presented,
                ..
            }) => {
                let names =
                    if presented.is_empty() { "no name".into() } else { presented.join(", ") };
                TlsError::Name { given: host.to_owned(), names }
            }
            Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
                let inner = inner.downcast_ref::<TlsError>().cloned();
                inner.unwrap_or_else(|| other(error))
            }
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                TlsError::ClientCertificateRequired
            }
            Error::AlertReceived(alert) => match (refusal(*alert), cert) {
                (Some(why), Some(cert)) => {
                    TlsError::ClientCertificateRefused { cert: cert.clone(), why }
                }
                _ => other(error),
            },
            error => other(error),
        })
    }
}

/// The reason for which an alert refuses a client's certificate.
fn refusal(alert: AlertDescription) -> Option<&'static str> {
    match alert {
        AlertDescription::UnknownCA => Some("none of the CAs that it knows has signed it"),
        AlertDescription::CertificateExpired => {
            Some("it is not valid now; renew it, or set the clocks")
        }
        AlertDescription::CertificateRevoked => Some("its CA has revoked it; get another one"),
        AlertDescription::DecryptError => Some("its signature is wrong"),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => Some("it is not one for clients"),
        _ => None,
    }
}

fn other(error: impl fmt::Display) -> TlsError {
    TlsError::Other(error.to_string())
}

/// Reads a file of certificates, or of a key.
pub fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |error| TlsError::File {
        file: file.to_owned(),
        why: format!("cannot be read: {error}; give a file that this user may read"),
    };
    fs::read(file).map_err(unreadable)
}

/// The CAs that a file with these contents names.
pub fn roots(file: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, pem)? {
        roots.add(certificate).map_err(|error| TlsError::File {
            file: file.to_owned(),
            why: format!("has a certificate that cannot be used as a CA: {error}"),
        })?;
    }
    Ok(roots)
}

/// The lists of revoked certificates in a file with these contents.
pub fn revocations(
    file: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    in_pem(file, pem, "list of revoked certificates (CRL)")
}

/// A certificate, with those between it and its CA, and its key: the files' names and contents.
pub fn identity(
    cert: (&Path, &[u8]),
    key: (&Path, &[u8]),
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let secret = PrivateKeyDer::from_pem_slice(key.1).map_err(|error| TlsError::File {
        file: key.0.to_owned(),
        why: format!("has no private key in PEM: {error}"),
    })?;
    Ok((certificates(cert.0, cert.1)?, secret))
}

/// Why a certificate and a key cannot be used.
pub fn unfit(cert: &Path, key: &Path, error: Error) -> TlsError {
    match error {
        Error::InconsistentKeys(_) => TlsError::Pair { cert: cert.to_owned(), key: key.to_owned() },
        error => TlsError::File {
            file: cert.to_owned(),
            why: format!("and {} cannot be used: {error}", key.display()),
        },
    }
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    in_pem(file, pem, "certificate")
}

/// All items of one kind in a PEM file with these contents; at least one.
fn in_pem<T: PemObject>(file: &Path, pem: &[u8], kind: &str) -> Result<Vec<T>, TlsError> {
    let wrong = |why| TlsError::File { file: file.to_owned(), why };
    let found: Result<Vec<_>, _> = T::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| wrong(format!("is not in PEM: {error}")))?;
    if found.is_empty() {
        return Err(wrong(format!("has no {kind} in PEM")));
    }
    Ok(found)
}

/// Takes the certificate with one fingerprint, and no other. That its owner has its key too, the
/// signature of the handshake proves.
#[derive(Debug)]
struct Pinned {
    given: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let seen = Fingerprint::of(end_entity);
        if seen == self.given {
            return Ok(ServerCertVerified::assertion());
        }
        let error = TlsError::Fingerprint { given: self.given, seen };
        Err(CertificateError::Other(OtherError(Arc::new(error))).into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not offered".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_in_all_spellings() {
        let plain = "00ff".repeat(16);
        let bytes: Vec<String> = plain.as_bytes().chunks(2).map(text).collect();
        let expected = format!("sha256:{plain}");
        for given in [
            expected.clone(),
            plain.clone(),
            bytes.join(":").to_uppercase(),
            format!("SHA256:{}\n", bytes.join(":")),
        ] {
            assert_eq!(given.parse::<Fingerprint>().unwrap().to_string(), expected, "{given}");
        }
        for given in ["", "sha256:", &plain[1..], &format!("{plain}0"), &plain.replace('f', "g")] {
            let error = given.parse::<Fingerprint>().unwrap_err().to_string();
            assert!(error.contains(&format!("{given:?}; sha256: and 64")), "{error}");
        }
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    /// FIPS 180-4's example, of the message "abc".
    #[test]
    fn a_fingerprint_is_the_sha_256_of_the_certificate() {
        let certificate = CertificateDer::from(b"abc".to_vec());
        assert_eq!(
            Fingerprint::of(&certificate).to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn settings_that_make_no_sense() {
        let file = || Some(PathBuf::from("f"));
        let fingerprint = Some("00".repeat(32));
        let none = ClientTls::default();
        for (settings, expected) in [
            (
                ClientTls { fingerprint: fingerprint.clone(), ca: file(), ..none.clone() },
                "TLS CA is given together with a fingerprint; give one of them",
            ),
            (
                ClientTls { ca: file(), cert: file(), ..none.clone() },
                "TLS key is not set; give it with the certificate",
            ),
            (
                ClientTls { ca: file(), key: file(), ..none.clone() },
                "TLS certificate is not set; give it with the key",
            ),
            (
                ClientTls { cert: file(), key: file(), ..none.clone() },
                "TLS certificate is given alone; give the fingerprint of the aggregator's \
                 certificate or its CA, too",
            ),
        ] {
            assert_eq!(settings.check().unwrap_err().to_string(), expected);
        }
        let whole = ClientTls { fingerprint, cert: file(), key: file(), ca: None };
        assert_eq!((whole.check(), none.check()), (Ok(()), Ok(())));
    }

    #[test]
    fn a_fingerprint_and_a_ca_replace_each_other() {
        let file = |name: &str| Some(PathBuf::from(name));
        let environment =
            ClientTls { fingerprint: None, ca: file("a"), cert: file("b"), key: file("c") };
        let given = ClientTls { fingerprint: Some("f".into()), ..ClientTls::default() };
        let both = given.clone().over(environment.clone());
        assert_eq!(
            both,
            ClientTls {
                ca: None,
                ..ClientTls { fingerprint: given.fingerprint, ..environment.clone() }
            }
        );
        assert_eq!(ClientTls::default().over(environment.clone()), environment);
    }
}
