//! TLS of the control plane: the daemon's certificate, made here or read from files, and whose
//! certificates it asks for.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::server::WebPkiClientVerifier;
use switchml_control::tls::{Fingerprint, TlsError, identity, read, roots, unfit};
use tracing::{info, warn};

/// The name in certificates that are made here. Workers know them by their fingerprints.
const OWN_NAME: &str = "switchml-aggregator";

/// Where the certificate and its key are.
#[derive(Debug)]
pub enum Source {
    /// In files, in PEM.
    Files {
        /// The certificate, with those between it and its CA.
        cert: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
    /// Here, made by [`Source::self_signed`], both in PEM.
    Memory {
        /// The certificate.
        cert: String,
        /// Its private key.
        key: String,
    },
}

impl Source {
    /// A certificate that signs itself, for as long as this process lives.
    ///
    /// # Errors
    ///
    /// When the system has no random numbers.
    pub fn self_signed() -> Result<Self, rcgen::Error> {
        let made = rcgen::generate_simple_self_signed([OWN_NAME.to_owned()])?;
        Ok(Self::Memory { cert: made.cert.pem(), key: made.signing_key.serialize_pem() })
    }

    /// The same, kept in these files for the next process. What is in them already stays.
    ///
    /// # Errors
    ///
    /// When one of them is there and the other is not, or they cannot be written.
    pub fn self_signed_in(cert: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let failed = |file: &Path, why: String| TlsError::File { file: file.to_owned(), why };
        match (cert.exists(), key.exists()) {
            (true, true) => return Ok(Self::Files { cert, key }),
            (false, false) => {}
            (is_there, _) => {
                let (there, missing) = if is_there { (&cert, &key) } else { (&key, &cert) };
                let why =
                    format!("is there without {}; remove it, or bring that", missing.display());
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

/// The daemon's side of TLS. Files are read again for each connection, so that one that is made
/// after they have changed sees what they are now; what is of no use changes nothing.
pub struct ServerTls {
    source: Source,
    client_ca: Option<PathBuf>,
    loaded: Mutex<Loaded>,
}

/// What was read last, and what is used: not the same if that was of no use.
struct Loaded {
    read: Result<Contents, TlsError>,
    config: Arc<ServerConfig>,
    fingerprint: Fingerprint,
}

/// Of certificate, key and CA of clients, in PEM.
#[derive(PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl ServerTls {
    /// With clients that need a certificate signed by one of a file of CAs, if one is given.
    ///
    /// # Errors
    ///
    /// [`TlsError`], about this side's files.
    pub fn new(source: Source, client_ca: Option<PathBuf>) -> Result<Self, TlsError> {
        let contents = contents(&source, client_ca.as_deref())?;
        let (config, fingerprint) = config(&source, client_ca.as_deref(), &contents)?;
        let loaded = Mutex::new(Loaded { read: Ok(contents), config, fingerprint });
        Ok(Self { source, client_ca, loaded })
    }

    /// Whether those who connect need a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        self.client_ca.is_some()
    }

    /// Of the certificate that is used.
    pub fn fingerprint(&self) -> Fingerprint {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).fingerprint
    }

    /// What a connection is to be accepted with.
    pub fn config(&self) -> Arc<ServerConfig> {
        let client_ca = self.client_ca.as_deref();
        let read = contents(&self.source, client_ca);
        let loaded = &mut *self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if read != loaded.read {
            let made = read.as_ref().map_err(Clone::clone);
            match made.and_then(|contents| config(&self.source, client_ca, contents)) {
                Ok((config, fingerprint)) => {
                    info!("TLS: the files have changed; the certificate is {fingerprint} now");
                    (loaded.config, loaded.fingerprint) = (config, fingerprint);
                }
                Err(why) => warn!("TLS: the files have changed, the old ones stay in use: {why}"),
            }
            loaded.read = read;
        }
        Arc::clone(&loaded.config)
    }
}

fn contents(source: &Source, client_ca: Option<&Path>) -> Result<Contents, TlsError> {
    let (cert, key) = match source {
        Source::Files { cert, key } => (read(cert)?, read(key)?),
        Source::Memory { cert, key } => (cert.clone().into_bytes(), key.clone().into_bytes()),
    };
    Ok(Contents { cert, key, client_ca: client_ca.map(read).transpose()? })
}

fn config(
    source: &Source,
    client_ca: Option<&Path>,
    contents: &Contents,
) -> Result<(Arc<ServerConfig>, Fingerprint), TlsError> {
    let (cert, key) = match source {
        Source::Files { cert, key } => (cert.as_path(), key.as_path()),
        Source::Memory { .. } => (Path::new("the certificate"), Path::new("its key")),
    };
    let other = |error: String| TlsError::Other(error);
    let (shown, secret) = identity((cert, &contents.cert), (key, &contents.key))?;
    let fingerprint = Fingerprint::of(&shown[0]);
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let config =
        config.with_safe_default_protocol_versions().map_err(|error| other(error.to_string()))?;
    let config = match client_ca.zip(contents.client_ca.as_deref()) {
        None => config.with_no_client_auth(),
        Some((file, pem)) => {
            let roots = Arc::new(roots(file, pem)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            config.with_client_cert_verifier(verifier.map_err(|error| other(error.to_string()))?)
        }
    };
    let config = config.with_single_cert(shown, secret);
    let mut config = config.map_err(|error| unfit(cert, key, error))?;
    // Workers and browsers.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(config), fingerprint))
}
