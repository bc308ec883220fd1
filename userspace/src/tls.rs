//! TLS of the control plane: the daemon's certificate, made here or read from files, and whose
//! certificates it asks for.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, Error, RootCertStore, ServerConfig};
use switchml_control::tls::{Fingerprint, TlsError, identity, read, revocations, roots, unfit};
use tracing::{info, warn};

/// The name in certificates that are made here. Workers know them by their fingerprints.
const OWN_NAME: &str = "switchml-aggregator";

const DAY: u64 = 24 * 60 * 60;
/// How many seconds before its expiry a certificate is warned of, once a day. The alerts use the
/// same time.
const NOTICE: u64 = 14 * DAY;

/// The source of the certificate and its key.
#[derive(Debug)]
pub enum Source {
    /// In files, in PEM.
    Files {
        /// The certificate, with those between it and its CA.
        cert: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// In memory, made by [`Source::self_signed`], both in PEM.
    Memory {
        /// The certificate.
        cert: String,
        /// The private key.
        key: String,
    },
}

impl Source {
    /// A certificate that signs itself, for as long as this process lives.
    pub fn self_signed() -> Result<Self, rcgen::Error> {
        let made = rcgen::generate_simple_self_signed([OWN_NAME.to_owned()])?;
        Ok(Self::Memory { cert: made.cert.pem(), key: made.signing_key.serialize_pem() })
    }

    /// A certificate that signs itself, kept in these files for the next process. Existing files
    /// are used as they are.
    pub fn self_signed_in(cert: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let failed = |file: &Path, why: String| TlsError::File { file: file.to_owned(), why };
        match (cert.exists(), key.exists()) {
            (true, true) => return Ok(Self::Files { cert, key }),
            (false, false) => {}
            (is_there, _) => {
                let (there, missing) = if is_there { (&cert, &key) } else { (&key, &cert) };
                let why =
                    format!("exists without {}; remove it, or add that file", missing.display());
                return Err(failed(there, why));
            }
        }
        let made = rcgen::generate_simple_self_signed([OWN_NAME.to_owned()]);
        let made = made.map_err(|error| TlsError::Other(error.to_string()))?;
        let files =
            [(&key, made.signing_key.serialize_pem(), 0o600), (&cert, made.cert.pem(), 0o644)];
        for (file, text, mode) in files {
            let written = write_new(file, &text, mode);
            written.map_err(|error| failed(file, format!("cannot be written: {error}")))?;
        }
        Ok(Self::Files { cert, key })
    }
}

fn write_new(file: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(file)?;
    file.write_all(text.as_bytes())
}

/// The rules for clients' certificates.
#[derive(Debug)]
pub struct Clients {
    /// File with the CAs that sign clients' certificates, in PEM.
    pub ca: PathBuf,
    /// File with the revocation lists of these CAs, in PEM.
    pub crl: Option<PathBuf>,
}

/// The daemon's side of TLS. Files are read again for each connection, so that changes apply to new
/// connections; invalid contents change nothing.
pub struct ServerTls {
    source: Source,
    clients: Option<Clients>,
    loaded: Mutex<Loaded>,
}

/// The contents read last, and the settings in use: an older state if the contents were invalid.
struct Loaded {
    read: Result<Contents, TlsError>,
    used: Used,
    /// When the last warning about the certificate's expiry was logged, in seconds since 1970.
    warned: Option<u64>,
}

/// The settings with which connections are accepted.
struct Used {
    config: Arc<ServerConfig>,
    fingerprint: Fingerprint,
    /// When the certificate, or one that leads to its CA, expires, in seconds since 1970.
    expires: Option<u64>,
}

/// The contents of the files, in PEM.
#[derive(PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
    client_crl: Option<Vec<u8>>,
}

impl ServerTls {
    /// The server's TLS; with `clients`, clients need a certificate.
    pub fn new(source: Source, clients: Option<Clients>) -> Result<Self, TlsError> {
        let contents = contents(&source, clients.as_ref())?;
        let used = used(&source, clients.as_ref(), &contents)?;
        let loaded = Loaded { read: Ok(contents), used, warned: None };
        let this = Self { source, clients, loaded: Mutex::new(loaded) };
        this.loaded().warn_of_expiry(UnixTime::now().as_secs());
        Ok(this)
    }

    /// Whether clients need a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        self.clients.is_some()
    }

    /// The fingerprint of the certificate in use.
    pub fn fingerprint(&self) -> Fingerprint {
        self.loaded().used.fingerprint
    }

    /// When the certificate in use expires, in seconds since 1970, or one between it and its CA in
    /// the same file, whichever is first.
    pub fn expires(&self) -> Option<u64> {
        self.loaded().used.expires
    }

    /// The configuration for a new connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        let clients = self.clients.as_ref();
        let read = contents(&self.source, clients);
        let loaded = &mut *self.loaded();
        if read != loaded.read {
            let made = read.as_ref().map_err(Clone::clone);
            match made.and_then(|contents| used(&self.source, clients, contents)) {
                Ok(used) => {
                    let fingerprint = used.fingerprint;
                    info!("TLS: the files have changed; the certificate is {fingerprint} now");
                    (loaded.used, loaded.warned) = (used, None);
                }
                Err(why) => warn!("TLS: the files have changed, the old ones stay in use: {why}"),
            }
            loaded.read = read;
        }
        loaded.warn_of_expiry(UnixTime::now().as_secs());
        Arc::clone(&loaded.used.config)
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loaded {
    /// Says once a day that the certificate expires, or has expired.
    fn warn_of_expiry(&mut self, now: u64) {
        let Some(expires) = self.used.expires.filter(|expires| *expires < now + NOTICE) else {
            return;
        };
        if self.warned.is_some_and(|warned| now < warned + DAY) {
            return;
        }
        self.warned = Some(now);
        let renew = "renew it; its files are read again, without a restart";
        match expires.checked_sub(now) {
            Some(left) => warn!("TLS: the certificate expires in {} days; {renew}", left / DAY),
            None => warn!("TLS: the certificate has expired; {renew}"),
        }
    }
}

fn contents(source: &Source, clients: Option<&Clients>) -> Result<Contents, TlsError> {
    let (cert, key) = match source {
        Source::Files { cert, key } => (read(cert)?, read(key)?),
        Source::Memory { cert, key } => (cert.clone().into_bytes(), key.clone().into_bytes()),
    };
    let client_ca = clients.map(|clients| read(&clients.ca)).transpose()?;
    let crl = clients.and_then(|clients| clients.crl.as_deref());
    Ok(Contents { cert, key, client_ca, client_crl: crl.map(read).transpose()? })
}

fn used(source: &Source, clients: Option<&Clients>, contents: &Contents) -> Result<Used, TlsError> {
    let (cert, key) = match source {
        Source::Files { cert, key } => (cert.as_path(), key.as_path()),
        Source::Memory { .. } => (Path::new("the certificate"), Path::new("its key")),
    };
    let (shown, secret) = identity((cert, &contents.cert), (key, &contents.key))?;
    let (fingerprint, expires) = (Fingerprint::of(&shown[0]), expiry(&shown));
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let config = config.with_safe_default_protocol_versions().map_err(other)?;
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            config.with_client_cert_verifier(client_verifier(clients, contents, provider)?)
        }
    };
    let config = config.with_single_cert(shown, secret);
    let mut config = config.map_err(|error| unfit(cert, key, error))?;
    // Workers and browsers.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Used { config: Arc::new(config), fingerprint, expires })
}

/// The verifier of clients' certificates. With revocation lists it also refuses certificates of a
/// CA without a list, because they may be revoked.
fn client_verifier(
    clients: &Clients,
    contents: &Contents,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = roots(&clients.ca, contents.client_ca.as_deref().unwrap_or_default())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = match clients.crl.as_deref().zip(contents.client_crl.as_deref()) {
        None => verifier,
        Some((file, pem)) => verifier.with_crls(revocations(file, pem)?),
    };
    verifier.build().map_err(|error| match &clients.crl {
        Some(crl) => TlsError::File { file: crl.clone(), why: format!("cannot be used: {error}") },
        None => other(error),
    })
}

/// When the first of these certificates expires, in seconds since 1970. Rustls cannot read this
/// date directly, but names it when it refuses a certificate as expired, which it checks first; so
/// it is asked to verify at the end of time.
fn expiry(certificates: &[CertificateDer]) -> Option<u64> {
    let end = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let of_one = |certificate| {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        let roots = RootCertStore::empty();
        match verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], end, &[]) {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after, ..
            })) => Some(not_after.as_secs()),
            _ => None,
        }
    };
    certificates.iter().filter_map(of_one).min()
}

fn other(error: impl ToString) -> TlsError {
    TlsError::Other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    /// `date -ud 2031-03-01 +%s`.
    const MARCH_2031: u64 = 1_930_089_600;

    fn until(year: i32, month: u8, day: u8) -> CertificateDer<'static> {
        let mut params = CertificateParams::new([OWN_NAME.to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, month, day);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn the_first_of_a_chain_to_expire_counts() {
        let chain = [until(2040, 1, 1), until(2031, 3, 1), until(2032, 1, 1)];
        assert_eq!(expiry(&chain), Some(MARCH_2031));
        assert_eq!(expiry(&[until(2031, 3, 1)]), Some(MARCH_2031));
        assert_eq!(expiry(&[]), None);
        assert_eq!(expiry(&[CertificateDer::from(b"no certificate".to_vec())]), None);
    }

    #[test]
    fn it_is_said_once_a_day_from_two_weeks_before() {
        let tls = ServerTls::new(Source::self_signed().unwrap(), None).unwrap();
        let mut loaded = tls.loaded.into_inner().unwrap();
        loaded.used.expires = Some(MARCH_2031);
        let mut said = |now| {
            let before = loaded.warned;
            loaded.warn_of_expiry(now);
            loaded.warned != before
        };
        let first = MARCH_2031 - 14 * DAY + 1;
        let times = [
            (first - 1, false),
            (first, true),
            (first + DAY - 1, false),
            (first + DAY, true),
            // The warning goes on after the expiry.
            (MARCH_2031 + DAY, true),
        ];
        for (now, expected) in times {
            assert_eq!(said(now), expected, "{now}");
        }
    }
}
